"""The mismatch by turn: a turn of multi-turn responses with a larger mismatch is found."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.judge import diagnose
from tests.diagnosis.tables import changed, made, noisy, with_tool_turns

TOOLS = list(range(12, 130, 17))[:7]  # starts of seven tool texts of 5 tokens each


def eight_turns(loud: int | None, size: float = 0.4, *, seed: int = 0, one_row: bool = False):
    """Make responses of eight turns; in one the trainer's logits differ by `size` nats."""
    starts = [0, *(first + 5 for first in TOOLS), 200]

    def off(logits, state):
        inside = loud is not None and starts[loud - 1] <= state.position < starts[loud]
        scale = np.full((len(logits), 1), size if inside else 0.0)
        if one_row:
            scale[1:] = 0.0
        return logits + scale * state.rng.standard_normal(logits.shape)

    case = made(noisy(0.02), changed(off, noisy(0.02)), length=132, seed=seed)
    for first in TOOLS:
        case = with_tool_turns(case, 0.0, first=first, size=5)
    return case


@pytest.mark.parametrize("loud", [1, 5, 8])
def test_the_turn_with_the_larger_mismatch_is_found(loud):
    found = Features(eight_turns(loud)).by_turn
    assert found.number.tolist() == list(range(1, 9))
    assert found.outliers.tolist() == [loud]
    assert found.rms[loud - 1] > 5 * np.median(found.rms)


def test_the_rms_is_that_of_the_median_row():
    case = eight_turns(None)
    features = Features(case)
    first = (case.position < TOOLS[0])[case.tokens.place]
    squares = np.bincount(case.tokens.owner[first], features.log_ratios.values[first] ** 2)
    assert features.by_turn.rms[0] == pytest.approx(np.median(np.sqrt(squares / TOOLS[0])))


@pytest.mark.parametrize("seed", range(5))
def test_neither_noise_nor_one_row_makes_an_outlier_turn(seed):
    assert Features(eight_turns(None, seed=seed)).by_turn.outliers.tolist() == []
    one = eight_turns(4, size=8.0, seed=seed, one_row=True)
    assert Features(one).by_turn.outliers.tolist() == []


def test_a_single_turn_has_no_outlier():
    assert Features(made(noisy(0.02), noisy(0.4))).by_turn.outliers.tolist() == []


def test_the_cause_names_the_turn():
    cause = diagnose(eight_turns(5)).causes[0]
    assert cause.slug == "forwards-differ"
    assert "most in turn 5 of the responses" in cause.message
    assert "context-differs" in cause.also_possible
