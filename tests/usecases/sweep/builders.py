"""States of sweeps over small batches, and single-threshold numbers for comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import astuple, fields, replace

from rcdiag.corrections.correction import Correction
from rcdiag.results import CorrectionResult, MetricValue
from rcdiag.results.sweep import SweepRow
from rcdiag.statistics.pair import PolicyPair, pair_of
from rcdiag.trainers import find_trainer
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.corrected import CorrectionRows, asked_by, correction_results
from rcdiag.usecases.sweep.estimates import sweep_rows
from rcdiag.usecases.sweep.estimator_families import Bounds
from rcdiag.usecases.sweep.plan import SweepPlan
from rcdiag.usecases.sweep.sums import SweepState
from tests.corrections.builders import Padded, trajectories_of


def pair_from(batch: Padded) -> PolicyPair:
    return pair_of(trajectories_of(batch), "rollout", "old")


def added_up(pairs: Sequence[PolicyPair], plan: SweepPlan) -> SweepState:
    """Merge the states of batches into that of the first."""
    states = [SweepState(plan) for _ in pairs]
    for state, pair in zip(states, pairs, strict=True):
        state.take(pair)
    for other in states[1:]:
        states[0].add(other)
    return states[0]


def state_of(
    grids: Mapping[str, Sequence[Bounds]],
    pairs: Sequence[PolicyPair],
) -> SweepState:
    """Return the merged state of some batches."""
    plan = SweepPlan(grids, grouped=True)
    return added_up(pairs, plan)


def rows_of_family(family: str, settings: list[Bounds], batch: Padded) -> list[SweepRow]:
    state = state_of({family: settings}, [pair_from(batch)])
    return sweep_rows(state, family)


def single(correction: Correction, pair: PolicyPair) -> CorrectionResult:
    """Compute the single-threshold numbers, with the weight metrics of the newest verl."""
    verl = find_trainer("verl-0.9")
    trainer = replace(
        verl,
        metrics=lambda batch, any_one: verl.metrics(batch, replace(any_one, rejections=())),
    )
    plan = Plan(trainer, {"it": {}}, {"it": correction})
    rows = CorrectionRows.of({None: pair}, plan, asked_by(plan))
    return correction_results(plan, rows.whole)["it"]


def finite(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else value


def flat(row: SweepRow) -> list[float]:
    """Yield every number of a row, in the order of its fields."""
    result: list[Any] = []
    for item in fields(row):
        value = getattr(row, item.name)
        if isinstance(value, MetricValue):
            result += astuple(value)[:3]
        elif isinstance(value, list):
            result += value
        elif item.name != "bounds":
            result.append(value)
    return [np.nan if value is None else float(value) for value in result]
