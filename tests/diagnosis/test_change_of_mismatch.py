"""A change of k3 over the steps is decomposed into length, peakiness and noise."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from rcdiag.diagnosis.case import PairTokens
from rcdiag.diagnosis.change_of_mismatch import change_of_mismatch, sentence
from rcdiag.diagnosis.judge import diagnose
from rcdiag.results.base import MetricValue
from rcdiag.results.diagnosis import ChangeOfMismatch
from tests.questions.tables import two_phases


def changed(seed: int = 0, **phases: Any) -> ChangeOfMismatch:
    same: dict[str, Any] = {"length": (60, 60), "sharpness": (1.0, 1.0), "noise": (0.1, 0.1)}
    said = diagnose(two_phases(**{**same, **phases}, seed=seed)).over_steps
    assert said is not None
    assert said.change is not None, said.says
    return said.change


def shares(change: ChangeOfMismatch) -> dict[str, float]:
    whole = change.k3_after - change.k3_before
    return {name: getattr(change, name).value / whole for name in ("length", "peakiness", "noise")}


def tokens_of(cells: list[tuple[int, int, float, float]], groups: int) -> tuple[Any, ...]:
    """Make rows from (part, position, surprisal, log-ratio) of tokens, the same in every group."""
    part, position, surprisal, log_ratio = (np.array(values) for values in zip(*cells, strict=True))
    rows = groups * 2
    owner = np.concatenate([2 * group + part for group in range(groups)])
    order = np.argsort(owner, kind="stable")
    sampler = -np.tile(surprisal, groups)[order]
    tokens = PairTokens(
        sampler=sampler,
        trainer=sampler + np.tile(log_ratio, groups)[order],
        owner=owner[order],
        position=np.tile(position, groups)[order],
        token_id=np.zeros(len(owner), np.int32),
        place=np.arange(len(owner)),
        rows=rows,
    )
    return tokens, -sampler, np.arange(rows) % 2 == 1, np.arange(rows) // 2


def test_a_hand_computed_change():
    """Early tokens have k3 a, late ones b; the later part has two late ones of three, not one of
    two, and the k3 of late tokens is b in both: all of the change is of lengths.
    """
    small, large = 0.1, 0.4
    a, b = (np.expm1(x) - x for x in (small, large))
    given = tokens_of(
        [
            (0, 0, 0.5, small),
            (0, 20, 0.5, large),
            (1, 0, 0.5, small),
            (1, 20, 0.5, large),
            (1, 21, 0.5, large),
        ],
        groups=10,
    )
    change = change_of_mismatch(*given, step=3)
    assert change.k3_before == pytest.approx((a + b) / 2)
    assert change.k3_after == pytest.approx((a + 2 * b) / 3)
    assert change.length.value == pytest.approx((a + 2 * b) / 3 - (a + b) / 2)
    assert change.peakiness.value == pytest.approx(0.0, abs=1e-12)
    assert change.noise.value == pytest.approx(0.0, abs=1e-12)


def test_two_factors_that_change_at_once_share_their_interaction():
    """One position. The share of uncertain tokens goes from 1/2 to 3/4 while their k3 goes from b
    to c: (3/4 - 1/2) (mean of b and c - a) is of peakiness, (1/2 + 3/4) / 2 (c - b) of noise.
    """
    sizes = 0.1, 0.3, 0.5
    a, b, c = (np.expm1(x) - x for x in sizes)
    given = tokens_of(
        [
            (0, 0, 0.05, 0.1),
            (0, 1, 1.2, 0.3),
            (1, 0, 0.05, 0.1),
            *((1, place, 1.2, 0.5) for place in (1, 2, 3)),
        ],
        groups=10,
    )
    change = change_of_mismatch(*given, step=1)
    assert change.peakiness.value == pytest.approx(0.25 * ((b + c) / 2 - a))
    assert change.noise.value == pytest.approx(0.625 * (c - b))
    assert change.length.value == pytest.approx(0.0, abs=1e-12)
    total = change.length.value + change.peakiness.value + change.noise.value
    assert total == pytest.approx(change.k3_after - change.k3_before)


def test_few_groups_have_no_interval():
    given = tokens_of([(0, 0, 0.5, 0.1), (1, 0, 0.5, 0.2)], groups=7)
    assert change_of_mismatch(*given, step=1) is None


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("phases", "factor"),
    [
        ({"noise": (0.1, 0.3)}, "noise"),
        ({"length": (40, 300), "late": 1.5}, "length"),
        ({"sharpness": (2.0, 0.7)}, "peakiness"),
    ],
)
def test_what_changed_is_named(phases, factor, seed):
    change = changed(seed, **phases)
    assert change.changed_at == 4
    share = shares(change)
    assert max(share, key=share.get) == factor
    assert share[factor] == pytest.approx(1.0, abs=0.5)
    one = getattr(change, factor)
    assert 0.0 < one.low < one.value < one.high


def test_half_noise_and_half_peakiness():
    share = shares(changed(sharpness=(1.5, 0.7), noise=(0.1, 0.2)))
    assert 0.3 < share["noise"] < 0.7
    assert 0.3 < share["peakiness"] < 0.7


@pytest.mark.parametrize("seed", range(6))
def test_no_change_is_found_in_noise(seed):
    case = two_phases((60, 60), (1.0, 1.0), (0.1, 0.1), seed=seed)
    said = diagnose(case).over_steps
    assert said.change is None
    assert said.says.startswith("no change over steps 0 to 7")


def test_the_sentence_has_the_largest_part_first():
    text = sentence(changed(sharpness=(2.0, 0.7)))
    assert re.fullmatch(
        r"\d+% \(\d+% to \d+%\) of the change in k3 at step 4 comes from peakiness, "
        r"-?\d+% from noise on similar tokens, 0% from lengths",
        text,
    )


def made_of(noise: tuple[float, float, float], peakiness: float) -> ChangeOfMismatch:
    """Return a change of 0.01 nats, with shares of the parts given as value, low and high."""
    parts = {"noise": noise, "peakiness": (peakiness,) * 3, "length": (0.0, 0.0, 0.0)}
    values = {
        name: MetricValue(value=0.01 * value, low=0.01 * low, high=0.01 * high)
        for name, (value, low, high) in parts.items()
    }
    return ChangeOfMismatch(changed_at=5, k3_before=0.0, k3_after=0.01, k3_error=0.001, **values)


def test_no_factor_has_more_than_all_of_the_change_and_an_uncertain_one_is_not_named():
    assert sentence(made_of((1.02, 0.96, 1.09), -0.02)).startswith("100% (96% to 100%) of the")
    assert sentence(made_of((0.99, -0.01, 2.0), 0.01)).startswith("what makes k3 change at step 5")
    assert sentence(made_of((1.5, 1.2, 1.8), -0.5)).startswith("150% (120% to 180%) of the")
