"""Tables for which the correct recommendation is known."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from rcdiag.results import Diagnosis, MetricValue
from rcdiag.results.sweep import Candidate, Recommendation
from rcdiag.statistics.pair import PolicyPair
from rcdiag.usecases.sweep.candidates import CANDIDATES
from rcdiag.usecases.sweep.recommend import SweepEvidence, recommend
from rcdiag.usecases.sweep.sketched_gradients import DIMENSIONS
from tests.builders import mismatch
from tests.usecases.sweep.policies import (
    advice,
    advice_of,
    baseline_of,
    noisy,
    rows_of_all,
    state_of_candidates,
    table,
    two_choices,
)


def efficiency(result: Recommendation, name: str) -> float:
    (value,) = [item.efficiency.value for item in result.candidates if item.name == name]
    assert value is not None
    return value


def test_equal_policies_need_no_correction():
    result = advice(two_choices(0, 2000, 0.3, 0.3))
    assert (result.answer, result.choice) == ("no-correction", "none")
    assert set(result.indistinguishable) == set(CANDIDATES)
    assert efficiency(result, "none") == pytest.approx(efficiency(result, "seq_tis_2"), abs=1e-9)


def test_a_negligible_mismatch_needs_no_correction():
    result = advice(noisy(0, 2000, 1e-4))
    assert (result.answer, result.choice) == ("no-correction", "none")
    assert any("nothing to correct" in reason for reason in result.reasons)


def test_tokens_drawn_from_the_target_give_fix_the_cause():
    result = advice(noisy(1, 2000, 0.15, drawn_from_target=True))
    assert (result.answer, result.choice) == ("fix-the-cause", None)
    assert any("kappa is -" in reason for reason in result.reasons)
    assert advice(noisy(1, 2000, 0.15)).answer != "fix-the-cause"


def assert_nothing_is_ranked(result: Recommendation) -> None:
    assert {item.name for item in result.candidates} == set(CANDIDATES)
    for item in result.candidates:
        assert (item.efficiency.value, item.efficiency.low, item.efficiency.high) == (None,) * 3
        assert item.rank is None
        assert not item.within_error_of_best
    assert result.indistinguishable == []
    assert result.choice is None


@pytest.mark.parametrize("rewards", [True, False])
def test_nothing_is_ranked_if_the_recorded_policy_did_not_sample(rewards):
    """With or without rewards, since errors assume the ratios of the sampler."""
    pair = two_choices(2, 4000, 0.5, 0.7, recorded=0.3)
    result = advice(pair if rewards else without_reward(pair))
    assert_nothing_is_ranked(result)
    assert result.reasons
    assert result.method == "no candidate was scored"


def evidence_of(pair: PolicyPair, **values: MetricValue) -> SweepEvidence:
    """Return the evidence of a pair with some mismatch metrics replaced."""
    state = state_of_candidates([pair], baseline_of([pair]))
    return SweepEvidence(state, rows_of_all(state), {**mismatch(state.suite), **values}, 0)


def test_no_recommendation_if_the_mean_ratio_of_sequences_is_above_one():
    pair = two_choices(3, 4000, 0.3, 0.7)
    above = MetricValue(value=1.3, low=1.1, high=1.6)
    result = recommend(evidence_of(pair, ratio_mean_seq=above))
    assert result.answer == "cannot-distinguish"
    assert_nothing_is_ranked(result)
    assert "over sequences it is 1.30 (1.10 to 1.60), above 1" in result.reasons[-1]


def test_a_doubtful_premise_is_reported():
    pair = two_choices(3, 4000, 0.3, 0.7)
    doubt = MetricValue(value=1.01, low=1.002, high=1.02)
    result = recommend(evidence_of(pair, ratio_mean=doubt))
    assert any("interval excludes 1" in reason for reason in result.reasons)
    assert result.choice is not None
    holds = recommend(evidence_of(pair, ratio_mean=replace(doubt, low=0.998)))
    assert not any("interval excludes 1" in reason for reason in holds.reasons)


def test_another_sampler_than_the_recorded_gives_fix_the_cause():
    result = advice(two_choices(2, 4000, 0.5, 0.7, recorded=0.3))
    assert result.answer == "fix-the-cause"
    assert any("E[ratio]" in reason for reason in result.reasons)


def test_nan_log_probs_take_precedence():
    result = advice(two_choices(0, 100, 0.3, 0.3), bad_tokens=3)
    assert result.answer == "fix-the-cause"
    assert result.candidates == []
    assert result.reasons == [
        "3 unmasked log-probs are NaN, infinite, positive or below -1e12: repair the dump before "
        "correcting."
    ]


def test_sequence_weights_win_if_tokens_are_dependent():
    result = advice(two_choices(3, 20_000, 0.3, 0.7))
    assert result.answer == "take"
    assert result.choice is not None
    assert CANDIDATES[result.choice].family == "seq_tis"
    # With token weights, and without correction, the gradient has the opposite sign.
    assert efficiency(result, "none") < 0.2
    assert efficiency(result, "token_tis_5") < 0.2
    assert efficiency(result, result.choice) > 0.8
    assert "none" not in result.indistinguishable


def test_the_choice_is_the_simplest_indistinguishable_candidate():
    result = advice(two_choices(3, 20_000, 0.3, 0.7))
    assert result.choice in result.indistinguishable
    assert CANDIDATES[result.choice].complexity == min(
        CANDIDATES[name].complexity for name in result.indistinguishable
    )
    assert result.candidates[0].rank == 1
    assert all(item.rank is None for item in result.candidates if item.refused)


def test_without_a_reference_only_the_variance_of_candidates_is_given():
    result = advice(noisy(4, 2000, 0.6))
    assert any("reference (untruncated ratios" in reason for reason in result.reasons)
    assert result.method.startswith("The efficiency is the variance without correction")
    assert (result.answer, result.choice) == ("cannot-distinguish", None)
    assert "no candidate's bias is known" in result.reasons[-1]
    for candidate in result.candidates:
        assert (candidate.gradient_bias, candidate.efficiency.value, candidate.rank) == (None,) * 3
    allowed = {candidate.name for candidate in result.candidates if not candidate.refused}
    assert set(result.indistinguishable) == allowed
    noise = {candidate.name: candidate.gradient_noise for candidate in result.candidates}
    assert noise["none"] == pytest.approx(1.0)
    assert noise["seq_tis_10"] > noise["seq_tis_2"] > 1.5


@pytest.mark.parametrize("seed", range(6))
def test_uncorrelated_noise_needs_no_correction(seed):
    """512 sequences of 40 tokens: sequence weights would have 1.1 to 1.5 times the error."""
    result = advice(noisy(seed, 512, 0.05))
    assert (result.answer, result.choice) == ("no-correction", "none")
    assert efficiency(result, "none") > efficiency(result, "seq_tis_5")


def with_columns(pair: PolicyPair, **columns: np.ndarray | None) -> PolicyPair:
    return replace(pair, tokens=replace(pair.tokens, **columns))


def without_reward(pair: PolicyPair) -> PolicyPair:
    return with_columns(pair, reward=None)


def test_without_rewards_the_shift_of_tokens_decides_with_a_note():
    result = advice(without_reward(two_choices(3, 20_000, 0.3, 0.7)))
    assert any("no rewards and no advantages" in reason for reason in result.reasons)
    assert "times the advantage 1" in result.method
    assert result.choice == "token_tis_5"  # ratios are at most 2.33: nothing is truncated
    assert efficiency(result, "none") < 0.2


def test_rewards_that_are_noise_need_no_correction():
    pair = two_choices(5, 2000, 0.4, 0.6)
    random = np.random.default_rng(1)
    result = advice(with_columns(pair, reward=random.random(2000)))
    assert result.choice == "none"


def test_without_any_known_advantage_nothing_is_ranked():
    pair = with_columns(two_choices(5, 2000, 0.4, 0.6), advantage=np.full(2000, np.nan))
    result = advice(pair)
    assert result.answer == "cannot-distinguish"
    assert_nothing_is_ranked(result)
    assert "No sequence has a known advantage" in result.reasons[-1]


def test_recorded_advantages_take_precedence_over_rewards():
    pair = two_choices(3, 20_000, 0.3, 0.7)
    reward = pair.tokens.rewards
    recorded = with_columns(pair, advantage=reward - reward.mean(), reward=None)
    result, expected = advice(recorded), advice(pair)
    assert efficiency(result, "seq_tis_5") == pytest.approx(efficiency(expected, "seq_tis_5"))


def test_few_sequences_give_cannot_distinguish():
    result = advice(two_choices(0, 25, 0.3, 0.6))
    assert (result.answer, result.choice) == ("cannot-distinguish", None)
    assert all(item.refused for item in result.candidates)


def test_one_cluster_gives_cannot_distinguish():
    ids = np.zeros((40, 3))
    logs = np.full((40, 3), -1.0)
    result = advice(table(ids, logs, logs + 0.1, group=np.zeros(40)))
    assert result.answer == "cannot-distinguish"


def test_neither_order_nor_shards_matter():
    pair = two_choices(6, 3000, 0.35, 0.6)
    whole = advice(pair)
    order = np.random.default_rng(0).permutation(3000)
    same(advice(taken(pair, order)), whole)
    baseline = baseline_of([pair])
    same(advice_of(state_of_candidates([half(pair, at) for at in (0, 1)], baseline)), whole)


def taken(pair: PolicyPair, rows: np.ndarray) -> PolicyPair:
    """Select rows of two tokens each; they keep their clusters."""
    return table(
        pair.tokens.token_id.reshape(-1, 2)[rows],
        pair.values.behavior.reshape(-1, 2)[rows],
        pair.values.target.reshape(-1, 2)[rows],
        pair.tokens.rewards[rows],
        group=pair.tokens.cluster[rows],
    )


def half(pair: PolicyPair, which: int) -> PolicyPair:
    return taken(pair, np.arange(which, len(pair.lengths), 2))


def same(result: Recommendation, expected: Recommendation) -> None:
    assert (result.answer, result.choice) == (expected.answer, expected.choice)
    assert set(result.indistinguishable) == set(expected.indistinguishable)
    for item, wanted in zip(by_name(result), by_name(expected), strict=True):
        assert item.efficiency.value == pytest.approx(wanted.efficiency.value)


def by_name(result: Recommendation) -> list[Candidate]:
    return sorted(result.candidates, key=lambda item: item.name)


def test_ratios_above_the_clamp_refuse_candidates_weighted_by_them():
    pair = two_choices(7, 2000, 0.4, 0.6)
    target = pair.values.target.copy()
    target[0] = pair.values.behavior[0] + 21.0
    result = advice(
        table(
            pair.tokens.token_id.reshape(-1, 2),
            pair.values.behavior.reshape(-1, 2),
            target.reshape(-1, 2),
            pair.tokens.reward,
        )
    )
    refused = {item.name: " ".join(item.refused) for item in result.candidates}
    assert "1 sequences have ratios above the trainer's clamp" in refused["seq_tis_2"]
    assert "clamp" not in refused["none"]


def test_two_clusters_cannot_separate_bias_from_noise():
    pair = two_choices(3, 2000, 0.4, 0.6)
    result = advice(with_columns(pair, cluster=np.arange(2000, dtype=np.uint64) % 2))
    assert (result.answer, result.choice) == ("cannot-distinguish", None)
    assert any("2 prompt groups" in reason for reason in result.reasons)


@pytest.mark.parametrize("rewards", [True, False])
def test_renumbering_tokens_changes_nothing(rewards):
    """With 144 rows and 3,000 ids an arbitrary hash could decide between candidates."""
    pair = rare_words(rewards)
    expected = advice(pair)
    ids, places = np.unique(pair.tokens.token_id, return_inverse=True)
    assert len(ids) > 2 * DIMENSIONS
    for seed in range(4):
        other = np.random.default_rng(seed).choice(150_000, len(ids), replace=False)
        renumbered = other.astype(np.int32)[places]
        same(advice(with_columns(pair, token_id=renumbered)), expected)


def rare_words(rewards: bool) -> PolicyPair:
    """Sample from Zipf's distribution over 3,000 words, some of which the target prefers."""
    random = np.random.default_rng(11)
    logits = -np.log(np.arange(1.0, 3001.0))
    behavior, target = (
        x - np.log(np.exp(x).sum()) for x in (logits, logits + random.normal(0.0, 0.15, 3000))
    )
    ids = random.choice(3000, (144, 100), p=np.exp(behavior))
    reward = np.isin(ids, np.arange(0, 3000, 7)).mean(axis=1)
    return table(ids, behavior[ids], target[ids], reward if rewards else None)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_healthy_table_needs_no_correction_however_few_its_rows(groups):
    pair = two_choices(3, 6, 0.4, 0.4)
    few = with_columns(pair, cluster=np.arange(6, dtype=np.uint64) % groups)
    result = advice(
        few,
        diagnosis=Diagnosis(
            verdict="healthy", summary="", pair=None, causes=[], ruled_out=[], next=[]
        ),
    )
    assert (result.answer, result.choice) == ("no-correction", "none")
