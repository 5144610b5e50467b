"""Numbers have the digits that their interval supports."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.formats import (
    after_colon,
    capitalised,
    duration,
    from_to,
    listed,
    measured,
    number,
    percentage,
    plural,
    with_interval,
)
from rcdiag.pages.ticks import plain
from rcdiag.results import MetricValue

FINITE = st.floats(-1e9, 1e9, allow_subnormal=False)


def triple(value: float | None, low: float | None, high: float | None) -> MetricValue:
    return MetricValue(value=value, low=low, high=high)


def read(text: str) -> float:
    return float(text.replace(",", ""))


@pytest.mark.parametrize(
    ("ends", "written"),
    [
        ((0.0252, 0.0213, 0.032), "0.025 (0.021 to 0.032)"),
        ((0.99999911, 0.9999989, 0.99999934), "1.0000 (1.0000 to 1.0000)"),
        ((5.46e-5, 4.98e-5, 6.21e-5), "5.5e-05 (5.0e-05 to 6.2e-05)"),
        ((8.5e-5, 5.0e-5, 1.23e-4), "8.5e-05 (5.0e-05 to 1.23e-04)"),
        ((0.00093, 0.000893, 0.000977), "0.000930 (0.000893 to 0.000977)"),
        ((1.44e-17, -1e-17, 2e-17), "0"),
        ((203_000.0, 29_200.0, None), "200,000 (from 30,000)"),
        ((0.272, None, 0.504), "0.27 (up to 0.50)"),
        ((2.6e-5, 0.0, 0.0155), "0.00003 (0 to 0.015)"),
        ((0.0151, 0.0151, 0.0151), "0.0151"),
        ((0.5, None, None), "0.5"),
        ((None, None, None), "n/a"),
    ],
)
def test_value_and_interval_share_their_last_decimal(ends, written):
    assert with_interval(triple(*ends)) == written


@given(st.lists(FINITE, min_size=3, max_size=3, unique=True))
def test_rounding_moves_value_and_ends_by_a_tenth_of_the_interval_at_most(numbers):
    low, value, high = sorted(numbers)
    written, interval = measured(triple(value, low, high))
    if not interval:
        return  # of rounding noise
    allowed = 0.05 * (high - low) + 1e-4 * max(map(abs, numbers)) + 1e-12
    shown = [read(interval.split(" to ")[0]), read(written), read(interval.split(" to ")[1])]
    for exact, text in zip((low, value, high), shown, strict=True):
        assert abs(exact - text) <= allowed * 1.001


@given(st.lists(FINITE, min_size=3, max_size=3, unique=True))
def test_no_number_has_more_than_five_significant_digits(numbers):
    low, value, high = sorted(numbers)
    written, _ = measured(triple(value, low, high))
    digits = written.split("e")[0].replace(",", "").replace(".", "").lstrip("-0")
    if abs(value) < 1e5:
        assert len(digits) <= 5


@given(FINITE)
def test_a_number_without_an_interval_is_close_to_its_text(value):
    assert math.isclose(read(number(value)), value, rel_tol=6e-3, abs_tol=1e-12)


@pytest.mark.parametrize(
    ("low", "value", "high", "written"),
    [
        (0.0002, 0.02, 6.1, "0.0002 to 6.1"),
        (-6.1, -0.02, -0.0002, "-6.1 to -0.0002"),
        (3e-8, 0.02, 6.1, "3e-08 to 6.1"),
        (-0.0002, 0.02, 6.1, "0.0 to 6.1"),
    ],
)
def test_an_interval_without_0_has_no_end_at_0(low, value, high, written):
    assert measured(MetricValue(value=value, low=low, high=high))[1] == written


def test_shares_near_0_and_1_are_not_written_as_powers():
    assert percentage(-1.55e-7) == ">-0.01%"
    assert percentage(3e-6) == "<0.01%"
    assert percentage(0.999999) == "99.9999%"


def test_counts_of_one_are_singular_and_others_plural():
    assert [plural(count, "sequence") for count in (0, 1, 2304)] == [
        "0 sequences",
        "1 sequence",
        "2,304 sequences",
    ]
    assert plural(2, "batch", "batches") == "2 batches"


@pytest.mark.parametrize(
    ("first", "last", "text"),
    [
        (9.5e-5, 1.2e-4, "9.5e-05 to 1.2e-04"),
        (0.17, 0.2, "0.17 to 0.2"),
        (3e-5, 0.2, "3e-05 to 0.2"),
        (0.0, 240.4, "0 to 240"),
        (1.41e-5, 1.43e-5, "1.41e-05 to 1.43e-05"),
        (0.9997, 0.9951, "1 to 0.995"),
        (240.2, 241.9, "240 to 242"),
        (1.0, 1.0 + 1e-9, "1"),
    ],
)
def test_two_estimates_are_in_one_notation(first, last, text):
    assert from_to(first, last) == text


def test_millions_are_written_out():
    assert number(1.234e6) == "1,230,000"
    assert measured(MetricValue(value=2e6, low=1.5e6, high=2.5e6))[1] == "1,500,000 to 2,500,000"
    assert percentage(12.344) == "1,230%"
    assert plain(1e6) == "1,000,000"


@pytest.mark.parametrize(
    ("names", "most", "text"),
    [
        ([], 1, ""),
        (["a"], 1, "a"),
        (["a", "b", "c"], 1, "a and 2 more"),
        (["a", "b", "c"], 2, "a, b and 1 more"),
        (["a", "b"], 2, "a, b"),
    ],
)
def test_the_first_names_are_listed_with_the_number_of_the_others(names, most, text):
    assert listed(names, most) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (89.0, "89 s"), (100.0, "2 min"), (6000.0, "1 h 40 min")],
)
def test_a_duration_has_the_units_of_its_size(seconds, text):
    assert duration(seconds) == text


def test_the_first_letter_of_a_sentence_unless_its_word_is_a_name() -> None:
    assert capitalised("dump a step") == "Dump a step"
    assert capitalised("vLLM writes it") == "vLLM writes it"
    assert after_colon("The two sides differ.") == "the two sides differ."
    assert after_colon("A key moves.") == "a key moves."
    for sentence in ("KL rises.", "`k3_kl` rises.", "E[ratio] is 1.", "SGLang writes it.", ""):
        assert after_colon(sentence) == sentence
