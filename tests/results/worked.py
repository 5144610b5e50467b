"""Examples of result fields, recomputed from two short sequences."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.table.trajectories import Ragged, Trajectories
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.plan import plan_corrections
from rcdiag.usecases.corrected import CorrectionRows, asked_by, correction_results
from rcdiag.usecases.replay.gradients import (
    Products,
    cosine,
    relative_bias,
    relative_norm,
    relative_variance,
)
from rcdiag.usecases.replay.preset_result import coefficient_numbers, shares
from rcdiag.usecases.replay.real_updates import after_step
from rcdiag.usecases.replay.update_batch import ReplayBatch, Roles, replay_batch
from rcdiag.usecases.sweep.estimates import sweep_rows
from rcdiag.usecases.sweep.plan import SweepPlan
from rcdiag.usecases.sweep.sketched_gradients import Baseline
from rcdiag.usecases.sweep.sums import SweepState
from tests.two_rows import BEHAVIOR, LOG_RATIOS, toy_pair

Array = NDArray[np.float64]
OLD = np.array(BEHAVIOR)
FAMILY, BOUNDS = "geo_rs_seq_tis", {"rs_lower": 0.5, "rs_upper": 2.0, "is_upper": 1.5}


def named(part: Any) -> dict[str, Any]:
    return {name: getattr(part, name) for name in part.__struct_fields__}


@cache
def correction() -> dict[str, Any]:
    """Compute the correction: sequence weights truncated at 2, token_k1 0.6_1.6."""
    settings = {"rollout_is": "sequence", "rollout_is_threshold": 2.0, "rollout_rs": "token_k1"}
    settings |= {"rollout_rs_threshold": "0.6_1.6"}
    plan = plan_corrections(TRAINERS["verl-0.9"], {"it": settings})
    rows = CorrectionRows.of({None: toy_pair()}, plan, asked_by(plan)).whole
    result = correction_results(plan, rows)["it"]
    return named(result) | result.actual


@cache
def sweep_row() -> Any:
    """Compute a row of a sweep that keeps the first sequence and rejects the second."""
    pair = toy_pair()
    baseline = Baseline.of(None, pair.tokens.rewards)
    state = SweepState(SweepPlan({FAMILY: [BOUNDS]}, baseline=baseline))
    state.take(pair)
    return sweep_rows(state, FAMILY)[0]


def batch(old: Array, rollout: Array) -> ReplayBatch:
    """Make a batch of both sequences, each its own prompt group."""
    trajectories = Trajectories(
        first_row=0,
        response_ids=Ragged(np.arange(5, dtype=np.int32), np.array([0, 3, 5])),
        mask=np.ones(5, np.bool_),
        log_probs={"rollout": rollout, "old": old},
        reward=np.array([1.0, 0.0]),
        advantages=np.array([1.0, 1.0, 1.0, -1.0, -1.0]),
    )
    return replay_batch([trajectories], Roles(), "column")


@cache
def coefficients() -> dict[str, Any]:
    pulls = np.array([-0.2, -0.2, -0.1, 0.2, 0.2])
    return named(coefficient_numbers(pulls)) | named(
        shares(pulls, batch(OLD, OLD), np.full(len(pulls), 0.2))
    )


@cache
def after() -> dict[str, Any]:
    new = OLD + np.concatenate([np.array(row) for row in LOG_RATIOS])
    update = {"clip_range": (0.8, 1.2), "learning_rate": 1e-6, "step_norm": 0.0}
    return named(after_step(batch(OLD, OLD - 0.1), new, **update))


@cache
def gradient() -> dict[str, Any]:
    """Compute gradients of three prompt groups, and their reference."""
    gradients = np.array([[2.0, 0.0], [1.0, 1.0], [2.0, -1.0]])
    references = np.array([[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    products = Products.of(gradients, references)
    g, r = gradients.sum(axis=0), references.sum(axis=0)
    norm, of_reference = float(np.linalg.norm(g)), float(np.linalg.norm(r))
    variance = relative_variance(products.gg)
    assert variance is not None
    return {
        "grad_norm": norm,
        "cosine": cosine(products, 0),
        "cosine_whole": float(g @ r) / (norm * of_reference),
        "norm_ratio": norm / of_reference,
        "norm_ratio_unbiased": relative_norm(products, 0),
        "squared_bias": relative_bias(products, 0),
        "relative_variance": variance,
        "signal_to_noise": 1.0 / variance,
    }
