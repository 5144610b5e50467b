"""Change points by least squares: shapes, intervals, and steps with different errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.diagnosis.change_points import change_points, jump_gains, noise_of

NOISE = 0.1


def noisy(shape: np.ndarray, seed: int = 0) -> np.ndarray:
    return shape + np.random.default_rng(seed).normal(0.0, NOISE, len(shape))


def found(y: np.ndarray, error: float = NOISE, fewest: int = 1) -> list[tuple[int, str]]:
    points = change_points(y, np.full(len(y), error), 0.5, fewest)
    return [(point.at, point.shape) for point in points]


@given(
    st.lists(
        st.tuples(st.floats(-5, 5), st.floats(0.1, 3.0)),
        min_size=2,
        max_size=20,
    )
)
def test_gain_is_the_reduction_of_weighted_squares_by_two_means(steps) -> None:
    y, weight = map(np.array, zip(*steps, strict=True))

    def left(some: slice) -> float:
        mean = np.average(y[some], weights=weight[some])
        return float((weight[some] * (y[some] - mean) ** 2).sum())

    gains = jump_gains(y, weight)
    assert gains[0] == 0.0
    for at in range(1, len(y)):
        expected = left(slice(None)) - left(slice(None, at)) - left(slice(at, None))
        assert gains[at] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_stairs_are_jumps_and_a_slope_is_not(seed: int) -> None:
    stairs = np.repeat([0.0, 2.0, 4.0], [6, 5, 9])
    assert found(noisy(stairs, seed)) == [(6, "jump"), (11, "jump")]
    ((_, shape),) = found(noisy(np.linspace(0.0, 4.0, 20), seed))
    assert shape == "creep"


def test_levels_are_those_of_the_segments_around_a_jump() -> None:
    y = np.repeat([0.0, 2.0, 5.0], [4, 4, 4])
    first, second = change_points(y, np.full(12, NOISE), 0.5, 1)
    assert (first.levels(10.0 * y), second.levels(y)) == ((0.0, 20.0), (2.0, 5.0))
    assert (first.begin, first.settled, first.end) == (0, 4, 8)
    assert first.low <= 4 <= first.high


def test_a_drift_may_begin_with_a_jump() -> None:
    y = np.concatenate([np.zeros(20), 10.0 + np.linspace(0.0, 2.0, 20)])
    points = change_points(y, np.full(40, NOISE), 0.5, 2)
    assert [(point.at, point.shape) for point in points] == [(20, "jump"), (20, "creep")]
    jump, drift = (point.levels(y) for point in points)
    assert jump == pytest.approx((0.0, 11.0), abs=0.3)
    assert drift == pytest.approx((10.0, 11.8), abs=0.4)


def test_a_step_with_a_large_error_makes_no_change() -> None:
    y = np.array([0.0, 0.0, 0.0, 3.0])
    sure, unsure = np.full(4, NOISE), np.array([NOISE, NOISE, NOISE, 2.0])
    assert [point.at for point in change_points(y, sure, 0.5, 1)] == [3]
    assert change_points(y, unsure, 0.5, 1) == []
    assert change_points(y, sure, 3.5, 1) == []  # below the minimal relevant change


def test_a_jump_and_a_drift_do_not_count_as_noise() -> None:
    size = noise_of(noisy(np.zeros(400)))
    assert size == pytest.approx(NOISE, rel=0.15)
    jump, drift = np.repeat([0.0, 5.0], 200), np.linspace(0.0, 5.0, 400)
    assert noise_of(noisy(jump)) == pytest.approx(size, rel=0.05)
    assert noise_of(noisy(drift)) == pytest.approx(size, rel=0.05)


def test_no_change_if_errors_differ_by_more_than_float64_can_represent() -> None:
    """This happens if a step has log-ratios of some thousand nats."""
    assert change_points(np.array([1.0, 8e5]), np.array([1e-6, 8e5]), 0.05, fewest=1) == []


@pytest.mark.parametrize("step", [np.inf, -np.inf, 1e200])
def test_a_step_with_an_overflowing_square_raises_no_error(step: float) -> None:
    for place in (0, 5, 11):
        y = np.zeros(12)
        y[place] = step
        assert isinstance(change_points(y, np.full(12, NOISE), 0.5, fewest=1), list)
        assert isinstance(change_points(y[:2], np.full(2, NOISE), 0.5, fewest=1), list)


@pytest.mark.parametrize(("at", "expected"), [(1, [1]), (38, [38]), (39, [])])
def test_a_jump_near_an_end_is_at_the_first_step_that_jumped(at: int, expected: list[int]) -> None:
    """A single last step may be an outlier, and is no change; it is not one a step earlier either.

    Its neighbour and it together fit a jump of half the size at the step before, and a drift that
    begins there.
    """
    for seed in range(20):
        y = 0.15 * np.random.default_rng(seed).standard_normal(40)
        y[at:] += 3.4
        assert [point.at for point in change_points(y, None, 0.4)] == expected
