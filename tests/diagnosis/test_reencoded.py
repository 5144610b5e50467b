"""A table that was re-encoded from text is diagnosed by the counts of its conversion."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import rcdiag
from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.judge import diagnose
from tests.diagnosis.tables import counted, made, write

FACTS = {
    "rows": 200,
    "rows_decoding_to_their_text": 170,
    "rows_with_token_count": 100,
    "rows_with_the_same_token_count": 95,
}


def case_of(facts: Any) -> Case:
    return replace(made(), metadata={"reencoded": facts})


@pytest.mark.parametrize("policies", [("rollout", "old"), ("rollout",)])
def test_the_share_of_rows_with_other_tokens_is_the_evidence(policies):
    case = case_of(FACTS)
    case = replace(case, log_probs={name: case.log_probs[name] for name in policies})
    if len(policies) == 1:
        case = replace(case, trainer=None)
    diagnosis = diagnose(counted(case))
    first = diagnosis.causes[0]
    assert (first.slug, first.verdict, diagnosis.verdict) == ("retokenised", "broken", "broken")
    assert first.share_of_rows == pytest.approx(0.15)
    assert [entry["share"] for entry in first.evidence] == pytest.approx([0.15, 0.05])
    assert "at least 15% of the responses have other tokens" in first.message


def test_a_different_token_count_alone_is_evidence():
    facts = {**FACTS, "rows_decoding_to_their_text": 200, "rows_with_the_same_token_count": 40}
    first = diagnose(counted(case_of(facts))).causes[0]
    assert (first.slug, first.share_of_rows) == ("retokenised", pytest.approx(0.6))


@pytest.mark.parametrize(
    "facts",
    [
        {**FACTS, "rows_decoding_to_their_text": 198, "rows_with_the_same_token_count": 100},
        {"rows": 0, "rows_decoding_to_their_text": 0},
        {"rows": 5, "rows_decoding_to_their_text": 9},
        {"rows": "many", "rows_decoding_to_their_text": None},
        {},
        "text",
        None,
    ],
)
def test_no_cause_without_rows_with_other_tokens(facts):
    slugs = [cause.slug for cause in diagnose(counted(case_of(facts))).causes]
    assert "retokenised" not in slugs


def test_a_command_names_it(tmp_path):
    result = rcdiag.score(write(case_of(FACTS), tmp_path / "scored.parquet"))
    assert result.diagnosis is not None
    assert result.diagnosis.causes[0].slug == "retokenised"
