"""Rules: the number that each reads, its bounds, and the resulting verdict."""

from __future__ import annotations

from math import inf, isfinite, nan, nextafter

import numpy as np
import pytest
from msgspec.structs import replace

from rcdiag.corrections.correction import Correction, Weighting
from rcdiag.diagnosis.constraints import JudgedCandidate, refused
from rcdiag.diagnosis.correction_health import correction_level
from rcdiag.diagnosis.rules import RULES, Rule, level, rules_of
from rcdiag.diagnosis.update_health import health
from rcdiag.glossary import explain
from rcdiag.results import MetricValue
from rcdiag.results.guide import Guide
from rcdiag.statistics.pareto import UpperTail
from tests.diagnosis.updates import Given, correction_evidence, evidence
from tests.results.worked import sweep_row

EVIDENCE = {"health": evidence, "correction": correction_evidence}
OF_UPDATES = {rule.own_name: rule for rule in rules_of("health").values()}
YES_OR_NO = ("loss_defined", "everything_rejected", "double_counting")
WITH_NUMBERS = [
    rule
    for concern in EVIDENCE
    for rule in rules_of(concern).values()
    if rule.own_name not in YES_OR_NO
]


@pytest.mark.parametrize("rule", WITH_NUMBERS, ids=lambda rule: rule.name)
def test_a_rule_reads_its_number_and_changes_level_at_its_bounds(rule):
    name, made = rule.own_name, EVIDENCE[rule.concerns]
    own = name if rule.concerns == "correction" and rule.see == (name,) else rule.name
    upward = rule.guide.warning < rule.guide.error
    for bound, before, at in (
        (rule.guide.warning, "ok", "warning"),
        (rule.guide.error, "warning", "error"),
    ):
        given = made(Given(name, bound))
        assert rule.number(given) == bound
        assert rule.level(given) == at, "a bound belongs to the worse side"
        harmless = nextafter(bound, -inf if upward else inf)
        assert rule.level(made(Given(name, harmless))) == before
        side = "from" if upward else "at or below"
        assert f"{at} {side} {bound:g}" in (explain(own).healthy or "")


def test_concentration_by_lengths_and_advantages_gives_no_finding():
    """Three of a few answers carry 40%, which lengths and advantages alone explain."""
    rule = OF_UPDATES["top_sequences"]
    for plain, top, expected in ((0.4, 0.4, "ok"), (0.4, 0.51, "ok"), (0.4, 0.53, "warning")):
        given = evidence(Given())
        shares = replace(given.shares, top_sequences=top, top_sequences_uncorrected=plain)
        assert rule.level(replace(given, shares=shares)) == expected
    # With one sequence, or in an older document, the share is unknown.
    for plain in (1.0, None):
        shares = replace(given.shares, top_sequences=1.0, top_sequences_uncorrected=plain)
        assert rule.level(replace(given, shares=shares)) == "ok"


def test_values_on_a_bound_have_the_worse_level():
    for rule in RULES.values():
        guide = replace(rule.guide, by_interval=False)
        center = guide.around or 0.0
        if isfinite(guide.error):
            assert level(guide, center + guide.error) == "error"
        if guide.warning != guide.error:
            assert level(guide, center + guide.warning) == "warning"


def test_all_rules_of_health_apply_to_an_update():
    rules = {item.name: item for item in health(evidence(Given())).rules}
    assert set(OF_UPDATES) | {"mismatch_k3", "uncorrected_ess", "kept_share"} <= set(rules)
    for name, rule in rules.items():
        assert rule.level == "ok"
        assert rule.source == OF_UPDATES.get(name, RULES.get(f"correction.{name}")).guide.source
        assert rule.message


def test_weights_beside_a_ppo_ratio_that_corrects_are_a_warning():
    weighted = Correction(Weighting("token", 2.0), mode="bypass", loss="ppo_clip")
    given = correction_evidence(Given(), correction=weighted)
    assert correction_level(given) == "warning"
    assert correction_level(correction_evidence(Given(), correction=Correction())) == "ok"
    bypass = Correction(mode="bypass", loss="ppo_clip")
    assert correction_level(correction_evidence(Given(), correction=bypass)) is None


def test_a_loss_that_is_undefined_is_an_error_without_a_number():
    result = health(evidence(Given(), undefined="every token is rejected"))
    assert result.verdict == "error"
    (rule,) = [rule for rule in result.rules if rule.name == "loss_defined"]
    assert rule.value is None
    assert rule.level == "error"
    assert rule.message == "every token is rejected"
    assert result.not_judged == []


