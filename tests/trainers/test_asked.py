"""The sums of a pass are determined on made-up rows: no real batch requests others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace

from rcdiag.corrections.arithmetic import Array, Tokens
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import RATIO, quantity
from rcdiag.corrections.sequences import NotAsked, Questions
from rcdiag.corrections.trainer_means import Batch
from rcdiag.statistics.pair import PolicyPair
from rcdiag.table.token_batch import sampled_tokens
from rcdiag.table.trajectories import Ragged, Trajectories
from rcdiag.trainers import TRAINERS, find_trainer
from rcdiag.trainers.plan import Plan, plan_corrections
from rcdiag.usecases.corrected import CorrectionRows, asked_by, correction_results

NAN = float("nan")
MASKED = None
# Log-ratios by row, nats; None is a masked token.
BATCHES: dict[str, list] = {
    "no row": [],
    "rows without a token": [[], []],
    "all masked": [[MASKED, MASKED], [MASKED]],
    "one token": [[0.1]],
    "one token beside masked ones": [[MASKED, 0.1], [MASKED]],
    "one sequence": [[0.3, -0.2, 0.0]],
    "all equal": [[0.0, 0.0], [0.0]],
    "NaN everywhere": [[NAN, NAN], [NAN]],
    "a NaN": [[0.1, NAN], [0.2, -0.1], [MASKED, 0.0]],
    "infinite": [[np.inf, 0.0], [-np.inf], [0.1]],
    "all rejected from above": [[30.0, 30.0], [25.0], []],
    "all rejected from below": [[-30.0, -30.0], [-25.0]],
    "mixed": [[0.1, -3.0, MASKED], [2.0], [], [MASKED], [0.5, -0.4, 30.0]],
}


def trajectories(rows: list, *, steps: bool = False) -> Trajectories:
    """Make rows of log-ratios in which trainer or sampler has log-prob 0 at each token.

    With `steps` there are two steps, and advantages of both signs.
    """
    flat = [value for row in rows for value in row]
    ratios = np.array([0.0 if value is MASKED else value for value in flat], np.float64)
    offsets = np.cumsum([0, *map(len, rows)])
    return Trajectories(
        first_row=0,
        response_ids=Ragged(np.zeros(len(flat), np.int32), offsets),
        mask=np.array([value is not MASKED for value in flat], np.bool_),
        log_probs={"rollout": -np.maximum(ratios, 0.0), "old": np.minimum(ratios, 0.0)},
        step=np.arange(len(rows)) % 2 if steps else None,
        advantage=(-1.0) ** np.arange(len(rows)) if steps else None,
    )


def compute(plan: Plan, asked: Questions, rows: Trajectories) -> None:
    """Compute a plan on a batch as `score` does: per step, and over all steps."""
    tokens = sampled_tokens(rows, ("rollout", "old"), masked=bool(asked.of_masked))
    pair = PolicyPair(tokens, "rollout", "old")
    reduced = CorrectionRows.of(pair.by_step(), plan, asked)
    batches = list(reduced.steps.values())
    for batch in [*batches, reduced.whole] if len(batches) > 1 else batches:
        correction_results(plan, batch)


IN_STEPS = ("a NaN", "all rejected from above", "mixed")


@pytest.mark.parametrize("trainer", TRAINERS)
def test_no_batch_makes_a_preset_request_other_sums(trainer: str) -> None:
    """Float32 is tried on the batches in steps, of which each and the whole are computed."""
    own = TRAINERS[trainer]
    for preset, config in own.presets.items():
        for arithmetic in ("float64", "float32"):
            plan = plan_corrections(own, {preset: config}, arithmetic)
            asked = asked_by(plan)
            for name in IN_STEPS:
                compute(plan, asked, trajectories(BATCHES[name], steps=True))
            for name in BATCHES.keys() - IN_STEPS if arithmetic == "float64" else ():
                compute(plan, asked, trajectories(BATCHES[name]))


@quantity
def distance(tokens: Tokens) -> Array:
    """Return |log_ratio|, in nats."""
    return np.abs(tokens.log_ratio)


def plan_of(metrics: Callable[[Batch, Correction], dict[str, float]]) -> Plan:
    trainer = replace(find_trainer("trl"), metrics=metrics)
    return plan_corrections(trainer, {"token_truncate": trainer.presets["token_truncate"]})


def test_a_request_that_depends_on_numbers_is_an_error_that_names_it() -> None:
    def metrics(batch: Batch, correction: Correction) -> dict[str, float]:
        if batch.rows.sum(RATIO).sum() > 100.0:
            return {"distance": float(batch.rows.max(distance).max())}
        return {}

    plan = plan_of(metrics)
    compute(plan, asked_by(plan), trajectories([[0.1]]))
    with pytest.raises(NotAsked) as error:
        compute(plan, asked_by(plan), trajectories([[10.0]]))
    assert "trl-1.16 with preset token_truncate" in error.value.message
    assert "the max of distance" in error.value.message
    assert "before any branch" in error.value.hint


def test_a_metric_of_one_line_is_correct() -> None:
    def metrics(batch: Batch, correction: Correction) -> dict[str, float]:
        return {
            "share": batch.token_mean(RATIO > 1.2),
            "clipped": float(batch.rows.sum(RATIO.clip(upper=1.5)).sum()),
            "farthest": float(batch.rows.max(distance).max()),
        }

    plan, rows = plan_of(metrics), trajectories([[0.1, 1.0], [-2.0]])
    pair = PolicyPair(sampled_tokens(rows, ("rollout", "old")), "rollout", "old")
    reduced = CorrectionRows.of(pair.by_step(), plan, asked_by(plan)).whole
    logged = correction_results(plan, reduced)["token_truncate"].metrics
    assert logged["share"] == pytest.approx(1 / 3)
    assert logged["clipped"] == pytest.approx(np.exp(0.1) + 1.5 + np.exp(-2.0))
    assert logged["farthest"] == pytest.approx(2.0)
