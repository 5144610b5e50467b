"""The ladder: parts of the mismatch against their definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.formats import share
from rcdiag.results import Ladder, NoiseFloor
from rcdiag.usecases.compare.ladder import ladder
from tests.builders import Lists, flat
from tests.usecases.compare.tables import base_log_probs, distances, known, moments, robust, shifted

BASE = base_log_probs(30)
POLICIES = {
    "a": BASE,
    "b": shifted(BASE, 0.05, 1),
    "c": shifted(BASE, 0.2, 2),
    "d": shifted(BASE, 0.1, 3),
}
ROWS = np.repeat(np.arange(30), [len(row) for row in BASE])

LOG_PROB = st.floats(-20.0, 0.0, allow_subnormal=False)


@st.composite
def several(draw) -> dict[str, list[list[float]]]:
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    count = draw(st.integers(2, 5))
    return {
        f"p{index}": [draw(st.lists(LOG_PROB, min_size=n, max_size=n)) for n in lengths]
        for index in range(count)
    }


def of(
    policies: Mapping[str, Lists], order: Sequence[str], floor: NoiseFloor | None = None, **rows
) -> Ladder:
    return ladder(moments(policies, **rows), distances(policies, **rows), order, floor)


@given(several())
def test_parts_add_up_to_k2_of_both_ends(policies):
    result = of(policies, list(policies))
    first, *_, last = (flat(rows) for rows in policies.values())
    whole = np.mean((last - first) ** 2) / 2
    parts = [known(rung.contribution) for rung in result.rungs]
    assert sum(parts) == pytest.approx(whole, rel=1e-12, abs=1e-12 * max(map(abs, parts)))
    assert result.whole.value == pytest.approx(whole, rel=1e-12)


@given(st.permutations(list(POLICIES)))
def test_parts_add_up_in_every_order_of_the_policies(order):
    result = of(POLICIES, order)
    ends = flat(POLICIES[order[-1]]) - flat(POLICIES[order[0]])
    assert sum(known(r.contribution) for r in result.rungs) == pytest.approx(np.mean(ends**2) / 2)
    assert sum(known(r.share) for r in result.rungs) == pytest.approx(1.0)


def test_a_rung_is_half_the_mean_product_of_its_step_and_the_whole():
    result = of(POLICIES, list("abcd"))
    whole = flat(POLICIES["d"]) - flat(POLICIES["a"])
    for rung in result.rungs:
        step = flat(POLICIES[rung.end]) - flat(POLICIES[rung.start])
        product = step * whole / 2
        part = rung.contribution
        expected = robust(product, np.ones_like(product), ROWS)
        assert (part.value, part.low, part.high) == pytest.approx(expected, rel=1e-9)
        expected = robust(product, whole**2 / 2, ROWS)
        share = rung.share
        assert (share.value, share.low, share.high) == pytest.approx(expected, rel=1e-9)
        assert rung.k2.value == pytest.approx(np.mean(step**2) / 2, rel=1e-12)
        assert rung.log_ratio_mean.value == pytest.approx(step.mean(), rel=1e-9)


def test_rungs_join_neighbours_in_the_order_given():
    result = of(POLICIES, list("dacb"))
    assert result.policies == list("dacb")
    assert [(r.start, r.end) for r in result.rungs] == [("d", "a"), ("a", "c"), ("c", "b")]


def test_a_step_that_reverses_another_has_a_negative_part():
    overshot = [
        [value + 2 * (b - value) for value, b in zip(*rows, strict=True)]
        for rows in zip(BASE, POLICIES["b"], strict=True)
    ]
    overshot = [[min(value, 0.0) for value in row] for row in overshot]
    result = of({"a": BASE, "far": overshot, "b": POLICIES["b"]}, ["a", "far", "b"])
    out, back = (rung.share.value for rung in result.rungs)
    assert (out, back) == (pytest.approx(2.0), pytest.approx(-1.0))


def test_equal_ends_have_no_share_rather_than_a_number():
    result = of({"a": BASE, "b": BASE}, ["a", "b"])
    assert (result.whole.value, result.rungs[0].contribution.value) == (0.0, 0.0)
    assert result.rungs[0].share.value is None


def test_the_only_step_that_differs_has_the_interval_of_the_whole():
    result = of({"a": BASE, "b": POLICIES["b"], "same": POLICIES["b"]}, ["a", "b", "same"])
    moved, same = result.rungs
    assert moved.contribution == result.whole
    assert (moved.share.value, same.contribution.value) == (1.0, 0.0)


def test_without_a_noise_floor_nothing_is_said_about_it():
    assert [r.at_floor for r in of(POLICIES, list("abc")).rungs] == [None] * 2


def test_only_steps_within_the_noise_floor_are_at_the_floor():
    policies = {
        **POLICIES,
        "b_again": shifted(POLICIES["b"], 0.02, 9),
        "b_near": shifted(POLICIES["b"], 0.01, 10),
    }
    k2 = distances(policies)["b", "b_again"]
    floor = NoiseFloor(policy="b", repeat="b_again", k2=k2, log_ratio_abs_max=0.1)
    result = of(policies, ["a", "b", "b_near"], floor)
    assert [rung.at_floor for rung in result.rungs] == [False, True]


def test_a_share_with_an_interval_wider_than_half_of_the_whole_is_unknown():
    """Two steps cancel: the whole is much smaller than both, so shares are undetermined."""
    back = shifted(BASE, 0.001, 4)
    result = of({"a": BASE, "c": POLICIES["c"], "back": back}, ["a", "c", "back"])
    for rung in result.rungs:
        assert rung.share.low is not None
        assert rung.share.high is not None
        assert rung.share.high - rung.share.low > 0.5
        assert rung.share.level == "unknown"
        assert share(rung.share) == "unknown"


def test_a_share_that_its_interval_tells_is_shown():
    result = of(POLICIES, ["a", "b", "c"])
    for rung in result.rungs:
        assert rung.share.level is None
        assert share(rung.share).endswith("%")


def test_a_share_without_an_interval_is_unknown_except_of_a_single_step():
    one_group = {"group": [0] * 30}
    several = of(POLICIES, ["a", "b", "c"], **one_group)
    assert {rung.share.level for rung in several.rungs} == {"unknown"}
    (only,) = of(POLICIES, ["a", "c"], **one_group).rungs
    assert (only.share.value, only.share.level) == (1.0, None)
