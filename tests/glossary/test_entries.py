"""Entries are complete and correct."""

from __future__ import annotations

import math

import pytest

from rcdiag.diagnosis.causes.cause_words import cause_words
from rcdiag.errors import RcdiagError
from rcdiag.glossary import explain, names
from rcdiag.statistics.metrics import METRICS
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.by_generation import grouped, label
from rcdiag.trainers.verl.correction import OPTIONS
from tests.two_rows import LOG_RATIOS, TOY

TOKENS = [value for row in LOG_RATIOS for value in row]


def test_every_metric_has_all_that_a_reader_needs():
    for name in METRICS:
        result = explain(name)
        assert result.formula == METRICS[name].formula
        assert result.direction
        assert result.units
        assert result.example
        assert METRICS[name].says in result.what
        guide = METRICS[name].guide
        if guide is not None:
            assert guide.source in (result.healthy or "")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("k3_kl", sum(math.exp(d) - 1 - d for d in TOKENS) / 5),
        ("k1_kl", -sum(TOKENS) / 5),
        ("ratio_outside_2", 2 / 5),
        ("log_ppl_diff_max", 0.85),
    ],
)
def test_examples_of_metrics_are_correct(name, value):
    assert explain(name).example == f"{TOY}: {value:.4g}"


def test_examples_of_keys_differ_by_generation():
    raw = sum(math.exp(d) for d in TOKENS) / 5
    applied = sum(min(math.exp(d), 2.0) for d in TOKENS) / 5
    output = explain("rollout_is_mean").example
    assert f"{raw:.4g} in verl-0.6.0 to verl-0.7.1" in output
    assert f"{applied:.4g} in verl-0.8.0, verl-0.9" in output
    # One row has mean ratio 2.16; one of the three rows has no token.
    output = explain("rollout_is_seq_fraction_high").example
    assert "0.3333 in verl-0.6.0 to verl-0.7.1, verl-0.9; 0 in verl-0.8.0" in output


def test_examples_of_options_are_correct():
    """By hand: -log_ratio within [ln 0.6, ln 1.6] keeps only 0.1 and -0.1."""
    assert explain("kept_tokens").example.endswith(": 2")
    assert explain("kept_tokens_by_documents").example.endswith(": 3")
    assert "code [0.625, 1.667], documents [0.6, 1.6]" in explain("accepted_ratios").example


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.endswith("k1")])
def test_k1_options_show_both_readings(option):
    result = explain(option)
    assert "[1/upper, 1/lower]" in result.direction
    assert "documents say [lower, upper]" in result.direction


def test_a_key_is_explained_whatever_its_prefix():
    whole = explain("rollout_corr/rollout_rs_token_k1_fraction_high")
    for prefix in ("", "actor/rollout_corr/"):
        other = explain(f"{prefix}rollout_rs_token_k1_fraction_high")
        assert (other.what, other.generations) == (whole.what, whole.generations)
    assert "small ratio" in whole.what
    assert explain("train/mis_kl").generations == explain("mismatch/mismatch_kl").generations
    assert "micro-batch" in explain("train/mis_kl").what


def test_a_metric_comes_before_a_key_of_the_same_name():
    assert explain("k3_kl").kind == "metric"
    assert explain("rollout_corr/k3_kl").kind != "metric"
    assert "rollout_corr/k3_kl" in explain("k3_kl").see


def test_a_preset_is_described_for_each_generation():
    result = explain("ppo_is_bypass").generations
    assert result["verl-0.6.1"].startswith("token weights truncated at 2")
    assert result["verl-20251203"].startswith("no weights")
    assert "drops a sequence" in explain("decoupled_geo_rs").generations["verl-0.6.1 to verl-0.7.0"]


def test_every_cause_has_symptoms_and_fixes():
    for slug, words in cause_words().items():
        result = explain(slug)
        assert result.kind == "cause"
        assert words.says in result.what
        assert {"shows", "similar", "fix", "verdict", "at fault"} <= result.parts.keys()
        assert all(line in result.parts["fix"] for line in words.mend)
        assert set(result.generations.values()) == set(words.mend_in.values())
        assert {*words.look_alikes, *words.umbrella} == set(result.see)
        assert list(result.links.values()) == [link.url for link in words.links]


@pytest.mark.parametrize("name", ["K3_KL", "few_clusters", "Batch-Normalisation", " icepop "])
def test_case_dashes_and_spaces_make_no_difference(name):
    assert explain(name)


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("k3kl", "k3_kl"), ("decoupled_token_si", "decoupled_token_is"), ("kapa", "kappa")],
)
def test_an_unknown_name_suggests_the_closest(wrong, near):
    with pytest.raises(RcdiagError, match=wrong) as refused:
        explain(wrong)
    assert near in refused.value.hint


def test_ranges_of_generations_are_abbreviated():
    assert label(TRAINERS).startswith("verl-20250826 to verl-0.9, slime, trl-1.16")
    assert label(["slime", "verl-0.6.1", "verl-0.6.0"]) == "verl-0.6.0, verl-0.6.1, slime"
    assert grouped({"verl-0.6.0": "a", "slime": "b", "verl-0.7.0": "a"}) == {
        "verl-0.6.0, verl-0.7.0": "a",
        "slime": "b",
    }


def test_names_of_a_kind_are_unique():
    for kind, lines in names().items():
        assert len({name.lower().replace("-", "_") for name in lines}) == len(lines), kind


@pytest.mark.parametrize(
    ("words", "name"), [("effective sequences", "ESS"), ("not observable", "low")]
)
def test_screen_terms_other_than_headings_are_explained(words, name):
    assert explain(words) == explain(name)
