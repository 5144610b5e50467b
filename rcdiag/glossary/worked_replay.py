"""Small worked numbers of a replay. No torch: what needs it is computed by the tests."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.glossary.worked import BEHAVIOR, LOG_RATIOS, TOY
from rcdiag.results import MetricValue
from rcdiag.table.trajectories import Ragged, Trajectories
from rcdiag.usecases.replay.after_step import Stepped, after_step
from rcdiag.usecases.replay.batch import Part, ReplayBatch, replay_batch
from rcdiag.usecases.replay.gradients import (
    Products,
    cosine,
    relative_bias,
    relative_norm,
    relative_variance,
)
from rcdiag.usecases.replay.shares import coefficient_numbers, shares

Array = NDArray[np.float64]

# Two sequences, the first one with advantage 1 and the second with -1.
UPDATE = f"old log-probs [-1, -0.5, -2], [-0.7, -1.5], {TOY} of current to old, advantages 1 and -1"
PULLS = np.array([-0.2, -0.2, -0.1, 0.2, 0.2])
PULLED = "coefficients [-0.2, -0.2, -0.1], [0.2, 0.2], advantages 1 and -1"
STEPPED = f"old to new {TOY}, rollout to old 0.1 throughout, advantages 1 and -1"
# Gradients of three prompt groups, and their references.
GRADIENTS = np.array([[2.0, 0.0], [1.0, 1.0], [2.0, -1.0]])
REFERENCES = np.array([[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
GROUPS = "gradients of three groups (2, 0), (1, 1), (2, -1), references (0, 1), (1, 1), (1, 0)"


def toy_batch(old: Array, rollout: Array) -> ReplayBatch:
    """Both sequences, each a prompt group of its own."""
    trajectories = Trajectories(
        first_row=0,
        response_ids=Ragged(np.arange(5, dtype=np.int32), np.array([0, 3, 5])),
        mask=np.ones(5, np.bool_),
        log_probs={"rollout": rollout, "old": old},
        reward=np.array([1.0, 0.0]),
        advantages=np.array([1.0, 1.0, 1.0, -1.0, -1.0]),
    )
    part = Part(trajectories, np.ones(2, np.bool_))
    return replay_batch([part], ("rollout", "old", "old"), "column")


@cache
def _pulled() -> dict[str, Any]:
    old = np.array(BEHAVIOR)
    numbers, found = coefficient_numbers(PULLS), shares(PULLS, toy_batch(old, old))
    assert found is not None
    fields = (*numbers.__dataclass_fields__, *found.__dataclass_fields__)
    return {name: getattr(numbers, name, None) or getattr(found, name, None) for name in fields}


@cache
def _stepped() -> dict[str, Any]:
    old = np.array(BEHAVIOR)
    new = old + np.concatenate([np.array(row) for row in LOG_RATIOS])
    batch = toy_batch(old, old - 0.1)
    stepped = Stepped(log_probs=new, entropy_before=None, entropy_after=None, step_norm=0.0)
    found = after_step(batch, stepped, (0.8, 1.2), 1e-6)
    return {name: getattr(found, name) for name in found.__dataclass_fields__}


@cache
def _directed() -> dict[str, Any]:
    products = Products.of(GRADIENTS, REFERENCES)
    g, r = GRADIENTS.sum(axis=0), REFERENCES.sum(axis=0)
    norm, of_reference = float(np.linalg.norm(g)), float(np.linalg.norm(r))
    variance = relative_variance(products.gg)
    assert variance is not None
    return {
        "norm": norm,
        "cosine": cosine(products, 0),
        "cosine_whole": float(g @ r) / (norm * of_reference),
        "norm_ratio": norm / of_reference,
        "norm_ratio_unbiased": relative_norm(products, 0),
        "gradient.bias": relative_bias(products, 0),
        "gradient.variance": variance,
        "signal_to_noise": 1.0 / variance,
    }


def pulled(name: str) -> str | None:
    """`PULLED: value` of a number of the coefficients."""
    return _said(PULLED, _pulled().get(name.rpartition(".")[2]))


def stepped(name: str) -> str | None:
    """`STEPPED: value` of a number after the step; None for what takes a model."""
    return None if name in ("learning_rate", "step_norm") else _said(STEPPED, _stepped()[name])


def directed(name: str) -> str | None:
    """`GROUPS: value` of a number of a gradient."""
    return _said(GROUPS, _directed().get(name))


def _said(where: str, value: Any) -> str | None:
    number = value.value if isinstance(value, MetricValue) else value
    if number is None or isinstance(number, dict):
        return None
    return f"{where}: {_rounded(number)}"


def _rounded(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_rounded, value))
    return f"{value:.4g}"
