"""Evidence does not claim more than its number shows."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.judge import diagnose
from rcdiag.diagnosis.validity import INVALID
from rcdiag.pages.headline import fact_text
from tests.diagnosis.tables import (
    changed,
    drifted,
    first_tokens_differ,
    judged,
    made,
    plain,
    rerouted,
    tempered,
)


def raw_of_other_weights() -> Case:
    """Make a table whose record has other weights and temperature 1, unlike the sampler."""
    older = drifted(0.5)
    return made(
        changed(lambda logits, state: logits / 0.85, older),
        tempered(0.85),
        older,
        rows=400,
        seed=3,
    )


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_no_tokens_are_sampled_at_such_a_temperature(value):
    """Such values stand for an unknown temperature or for greedy rows."""
    raw = made(plain, tempered(0.7), tempered(0.7), rows=60, temperature=np.full(60, value))
    assert Features(raw).declared.row_temperature is None


def test_other_weights_whose_record_did_not_sample_are_not_correctable():
    """The record also lacks the temperature: E[ratio] is significantly above 1."""
    diagnosis = diagnose(raw_of_other_weights())
    assert diagnosis.verdict == "broken"
    assert Features(raw_of_other_weights()).validity.answer == INVALID


def test_one_deviating_first_token_is_not_a_pattern():
    case = made(rows=64, seed=4)
    far = case.log_probs["old"].copy()
    far[case.start[7]] -= 6.0
    assert Features(case.with_log_probs("old", far)).log_ratios.first_tokens < 2.0
    many = case.log_probs["old"].copy()
    many[case.start[:12]] -= 1.0
    assert Features(case.with_log_probs("old", many)).log_ratios.first_tokens > 4.0


@pytest.mark.parametrize("size", [0.03, 0.06])
def test_evenly_spread_noise_of_two_coarse_engines_is_no_fault(size: float) -> None:
    """The largest 1% of squared normal variates hold about a tenth of the sum."""
    case = made(noise=size, rows=300, seed=8)
    diagnosis = diagnose(case)
    assert diagnosis.causes[0].slug == "engine-noise"
    assert diagnosis.verdict in ("healthy", "correctable")


def test_an_equally_large_difference_in_few_contexts_is_not_noise() -> None:
    case = made(trained=rerouted(0.4, 0.1), rows=300, seed=8)
    assert Features(case).log_ratios.rms < 0.08
    assert "engine-noise" not in [cause.slug for cause in diagnose(case).causes]


def test_names_that_end_in_a_number_do_not_run_into_their_values():
    entry = {"name": "share", "step_4": 0, "bf16_pass": 2, "reads": "older weights"}
    assert fact_text(entry) == "share: step_4 = 0, bf16 pass 2 (older weights)"


def test_a_fault_beside_valid_weights_says_why_they_do_not_help() -> None:
    found = judged(made(plain, first_tokens_differ(2.0), rows=160, seed=5))
    (mean,) = (one for one in found.causes[0].evidence if one["name"] in ("E[ratio]", "kappa"))
    assert (found.verdict, found.causes[0].slug) == ("broken", "context-differs")
    reason = "the recorded distribution sampled, but `old` is a wrong target for weights"
    assert mean["reads"] == reason
    assert found.summary.endswith("Weights would correct towards `old`, which is wrong here.")


def test_a_fault_beside_weights_of_unknown_validity_does_not_say_who_sampled() -> None:
    found = judged(made(plain, first_tokens_differ(2.0), rows=20, seed=6))
    (mean,) = (one for one in found.causes[0].evidence if one["name"] == "E[ratio]")
    assert found.verdict == "broken"
    assert mean["reads"].startswith("too wide to tell whether the recorded distribution sampled")


def test_the_ess_of_rows_drawn_from_a_larger_table_says_that_it_is_of_these() -> None:
    case = made(trained=rerouted(0.4, 0.1), rows=300, seed=8)
    assert "of 300 sequences" in judged(case).summary
    drawn = replace(case, drawn=" in the 300 rows diagnosed")
    assert "of 300 diagnosed sequences" in judged(drawn).summary
