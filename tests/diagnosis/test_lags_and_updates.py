"""Outdated weights, late columns, duplicate rows, and values of no policy."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.judge import diagnose
from tests.diagnosis.tables import (
    chain,
    drifted,
    made,
    noisy,
    normal,
    plain,
    single,
    taken_twice,
    with_values,
)

ROWS = 128
EVERY = np.arange(ROWS)


def by_lag(lag: np.ndarray, size: float = 0.2) -> Case:
    """Make rows sampled `lag` updates ago, each of which moves the weights by `size`."""
    case = made(plain, drifted(0.002), rows=ROWS)
    old = case.log_probs["old"].copy()
    for behind in np.unique(lag[lag > 0]):
        moved = made(plain, drifted(size * float(behind)), rows=ROWS)
        assert np.array_equal(moved.token_id, case.token_id)
        rows = (lag == behind)[case.owner]
        old[rows] = moved.log_probs["old"][rows]
    return case.with_log_probs("old", old)


def with_versions(case: Case, lag: np.ndarray, step: np.ndarray, origin: int = 0) -> Case:
    facts = replace(case.facts, step=step, policy_version=step - lag + origin)
    return replace(case, facts=facts)


@pytest.mark.parametrize("origin", [0, 1, -40])
def test_a_mismatch_that_grows_with_the_lag_is_stale_weights(origin: int) -> None:
    """Trainers count versions and steps from different origins: only differences count."""
    lag = EVERY % 3
    step = np.full(ROWS, 50)
    diagnosis = diagnose(with_versions(by_lag(lag), lag, step, origin))
    assert (diagnosis.causes[0].slug, diagnosis.verdict) == ("stale-weights", "correctable")
    assert "grow with the age of the weights" in diagnosis.summary
    assert "times over 2 updates." in diagnosis.summary
    assert [*diagnosis.causes[0].evidence[0]][1:4] == ["+0 updates", "+1 updates", "+2 updates"]


def test_rows_of_several_versions_are_shown_by_the_age_of_their_tokens() -> None:
    case = made(plain, drifted(0.002), rows=ROWS)
    moved = made(plain, drifted(0.3), rows=ROWS)
    late = case.position >= np.where(EVERY % 2, 60, 20)[case.owner]
    step, version = np.full(ROWS, 9), np.where(late, 9, 7)
    old = np.where(late, case.log_probs["old"], moved.log_probs["old"])
    facts = replace(case.facts, step=step, policy_version=version, version_by_token=True)
    diagnosis = diagnose(replace(case.with_log_probs("old", old), facts=facts))
    evidence = diagnosis.causes[0].evidence[0]
    assert diagnosis.causes[0].slug == "stale-weights"
    assert list(evidence)[1:3] == ["+0 updates", "+2 updates"]
    assert evidence["+2 updates"] > 10 * evidence["+0 updates"]


def test_a_lag_of_one_from_the_second_step_on_is_stale_weights() -> None:
    step = EVERY // 16
    lag = np.where(step == 0, 0, 1)
    diagnosis = diagnose(with_versions(by_lag(lag), lag, step))
    assert (diagnosis.causes[0].slug, diagnosis.verdict) == ("stale-weights", "correctable")


@pytest.mark.parametrize(("lag", "slug"), [(1, "forwards-differ"), (2, "stale-weights")])
def test_a_lag_of_one_in_every_row_may_be_another_way_to_count(lag: int, slug: str) -> None:
    step = EVERY // 32 + lag
    case = made(plain, noisy(0.3), rows=ROWS, step=step, policy_version=step - lag)
    (cause,) = diagnose(case).causes
    assert cause.slug == slug
    assert "stale-weights" in [cause.slug, *cause.also_possible]
    assert f"{lag} step" in cause.message or f"{lag} updates" in cause.message


def test_a_lag_without_a_mismatch_is_no_cause() -> None:
    lag = EVERY % 3
    diagnosis = diagnose(with_versions(made(rows=ROWS), lag, np.full(ROWS, 50)))
    assert diagnosis.causes[0].slug == "engine-noise"


def test_versions_that_count_updates_are_no_lag_of_steps() -> None:
    """Three or four updates a step: step less version falls, as does the mismatch, unrelated."""
    step = EVERY // 32
    version = 3 * step + (EVERY % 32 >= 16) * (step > 0)
    case = made(plain, drifted(0.002), rows=ROWS)
    noise = np.random.default_rng(3).normal(0.0, 1.0, len(case.mask))
    size = np.array([0.3, 0.1, 0.03, 0.01])[step][case.owner]
    case = case.with_log_probs("old", np.minimum(case.log_probs["rollout"] + noise * size, -1e-6))
    diagnosis = diagnose(with_versions(case, step - version, step))
    assert "stale-weights" not in [cause.slug for cause in diagnosis.causes]


def updated(strength: float) -> Case:
    """Compute `old` after an update that raised rows by their advantage."""
    case = made(plain, noisy(0.05), rows=ROWS)
    advantage = np.random.default_rng(1).standard_normal(ROWS)
    old = case.log_probs["old"] + strength * advantage[case.owner]
    facts = replace(case.facts, advantage=advantage)
    return replace(case.with_log_probs("old", single(np.minimum(old, -1e-4))), facts=facts)


def test_rows_that_rose_with_their_advantage_were_scored_after_the_update() -> None:
    diagnosis = diagnose(updated(0.05))
    assert (diagnosis.causes[0].slug, diagnosis.verdict) == ("old-after-update", "broken")
    assert diagnosis.causes[0].side == "trainer"


def test_an_advantage_without_correlation_is_no_update() -> None:
    assert "old-after-update" not in {cause.slug for cause in diagnose(updated(0.0)).causes}


def test_one_group_with_varying_rewards_does_not_show_an_update() -> None:
    """Of 128 rows only eight have an advantage other than 0."""
    case = updated(0.05)
    group = (EVERY // 8).astype(np.uint64)
    advantage = np.where(group == 3, np.where(EVERY % 2 == 0, 0.94, -0.94), 0.0)
    old = case.log_probs["rollout"] + 0.05 * advantage[case.owner]
    facts = replace(case.facts, advantage=advantage, group=group)
    one = replace(case.with_log_probs("old", single(np.minimum(old, -1e-4))), facts=facts)
    assert "old-after-update" not in {cause.slug for cause in diagnose(one).causes}


def test_a_dump_that_was_merged_twice_has_duplicate_rows_under_any_group_names() -> None:
    twice = taken_twice(made(rows=64), 64)
    group = np.arange(len(twice.lengths)).astype(np.uint64)
    diagnosis = diagnose(replace(twice, facts=replace(twice.facts, group=group)))
    assert diagnosis.causes[0].slug == "duplicated-rows"
    assert diagnosis.causes[0].share_of_rows == pytest.approx(0.5)


def test_padding_counted_as_sampled_is_named() -> None:
    case = made(rows=64, length=60)
    padded = case.position >= 20 + case.owner % 40
    ids = np.where(padded, 3, np.where(case.token_id == 3, 4, case.token_id)).astype(np.int32)
    case = replace(case, token_id=ids)
    for policy in ("rollout", "old"):
        case = with_values(case, policy, lambda values: np.where(padded, 0.0, values))
    diagnosis = diagnose(case)
    assert (diagnosis.causes[0].slug, diagnosis.verdict) == ("zero-placeholder", "broken")
    assert "padding" in diagnosis.causes[0].message


@pytest.mark.parametrize("sharpness", [0.3, 1.0])
def test_tokens_scored_directly_after_themselves_are_named(sharpness: float) -> None:
    """In a flat model such log-probs are no worse than a uniform guess, but repeats tell."""
    case = made(rows=ROWS, prompts=True, sharpness=sharpness)
    after_itself = np.diag(normal(sharpness * chain(0)))[case.token_id]
    rounding = 0.005 * np.random.default_rng(1).standard_normal(len(after_itself))
    values = np.minimum(after_itself + rounding, -1e-6)
    diagnosis = diagnose(with_values(case, "old", lambda _: values))
    assert [cause.slug for cause in diagnosis.causes] == ["logits-not-shifted"]
    assert diagnosis.verdict == "broken"
    elsewhere = np.random.default_rng(3).permutation(values)
    other = diagnose(with_values(case, "old", lambda _: elsewhere))
    assert other.causes[0].slug != "logits-not-shifted"


def test_a_column_worse_than_uniform_belongs_to_other_tokens() -> None:
    case = made(rows=64)
    far = np.random.default_rng(2).exponential(9.0, len(case.mask))
    diagnosis = diagnose(with_values(case, "old", lambda values: values - 2.0 - far))
    assert (diagnosis.causes[0].slug, diagnosis.verdict) == ("forwards-differ", "broken")
    assert "logits-not-shifted" in diagnosis.causes[0].also_possible
    assert "less than a uniform guess" in diagnosis.summary


def test_rows_worse_than_uniform_are_broken_even_if_the_record_sampled() -> None:
    case = made(plain, noisy(0.3), rows=ROWS)
    assert diagnose(case).verdict == "correctable"
    far = np.random.default_rng(2).exponential(9.0, len(case.mask)) * (case.owner % 8 == 0)
    diagnosis = diagnose(with_values(case, "old", lambda values: values - far))
    assert diagnosis.causes[0].slug == "forwards-differ"
    assert diagnosis.verdict == "broken"
    assert f"in {ROWS // 8} of {ROWS} rows" in diagnosis.causes[0].message


@pytest.mark.parametrize("size", [0.3, 1.0, 1.5])
def test_any_difference_is_correctable_if_the_record_sampled(
    size: float,
) -> None:
    diagnosis = diagnose(made(plain, noisy(size), rows=ROWS))
    assert diagnosis.verdict == "correctable"
    assert "of 128 sequences" in diagnosis.summary


def test_a_slope_that_explains_little_is_not_a_temperature() -> None:
    """Noise over two dozen tokens: a significant slope that explains few of the squares."""
    case = made(plain, noisy(0.05), rows=400)
    tilted = with_values(case, "old", lambda values: 0.99 * values)
    assert 0.0 < Features(tilted).log_ratios.by_log_prob < 0.4
    named = {cause.slug for cause in diagnose(tilted).causes}
    assert not any("temperature" in slug for slug in named)


def test_one_policy_is_inconclusive_with_any_valid_values() -> None:
    case = replace(made(rows=64), trainer=None)
    rounded = with_values(case, "rollout", lambda values: np.round(values, 3))
    for table in (case, rounded):
        diagnosis = diagnose(table)
        assert diagnosis.verdict == "inconclusive"
        assert "nothing was compared" in diagnosis.summary
        assert diagnosis.next
