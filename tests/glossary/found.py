"""Names in results of all presets, and of settings that no preset has."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from rcdiag.results import CorrectionResult
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.verl.correction import OPTIONS
from tests.corrections.batches import seeded
from tests.corrections.builders import plan_of, presets_of, results_of

RCDIAG = Path(__file__).parents[2] / "rcdiag"
LEVELS = ("token", "sequence", "geometric")


def _more_settings(trainer: str) -> Iterator[dict[str, Any]]:
    """Return settings for every weighting and rejection of a trainer."""
    settings = TRAINERS[trainer].settings
    if TRAINERS[trainer].family == "xtuner":
        return  # it uses verl's names, and has presets for what it logs
    if "rollout_is_mode" in settings:
        for level, mode in product(LEVELS, ("truncate", "mask")):
            options = {"rollout_is_level": level, "rollout_is_mode": mode}
            yield {"rollout_is": True, "rollout_is_threshold": 2.0, **options}
    elif "tis_level" in settings:
        for level, mode in product(("token", "sequence"), ("truncate", "clip", "mask")):
            yield {"tis_level": level, "tis_mode": mode, "rs_level": level}
    elif "rollout_rs_threshold_lower" in settings:
        for level in LEVELS:
            options = {"rollout_rs": level, "rollout_rs_threshold": 2.0}
            yield {**options, "rollout_is_batch_normalize": True}
    elif "rollout_rs" in settings:
        for option in OPTIONS:
            bounds = "0.6_1.6" if option.endswith("k1") else "0.1"
            options = {"rollout_rs": option, "rollout_rs_threshold": bounds}
            yield {**options, "rollout_is_batch_normalize": True}


@cache
def corrections(trainer: str) -> tuple[CorrectionResult, ...]:
    """Compute everything that a trainer can log, on a small batch."""
    batch = seeded(3)
    result = [*results_of(presets_of(trainer), batch).values()]
    for config in _more_settings(trainer):
        result += results_of(plan_of(trainer, config), batch).values()
    return tuple(result)


def logged(trainer: str) -> set[str]:
    return {key for item in corrections(trainer) for key in item.metrics}


def slugs() -> set[str]:
    """Return the slugs of all findings in the library.

    They are in `Finding(slug="...")`, or in rows with a condition of a trainer's findings.toml.
    """
    rows = {
        slug
        for path in RCDIAG.rglob("findings.toml")
        for slug, row in tomllib.loads(path.read_text()).items()
        if {"when", "where"} & row.keys()
    }
    # To parse all of the library takes seconds, to read it none.
    texts = (path.read_text() for path in RCDIAG.rglob("*.py"))
    calls = [
        node
        for text in texts
        if "Finding(" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding"
    ]
    return rows | {
        keyword.value.value
        for call in calls
        for keyword in call.keywords
        if keyword.arg == "slug" and isinstance(keyword.value, ast.Constant)
    }
