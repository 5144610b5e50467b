"""The choice of verl's guide, and its evaluation on the data."""

from __future__ import annotations

import pytest

from rcdiag.results import MetricValue
from rcdiag.results.sweep import Candidate, Recommendation
from rcdiag.usecases.sweep.candidates import CANDIDATES
from rcdiag.usecases.sweep.guide import by_length, by_severity, guide_sentence


def candidate(name: str, efficiency: float | None = 1.0, refused: str = "") -> Candidate:
    return Candidate(
        name=name,
        family=CANDIDATES[name].family,
        bounds=CANDIDATES[name].bounds,
        efficiency=MetricValue(value=efficiency),
        refused=[refused] if refused else [],
        rank=None,
        within_error_of_best=False,
    )


def advice(choice: str | None, *candidates: Candidate, answer: str = "take", near=()):
    return Recommendation(
        answer=answer,
        choice=choice,
        indistinguishable=list(near),
        reasons=[],
        method="",
        candidates=list(candidates),
    )


def said(recommendation: Recommendation, k3: float, median: float) -> str:
    sentence = guide_sentence(recommendation, MetricValue(value=k3), median)
    assert sentence is not None
    return sentence


def test_severity_by_the_ends_of_the_guides_range_of_k3():
    assert [by_severity(k3)[0] for k3 in (0.0009, 0.001, 0.01, 0.011)] == [
        "negligible",
        "moderate",
        "moderate",
        "severe",
    ]
    assert [by_length(median)[0] for median in (999, 1000)] == ["short", "long"]
    names = {by_severity(k3)[1] for k3 in (0.0, 0.005, 1.0)} | {by_length(n)[1] for n in (1, 1e4)}
    assert names <= set(CANDIDATES)


def test_without_a_mismatch_the_length_recommends_nothing():
    sentence = said(advice("none", candidate("none")), 1e-5, 5000)
    assert sentence == (
        "verl's guide names no correction for a negligible mismatch; k3_kl 1e-05; "
        "the data say no correction too"
    )


def test_the_error_of_its_candidate_is_compared_with_the_choice():
    both = (candidate("token_tis_2", 0.5), candidate("seq_tis_2", 1.0))
    sentence = said(advice("seq_tis_2", *both), 0.005, 80)
    assert sentence.startswith(
        "verl's guide names token_tis_2 for a moderate mismatch, seq_tis_2 for short responses; "
        "k3_kl 0.005, median 80 tokens; "
    )
    assert "token_tis_2 has 2 times the error of seq_tis_2" in sentence
    assert sentence.endswith("the data say seq_tis_2 too")


def test_a_refused_candidate_has_its_reason_and_an_equal_one_is_noted():
    long = "geo_rs_0.999_1.001_token_tis_2"
    candidates = (
        candidate("none"),
        candidate("seq_mis_0.5_2"),
        candidate(long, refused="keeps 21.0% of the sequences, below 70%"),
    )
    sentence = said(advice("none", *candidates, near=["none", "seq_mis_0.5_2"]), 0.2, 4000)
    assert "the data cannot distinguish seq_mis_0.5_2 from no correction" in sentence
    assert f"{long} is refused here: keeps 21.0% of the sequences, below 70%" in sentence


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("fix-the-cause", "it does not check whether the recorded policy sampled: here it did not"),
        ("cannot-distinguish", "the data cannot distinguish candidates"),
    ],
)
def test_without_a_choice_the_reason_is_given(answer, says):
    assert said(advice(None, answer=answer), 0.02, 80).endswith(f"tokens; {says}")


def test_without_a_kl_there_is_no_sentence():
    assert guide_sentence(advice("none"), MetricValue(value=None), 80) is None