def test_the_mismatch_is_no_fault_of_a_preset_that_corrects_it():
    large = Given("mismatch_k3", 1.0)
    assert health(evidence(large)).verdict == "error"
    weighted = Correction(Weighting("token", 2.0))
    corrected = health(evidence(large, correction=correction_evidence(large, correction=weighted)))
    assert corrected.verdict == "ok"
    assert "mismatch_k3" not in {rule.name for rule in corrected.rules}


@pytest.mark.parametrize("level", ["ok", "warning", "error", "unknown"])
def test_a_number_with_a_level_keeps_it_in_a_rule(level):
    """k3 and raw ESS have the level that `score` gives them: one number, one level."""
    judged = MetricValue(value=0.5, level=level)
    mismatch = {"k3_kl": judged, "ess_seq": judged}
    given = evidence(Given(), correction=correction_evidence(Given(), mismatch=mismatch))
    found = {rule.name: rule.level for rule in health(given).rules}
    assert found["mismatch_k3"] == found["uncorrected_ess"] == level
    assert health(given).verdict == ("cannot judge" if level == "unknown" else level)


@pytest.mark.parametrize("value", [None, nan])
def test_the_verdict_is_unknown_without_a_deciding_number(value):
    numbers = {**correction_evidence(Given()).numbers, "ess_seq_applied": value}
    given = evidence(Given(), correction=correction_evidence(Given(), numbers=numbers))
    result = health(given)
    assert result.verdict == "cannot judge"
    assert result.not_judged == ["ess_seq_applied"]


def test_an_added_rule_of_health_is_judged_and_explained():
    rule = Rule(
        name="health.negative_pull",
        says="Share of the pull on tokens whose advantage is negative.",
        guide=Guide(warning=0.5, error=0.9, source="a test"),
        value=lambda e: 0.7,
        message=lambda e: "70% of the pull is on negative advantages",
    )
    with RULES.with_added(rule):
        result = health(evidence(Given()))
        assert result.verdict == "warning"
        assert result.rules[-1].message == "70% of the pull is on negative advantages"
        assert "a test" in explain("health.negative_pull").healthy
    assert "health.negative_pull" not in RULES


def _refusals(
    sequences: int = 1000, above_clamp: int = 0, reward_shift: MetricValue | None = None, **numbers
) -> list[str]:
    """Return the constraints that refuse a candidate with harmless numbers except these."""
    plain = {"keep_length_correlation": 0.0, "clamped_share": 0.0}
    harmless = {"kept_sequence_share": 1.0, "lost_mass": 0.0, "ess_seq_applied": 1.0}
    values = {name: MetricValue(value=numbers.get(name, value)) for name, value in harmless.items()}
    plain = {name: numbers.get(name, value) for name, value in plain.items()}
    shift = reward_shift or MetricValue(value=0.0, low=-0.1, high=0.1)
    result = replace(sweep_row(), **values, **plain, reward_shift=shift)
    return refused(JudgedCandidate(result, sequences, UpperTail.of(np.empty(0)), above_clamp))


def test_a_candidate_without_fault_is_not_refused():
    assert _refusals() == []


@pytest.mark.parametrize(
    ("numbers", "refused"),
    [
        ({"kept_sequence_share": 0.7001}, False),
        ({"kept_sequence_share": 0.7}, True),
        ({"kept_sequence_share": 0.0}, True),
        ({"lost_mass": 0.0999}, False),
        ({"lost_mass": 0.1}, True),
        ({"lost_mass": 0.5}, True),
        ({"lost_mass": nan}, True),
        ({"lost_mass": None}, False),
        ({"ess_seq_applied": 0.0301}, False),
        ({"ess_seq_applied": 0.03}, True),
        ({"ess_seq_applied": None}, True),
        ({"keep_length_correlation": -0.19}, False),
        ({"keep_length_correlation": -0.2}, True),
        ({"keep_length_correlation": None}, False),
        ({"reward_shift": MetricValue(value=0.1, low=0.01, high=0.2)}, True),
        ({"reward_shift": MetricValue(value=-0.1, low=-0.2, high=-0.01)}, True),
        ({"reward_shift": MetricValue(value=0.1, low=0.0, high=0.2)}, False),
        ({"reward_shift": MetricValue(value=0.1)}, False),
        ({"reward_shift": MetricValue(value=None)}, False),
        ({"above_clamp": 3}, False),
        ({"above_clamp": 3, "clamped_share": 0.01}, True),
        ({"above_clamp": 0, "clamped_share": 0.01}, False),
    ],
)
def test_constraints_that_refuse_a_candidate(numbers, refused):
    assert bool(_refusals(**numbers)) == refused


def test_constraints_are_explained_with_their_bounds():
    assert "at or below 0.7" in (explain("constraint.acceptance").healthy or "")
    assert set(explain("refused").see) == set(rules_of("constraint"))
