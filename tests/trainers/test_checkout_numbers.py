"""Corrections and losses, held against numbers that trainers' own code gave (`tests/oracle`)."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rcdiag.results import CorrectionResult
from rcdiag.statistics.pair import pair_of
from rcdiag.table.trajectories import Ragged, Trajectories
from rcdiag.trainers import find_trainer
from rcdiag.trainers.plan import Plan, plan_corrections
from rcdiag.usecases.corrected import CorrectionRows, correction_results, wanted_quantities
from tests.trainers.checkout_batches import BATCHES, Batch
from tests.trainers.differences import differing

FOLDERS = ("prime_rl", "open_instruct", "roll", "miles")
# Some counts and flags are float32 in the trainers themselves.
TOLERANCE = 1e-7


@cache
def stored(folder: str) -> Mapping[str, Any]:
    return json.loads((Path(__file__).parent / folder / "numbers.json").read_text())


def variants(folder: str) -> Any:
    return importlib.import_module(f"tests.trainers.{folder}.variants")


def settings_of(folder: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by the names that rcdiag has for them: those of mappings are dotted."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        inner = value if isinstance(value, dict) else {}
        flat |= {f"{name}.{key}": one for key, one in inner.items()} or {name: value}
    return flat


def trajectories_of(batch: Batch) -> Trajectories:
    def flat(rows: list[Any]) -> np.ndarray:
        return np.array([value for row in rows for value in row], np.float64)

    offsets = np.concatenate([[0], np.cumsum(batch.lengths)])
    return Trajectories(
        first_row=0,
        response_ids=Ragged(np.zeros(offsets[-1], np.int32), offsets),
        mask=flat(batch.mask) > 0,
        log_probs={"rollout": flat(batch.rollout), "old": flat(batch.old)},
        advantage=np.array(batch.advantages),
    )


def result_of(plan: Plan, batch: Batch) -> CorrectionResult:
    pair = pair_of(trajectories_of(batch), "rollout", "old")
    rows = CorrectionRows.of(pair.by_step(), plan, wanted_quantities(plan))
    return correction_results(plan, rows.whole)["it"]


def cases() -> Iterator[Any]:
    for folder in FOLDERS:
        for case in stored(folder)["cases"]:
            yield pytest.param(folder, case, id=f"{folder}-{case['variant']}-{case['batch']}")


@pytest.mark.parametrize(("folder", "case"), cases())
def test_a_correction(folder: str, case: Mapping[str, Any]) -> None:
    config = settings_of(folder, variants(folder).VARIANTS[case["variant"]])
    plan = plan_corrections(find_trainer(folder.replace("_", "-")), {"it": config})
    result = result_of(plan, BATCHES[case["batch"]])
    elsewhere = getattr(variants(folder), "OF_THE_UPDATE", ())
    wanted = {name: case[name] for name in ("weight_sum", "kept_tokens", "kept_sequences")}
    found: dict[str, Any] = {name: getattr(result, name) for name in wanted}
    wanted["metrics"] = {
        name: value for name, value in case["metrics"].items() if name not in elsewhere
    }
    found["metrics"] = dict(result.metrics)
    assert differing(wanted, found, TOLERANCE) == []
