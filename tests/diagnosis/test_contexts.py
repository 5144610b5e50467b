"""Truncated prompts and visible padding are detected by the lengths of the prompts."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

import rcdiag
from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.judge import diagnose
from rcdiag.usecases.case_of_table import read_case
from tests.builders import write_table
from tests.diagnosis.tables import first_tokens_differ, made, plain

ROWS, GROUP = 128, 4
ELSEWHERE = made(plain, first_tokens_differ(1.0), rows=ROWS, length=40, group_of=GROUP)
RANDOM = np.random.default_rng(7)
LENGTHS = np.repeat(RANDOM.integers(10, 90, ROWS // GROUP), GROUP)
LIMIT = 40
BATCHES = LENGTHS.reshape(-1, 16)
PADDED = (BATCHES.max(axis=1, keepdims=True) > BATCHES).ravel()


def other_context(rows: np.ndarray, lengths: np.ndarray | None = LENGTHS) -> Case:
    """Make a table in which the two sides saw different contexts in some rows."""
    rollout = ELSEWHERE.log_probs["rollout"]
    rounding = np.random.default_rng(1).normal(0.0, 0.005, len(rollout))
    same_context = np.minimum(rollout + rounding, -1e-6)
    old = np.where(rows[ELSEWHERE.owner], ELSEWHERE.log_probs["old"], same_context)
    facts = replace(ELSEWHERE.facts, prompt_length=lengths)
    return replace(ELSEWHERE.with_log_probs("old", old), facts=facts)


def first_cause(case: Case):
    return diagnose(case).causes[0]


def test_a_mismatch_that_falls_along_the_response_may_be_that_of_another_prompt():
    """It is 0.4 nats rms at first and falls by half in 20 tokens; an even one is no such sign."""
    case = made(rows=160, length=60)
    noise = np.random.default_rng(2).normal(0.0, 0.4, len(case.position))
    for size, named in ((0.5 ** (case.position / 20), True), (np.full(len(noise), 0.5), False)):
        old = np.minimum(case.log_probs["rollout"] + noise * size, -1e-4)
        diagnosis = diagnose(case.with_log_probs("old", old))
        assert (diagnosis.causes[0].slug == "context-differs") == named
        assert not named or diagnosis.verdict == "inconclusive"


def test_a_prompt_limit_separates_the_rows():
    cause = first_cause(other_context(LENGTHS > LIMIT))
    assert (cause.slug, cause.verdict) == ("prompt-truncated", "broken")
    assert cause.share_of_rows == pytest.approx(np.mean(LENGTHS > LIMIT), abs=1e-4)
    below, above = LENGTHS[LENGTHS <= LIMIT].max(), LENGTHS[LENGTHS > LIMIT].min()
    assert f"prompts of up to {below} tokens agree" in cause.message
    assert f"limit of about {below} to {above - 1} tokens" in cause.message


def test_thousands_of_prompts_on_both_sides_of_the_limit_do_not_overflow():
    many = made(plain, first_tokens_differ(1.0), rows=4000, length=3, group_of=1)
    rollout, lengths = many.log_probs["rollout"], np.arange(4000) % 80
    old = np.where((lengths > LIMIT)[many.owner], rollout - 1.0, rollout)
    facts = replace(many.facts, prompt_length=lengths)
    case = replace(many.with_log_probs("old", old), facts=facts)
    assert "prompt-truncated" in {cause.slug for cause in diagnose(case).causes}


def test_one_short_prompt_among_few_lowers_the_confidence():
    """By chance the one deviating prompt of 16 is the shortest in one table of 16."""
    rows = np.arange(ROWS) < 64
    lengths = np.where(LENGTHS[:64].min() == LENGTHS, 5, 50 + np.arange(ROWS) // GROUP)
    case = other_context(lengths > 5, lengths).take(rows)
    sure = first_cause(other_context(LENGTHS > LIMIT)).confidence
    assert first_cause(case).slug == "prompt-truncated"
    assert first_cause(case).confidence < sure
    # Many rows of that prompt do not raise the confidence if the table has no groups.
    unnamed = replace(case, facts=replace(case.facts, group=None))
    assert first_cause(unnamed).slug == "prompt-truncated"
    assert first_cause(unnamed).confidence < sure


def test_padded_rows_differ_and_the_longest_of_each_batch_agree():
    cause = first_cause(other_context(PADDED))
    assert (cause.slug, cause.verdict) == ("attention-to-padding", "broken")
    assert "In batches of 16 rows" in cause.message
    assert "position-ids" in cause.also_possible


NARROW = {"prompt-truncated", "attention-to-padding"}


@pytest.mark.parametrize("seed", range(6))
def test_rows_that_differ_by_chance_have_no_such_cause(seed):
    groups = np.random.default_rng(seed).random(ROWS // GROUP) < 0.5
    case = other_context(np.repeat(groups, GROUP))
    named = {cause.slug for cause in diagnose(case).causes}
    assert not named & NARROW


def test_rows_of_two_kinds_are_reported():
    case = other_context(np.random.default_rng(0).random(ROWS) < 0.5, None)
    quieter = replace(case, log_probs={**case.log_probs, "old": _evenly_off(case)})
    cause = first_cause(quieter)
    assert cause.slug == "forwards-differ"
    assert "of the rows agree to rounding" in cause.message
    assert "replica-unsynced" in cause.also_possible


def _evenly_off(case: Case) -> np.ndarray:
    """Make the deviating rows differ throughout, not only in their first tokens."""
    rollout, random = case.log_probs["rollout"], np.random.default_rng(2)
    loud = np.abs(case.log_probs["old"] - rollout) > 0.05
    rows = np.bincount(case.owner[loud], minlength=ROWS) > 2
    size = np.where(rows[case.owner], 0.4, 0.005)
    return np.minimum(rollout + size * random.standard_normal(len(rollout)), -1e-6)


@pytest.mark.parametrize("lengths", [None, np.full(ROWS, 20)])
def test_unknown_or_equal_lengths_give_no_evidence(lengths):
    case = other_context(np.arange(ROWS) % 2 == 0, lengths)
    assert not {cause.slug for cause in diagnose(case).causes} & NARROW


def test_a_mismatch_in_all_rows_is_not_a_limit():
    case = other_context(np.ones(ROWS, np.bool_))
    assert first_cause(case).slug == "context-differs"


def test_a_case_has_prompts_only_on_request(tmp_path):
    file = write_table(
        tmp_path / "t.parquet",
        prompt_ids=[[1, 2, 3], [4]],
        response_ids=[[5, 6], [7]],
        rollout_log_probs=[[-1.0, -2.0], [-3.0]],
        old_log_probs=[[-1.0, -2.0], [-3.0]],
    )
    table = rcdiag.open_table(file)
    case = read_case(table, "rollout", "old")
    assert case.facts.prompt_length is not None
    assert case.facts.prompt_length.tolist() == [3, 1]
    assert case.prompt_ids is None
    assert read_case(table, "rollout", "old", prompts=True).prompt_ids is not None
