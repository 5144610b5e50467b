"""Tunix's own agreement of sampler and trainer out of a checkout, with numpy in jax's place."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.oracle.cases import corrected_case
from tests.oracle.checkouts import Checkout
from tests.oracle.published import bare_class
from tests.trainers.answers import Answers, Corrected, Settings
from tests.trainers.batches import BATCHES

TUNIX = Checkout("Tunix", "RCDIAG_TUNIX", "https://github.com/google/tunix", "c7d8950f")
LEARNER = "tunix/rl/agentic/agentic_grpo_learner.py"
CORRECTIONS: list[Settings] = [
    {},
    {"sampler_is": "token"},
    {"sampler_is": "token", "sampler_is_threshold": 1.03},
    {"sampler_is": "token", "sampler_is_threshold": 0.9},
]


class _Numpy:
    """numpy under jax's names; numbers that jax makes in float32 are of this arithmetic."""

    def __init__(self, dtype: type) -> None:
        self.float32 = dtype

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@cache
def learner(dtype: type) -> Any:
    """The method that makes metrics and weights."""
    tree = ast.parse(Path(TUNIX.folder, LEARNER).read_text())
    space = {
        "jnp": _Numpy(dtype),
        "np": np,
        "jax": SimpleNamespace(lax=SimpleNamespace(stop_gradient=lambda values: values)),
        "logging": SimpleNamespace(info=lambda *_: None),
    }
    return bare_class(tree, "GRPOLearner", ("_sampler_trainer_agreement",), space)


def corrected(batch: str, settings: Settings, dtype: str = "float64") -> Corrected:
    """The weights of one micro-batch, and what is logged."""
    rows, kind = BATCHES[batch], np.dtype(dtype).type
    bare = learner(kind)()
    bare.algo_config = SimpleNamespace(
        **{"sampler_is": None, "sampler_is_threshold": 2.0} | settings
    )
    # What the mask leaves out is a number there: the product with 0 is 0.
    old, rollout = (
        np.where(rows.mask, values, 0.0).astype(kind) for values in (rows.old, rows.rollout)
    )
    with np.errstate(over="ignore", invalid="ignore"):
        logged, weights = bare._sampler_trainer_agreement(rollout, old, rows.mask)
    # `_log_metrics` puts the mode after the first part.
    names = {name: name.replace("/", "/train/", 1) for name in logged}
    metrics = {names[name]: value for name, (value, _) in logged.items()}
    return corrected_case(batch, settings, dtype, weights, metrics)


def answers() -> Answers:
    """All that is stored of Tunix."""
    return Answers(
        trainer="tunix",
        source=f"google/tunix commit {TUNIX.commit}, {LEARNER}: _sampler_trainer_agreement",
        corrections=[
            *(corrected(batch, settings) for settings in CORRECTIONS for batch in BATCHES),
            *(corrected(batch, CORRECTIONS[2], "float32") for batch in ("mild", "rough")),
        ],
    )
