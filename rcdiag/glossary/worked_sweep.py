"""Worked numbers of a sweep: the toy under one setting of a family."""

from __future__ import annotations

from functools import cache

from rcdiag.glossary.families import bounds_text
from rcdiag.glossary.worked import TOY, toy_pair
from rcdiag.results import MetricValue
from rcdiag.results.sweep import SweepRow
from rcdiag.usecases.sweep.estimates import kept_groups, sweep_rows
from rcdiag.usecases.sweep.families import FAMILIES
from rcdiag.usecases.sweep.gradients import Baseline
from rcdiag.usecases.sweep.state import SweepPlan, SweepState

FAMILY = "geo_rs_seq_tis"
BOUNDS = {"rs_lower": 0.5, "rs_upper": 2.0, "is_upper": 1.5}
SETTING = f"{FAMILY} with {bounds_text(BOUNDS)}, {TOY}, rewards 1 and 0"


@cache
def row() -> SweepRow:
    """The first sequence is kept, the second one rejected."""
    correction = FAMILIES[FAMILY].correction(BOUNDS)
    pair = toy_pair()
    assert pair.tokens.reward is not None
    baseline = Baseline.of(None, pair.tokens.reward)
    state = SweepState.of(pair, SweepPlan({FAMILY: [correction]}, baseline=baseline))
    return sweep_rows(state, FAMILY, [BOUNDS], kept_groups(state))[0]


def example(name: str) -> str | None:
    """`SETTING: value`; None where the toy has none."""
    value = getattr(row(), name)
    number = value.value if isinstance(value, MetricValue) else value
    return None if number is None else f"{SETTING}: {number:.4g}"
