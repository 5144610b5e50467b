"""Exact zeros that stand for missing log-probs, at the first or last tokens of rows."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from rcdiag.diagnosis.case import Case
from tests.diagnosis.tables import Law, changed, drifted, judged, made, noisy, plain, shifted, top_p


def zeroed(case: Case, policy: str, from_start: int = 0, from_end: int = 0) -> Case:
    """Record 0 at the first and last tokens of every row."""
    left = case.lengths[case.owner] - case.position
    here = (case.position < from_start) | (left <= from_end)
    return case.with_log_probs(policy, np.where(here, 0.0, case.log_probs[policy]))


@pytest.mark.parametrize("policy", ["rollout", "old"])
@pytest.mark.parametrize(("from_start", "from_end"), [(1, 0), (3, 0), (0, 3)])
def test_few_zeros_at_one_position_of_every_row_are_placeholders(
    policy: str, from_start: int, from_end: int
) -> None:
    """Where rows are long they are a small share of all tokens."""
    case = zeroed(made(rows=96, length=250, seed=4), policy, from_start, from_end)
    diagnosis = judged(case)
    edge = "first" if from_start else "last"
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", "zero-placeholder")
    assert f"exactly 0, at the {edge} tokens of nearly all rows" in diagnosis.causes[0].message
    assert [cause.slug for cause in diagnosis.causes[1:]] in ([], ["engine-noise"])


@pytest.mark.parametrize(("every", "last"), [(16, 4), (12, 12), (3, 2)])
def test_zeros_at_the_last_tokens_of_some_rows_are_placeholders(every: int, last: int) -> None:
    """No response has a nearly certain token, so that every 0 is a placeholder."""
    unsure = changed(lambda logits, state: np.clip(logits, -4.0, 4.0))
    case = made(unsure, noisy(0.01, unsure), rows=192, length=60, seed=4)
    lost = (case.row % every == 0)[case.owner] & (case.position >= 60 - last)
    values = np.where(lost, 0.0, case.log_probs["rollout"])
    diagnosis = judged(case.with_log_probs("rollout", values))
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", "zero-placeholder")
    assert f"{lost.sum()} values of `rollout` are exactly 0, at the last to" in diagnosis.summary
    assert [cause.slug for cause in diagnosis.causes[1:]] in ([], ["engine-noise"])


@pytest.mark.parametrize("policy", ["rollout", "old"])
@pytest.mark.parametrize(("places", "said"), [([1234], "In row 20, token 34, "), ([7, 99], "2 v")])
def test_single_tokens_that_nobody_can_sample_are_named_first(policy, places, said) -> None:
    case = made(plain, noisy(0.01), rows=128, length=60)
    values = case.log_probs[policy].copy()
    values[places] = -1e5 * np.arange(1, 1 + len(places))
    diagnosis = judged(case.with_log_probs(policy, values))
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", "sentinel")
    assert diagnosis.summary.startswith(said)
    assert f"row {places[0] // 60}, token {places[0] % 60}" in diagnosis.summary
    assert [cause.slug for cause in diagnosis.causes[1:]] in ([], ["engine-noise"])


@pytest.mark.parametrize(("places", "of_old"), [((20, 34), (20, 34)), ((20, 34), (70, 5))])
def test_sentinels_of_both_columns_are_named_and_repaired(places, of_old) -> None:
    case = made(plain, noisy(0.01), rows=128, length=60)
    for policy, (row, token) in (("rollout", places), ("old", of_old)):
        values = case.log_probs[policy].copy()
        values[row * 60 + token] = -1e5
        case = case.with_log_probs(policy, values)
    diagnosis = judged(case)
    assert [cause.slug for cause in diagnosis.causes] == ["sentinel"]
    for policy, (row, token) in (("rollout", places), ("old", of_old)):
        assert f"n row {row}, token {token}, `{policy}` is -100,000" in diagnosis.summary


def test_placeholders_at_the_first_tokens_are_found_beside_kept_sets() -> None:
    """The other zeros are those of kept sets of one token, and stay."""
    case = zeroed(made(top_p(0.8), noisy(0.01), rows=128, seed=3), "rollout", from_start=1)
    named = [cause.slug for cause in judged(case).causes]
    assert named == ["zero-placeholder", "truncated-law"]


def test_first_tokens_that_are_0_where_both_sides_are_sure_are_no_placeholders() -> None:
    """In the few rows where the trainer is unsure of the first token, it has a log-prob."""
    case = made(rows=200, seed=4, sharpness=3.0)
    first, unsure = case.position == 0, (case.row % 25 == 0)[case.owner]
    old = np.where(first, np.where(unsure, -2.0, 0.0), case.log_probs["old"])
    rollout = np.where(first, np.where(unsure, -2.1, 0.0), case.log_probs["rollout"])
    named = judged(case.with_log_probs("old", old).with_log_probs("rollout", rollout)).causes
    assert "zero-placeholder" not in [cause.slug for cause in named]


@pytest.mark.parametrize("policy", ["rollout", "old"])
def test_zeros_at_the_first_tokens_of_shifted_rows_are_a_trace_of_the_shift(policy: str) -> None:
    case = made(rows=96, seed=4)
    moved = zeroed(shifted(case, policy, np.ones(96, np.bool_)), policy, from_start=1)
    assert judged(moved).causes[0].slug == "shift-by-one"


@pytest.mark.parametrize("trained", [noisy(0.01), drifted(0.5)])
def test_a_value_that_is_no_log_prob_is_located_and_the_other_rows_are_judged(trained: Law) -> None:
    case = made(plain, trained, rows=96, seed=4)
    others = judged(case.without_rows(np.isin(case.row, (7, 9))))
    values = case.log_probs["rollout"].copy()
    values[[7 * 60 + 5, 9 * 60]] = np.nan, -np.inf
    diagnosis = judged(case.with_log_probs("rollout", values))
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", "nan-log-probs")
    assert diagnosis.summary == (
        "1 log-prob of `rollout` is NaN (row 7, token 5); 1 log-prob of `rollout` is -inf (row 9, "
        f"token 0). The 94 other rows alone are {others.verdict}: {others.causes[0].slug}."
    )


def test_nans_of_the_trainer_alone_are_no_missing_mask() -> None:
    """A token that has a log-prob of the sampler was sampled."""
    case = made(rows=96, seed=4)
    values = case.log_probs["old"].copy()
    values[7 * 60 + 5 : 7 * 60 + 9] = np.nan
    assert judged(case.with_log_probs("old", values)).causes[0].slug == "nan-log-probs"


ROWS = np.arange(96)


@pytest.mark.parametrize(
    "damaged",
    [ROWS % 9 == 4, ROWS == 40, ROWS // 12 == 5],
    ids=["a ninth of the rows", "one row", "one step"],
)
def test_rows_with_positive_values_are_left_out_of_all_later_stages(damaged: np.ndarray) -> None:
    """However many values noise makes positive, the other rows are judged by themselves."""
    case = made(rows=96, seed=4)
    case = replace(case, facts=replace(case.facts, step=ROWS // 12))
    noise = np.random.default_rng(0).normal(0.0, 1.5, len(case.mask))
    values = case.log_probs["old"] + np.where(damaged[case.owner], noise, 0.0)
    diagnosis = judged(case.with_log_probs("old", values))
    assert [cause.slug for cause in diagnosis.causes] == ["nan-log-probs"]
    assert f"{np.count_nonzero(values > 1e-3)} log-probs of `old` are positive" in diagnosis.summary
    assert f"The {np.count_nonzero(~damaged)} other rows alone are " in diagnosis.summary
    assert all(cause.from_step is None for cause in diagnosis.causes)
    lost = damaged.reshape(8, 12).all(axis=1)
    assert ("no row of step 5 can be used" in diagnosis.over_steps.says) == lost.any()


def test_a_finite_value_below_every_log_prob_is_named_and_left_out() -> None:
    case = made(rows=96, seed=4)
    values = case.log_probs["old"].copy()
    values[7 * 60 + 5] = -1e308
    diagnosis = judged(case.with_log_probs("old", values))
    assert [cause.slug for cause in diagnosis.causes] == ["nan-log-probs"]
    assert "1 log-prob of `old` is below -1e+12 (row 7, token 5)" in diagnosis.summary
