"""Metrics that presuppose a sampler are correct for a policy that did not sample, or null."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.pages.compare.words import how_rows_are_made
from rcdiag.pages.score.words import answer
from rcdiag.results import CompareResult, from_json, to_json
from rcdiag.statistics.metrics import METRICS
from rcdiag.table.opening import open_table
from rcdiag.usecases.compare.run import compare
from rcdiag.usecases.score import score
from tests.usecases.compare.tables import about, base_log_probs, ragged, shifted, write_policies

# A table in which every token has its exact frequency under the sampler: means over it are
# exact expectations under the sampler.
SAMPLER = np.array([0.5, 0.25, 0.125, 0.125])
LAWS = {
    "rollout": SAMPLER,
    "old": np.array([0.45, 0.3, 0.15, 0.1]),
    "near": np.array([0.48, 0.28, 0.13, 0.11]),
}
TOKENS = [0, 0, 0, 0, 1, 1, 2, 3]


def exact(tmp_path, **options) -> CompareResult:
    policies = {name: [np.log(law[TOKENS]).tolist()] * 30 for name, law in LAWS.items()}
    return compare(open_table(write_policies(tmp_path / "a.parquet", policies)), **options)


def number(result: CompareResult, pair: str, metric: str) -> float:
    value = result.pairs[pair].mismatch[metric].value
    assert value is not None
    return value


@pytest.mark.parametrize("behavior", LAWS)
@pytest.mark.parametrize("target", LAWS)
def test_token_metrics_are_correct_whoever_sampled(tmp_path, behavior, target):
    if behavior == target:
        return
    result, b, t = exact(tmp_path), LAWS[behavior], LAWS[target]
    ratio = t / b
    truth = {
        "k3_kl": np.sum(b * np.log(b / t)),
        "k1_kl": np.sum(b * np.log(b / t)),
        "k3_kl_reverse": np.sum(t * np.log(t / b)),
        "tv_token": np.abs(b - t).sum() / 2.0,
        "hellinger2_token": 1.0 - np.sqrt(b * t).sum(),
        "chi2_token": np.sum(t * ratio) - 1.0,
        "ess_token": 1.0 / np.sum(t * ratio),
        "perplexity_ess_token": np.exp(-np.sum(t * np.log(ratio))),
        "ratio_deviation_mean": np.abs(b - t).sum(),
    }
    for name, value in truth.items():
        got = number(result, f"{behavior}->{target}", name)
        assert got == pytest.approx(value, abs=1e-12), name
    means = result.pairs[f"{behavior}->{target}"].token_means
    assert means == ("sampled" if behavior == "rollout" else "weighted")


def test_policies_that_are_named_are_reweighted_from_a_sampler_that_is_not(tmp_path):
    """The sampler is read for its weights, and is in no part of the result."""
    every, named = exact(tmp_path), exact(tmp_path, policies=["old", "near"])
    assert list(named.policies) == named.ladder.policies == ["old", "near"]
    assert list(named.pairs) == ["old->near", "near->old"]
    for pair, numbers in named.pairs.items():
        assert numbers.token_means == "weighted"
        assert numbers.mismatch == every.pairs[pair].mismatch
    assert how_rows_are_made(named) == "rows are reweighted from the sampler"


def test_sequence_metrics_are_correct_whoever_sampled(tmp_path):
    """All sixteen sequences of two tokens, with their exact frequencies under the sampler."""
    copies = [int(64 * SAMPLER[one] * SAMPLER[two]) for one in range(4) for two in range(4)]
    pairs = [(one, two) for one in range(4) for two in range(4)]
    rows = [pair for pair, count in zip(pairs, copies, strict=True) for _ in range(count)]
    policies = {
        name: [np.log(law[list(row)]).tolist() for row in rows] for name, law in LAWS.items()
    }
    result = compare(open_table(write_policies(tmp_path / "a.parquet", policies)))
    old, near = (np.outer(LAWS[name], LAWS[name]).ravel() for name in ("old", "near"))
    assert result.pairs["old->near"].sequence_means == "weighted"
    for name, truth in {
        "k1_kl_seq": np.sum(old * np.log(old / near)),
        "k3_kl_seq": np.sum(old * np.log(old / near)),
        "tv_seq": np.abs(old - near).sum() / 2.0,
        "ess_seq": 1.0 / np.sum(near**2 / old),
        "chi2_seq": np.sum(near**2 / old) - 1.0,
    }.items():
        assert number(result, "old->near", name) == pytest.approx(truth, abs=1e-12), name


VOCABULARY, ROWS, LENGTH = 32, 200, 40


def softmaxed(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("seed", range(4))
def test_the_interval_of_a_weighted_kl_covers_it_unlike_a_plain_mean(tmp_path, seed):
    """The trainer differs from the sampler as after a few updates without a sync."""
    random = np.random.default_rng(seed)
    logits = 1.5 * random.normal(size=(ROWS * LENGTH, VOCABULARY))
    moved = logits + 0.3 * random.normal(size=logits.shape)
    laws = {"rollout": softmaxed(logits), "old": softmaxed(moved)}
    drawn = np.argmax(laws["rollout"] + random.gumbel(size=logits.shape), axis=1)
    at = np.arange(len(drawn))
    policies = {name: ragged([LENGTH] * ROWS, law[at, drawn]) for name, law in laws.items()}
    result = compare(open_table(write_policies(tmp_path / "a.parquet", policies)))
    old, rollout = laws["old"], laws["rollout"]
    truth = float(np.sum(np.exp(old) * (old - rollout), axis=1).mean())
    kl = result.pairs["old->rollout"].mismatch["k3_kl"]
    assert kl.low is not None
    assert kl.high is not None
    assert kl.low < truth < kl.high
    log_ratio = (rollout - old)[at, drawn]
    plain = float(np.mean(np.expm1(log_ratio) - log_ratio))
    assert not kl.low < plain < kl.high
    assert result.pairs["old->rollout"].sequence_means == "not-given"


BASE = base_log_probs(60)


def presupposing(result: CompareResult, pair: str, part: str) -> list:
    """Return the metrics of a pair that presuppose a sampler, of tokens or sequences."""
    return [
        value
        for name, value in result.pairs[pair].mismatch.items()
        if part in (METRICS[name].presupposes or "")
    ]


def assert_not_given(values: list) -> None:
    assert values
    for value in values:
        assert (value.value, value.low, value.high, value.level) == (None, None, None, "unknown")


@pytest.mark.parametrize(("noise", "token_means"), [(0.05, "weighted"), (3.0, "not-given")])
def test_weights_with_too_few_effective_samples_give_null(tmp_path, noise, token_means):
    policies = {"rollout": BASE, "old": shifted(BASE, noise, 1), "other": shifted(BASE, 0.05, 2)}
    result = compare(open_table(write_policies(tmp_path / "a.parquet", policies)))
    assert result.pairs["old->other"].token_means == token_means
    if token_means == "not-given":
        assert_not_given(presupposing(result, "old->other", "sampled the"))
        assert to_json(from_json(to_json(result), "r")) == to_json(result)
    # Sizes of the log-ratio do not depend on who sampled; the sampler's own pairs are given.
    assert number(result, "old->other", "k2_kl") > 0.0
    assert number(result, "rollout->other", "k3_kl") > 0.0


def test_it_is_no_finding_that_a_policy_beside_the_sampler_did_not_sample(tmp_path):
    policies = {"rollout": BASE, "old": shifted(BASE, 0.01, 1), "other": shifted(BASE, 1.0, 2)}
    table = open_table(write_policies(tmp_path / "a.parquet", policies))
    result = score(table, behavior="other", target="old")
    assert result.mismatch["ratio_mean_z"].value > 4.0
    assert result.mismatch["ratio_mean_z"].level == "unknown"
    assert "behavior-is-not-the-sampler" not in {found.slug for found in result.findings}
    assert answer(result).startswith("k2(other, old) ")


def test_weights_to_a_policy_that_did_not_sample_give_null(tmp_path):
    """The recorded log-probs are not those that sampled, so the mean ratio is not 1."""
    higher = [[value + 0.1 for value in row] for row in BASE]
    policies = {"rollout": BASE, "old": higher, "other": shifted(BASE, 0.05, 2)}
    result = compare(open_table(write_policies(tmp_path / "a.parquet", policies)))
    assert number(result, "rollout->old", "ess_token") == pytest.approx(1.0)
    assert_not_given(presupposing(result, "old->other", "tokens"))


def test_without_a_recorded_sampler_values_are_null(tmp_path):
    policies = {name: [np.log(LAWS[name][TOKENS]).tolist()] * 30 for name in ("old", "near")}
    result = compare(open_table(write_policies(tmp_path / "a.parquet", policies)))
    assert_not_given(presupposing(result, "old->near", "sampled the"))
    assert number(result, "old->near", "k2_kl") > 0.0
    assert "sampler-not-compared" in {finding.slug for finding in result.findings}


def test_rollout_is_the_sampler_whatever_pair_the_user_names(tmp_path):
    result = exact(tmp_path, behavior="old", target="near")
    assert result.ladder.policies[0] == "old"
    assert result.pairs["old->near"].token_means == "weighted"
    assert result.pairs["rollout->near"].token_means == "sampled"


@pytest.mark.parametrize("scored", [False, True])
def test_without_rollout_a_named_policy_is_the_sampler_unless_an_engine_scored_it(tmp_path, scored):
    policies = {"mine": BASE, "old": shifted(BASE, 0.05, 1)}
    path = write_policies(tmp_path / "a.parquet", policies, [about("mine", "hf")] * scored)
    result = compare(open_table(path), behavior="mine")
    assert result.pairs["mine->old"].token_means == ("not-given" if scored else "sampled")
    assert ("sampler-not-compared" in {found.slug for found in result.findings}) is scored


def test_weighted_sums_of_two_shards_are_those_of_the_whole(tmp_path, monkeypatch):
    policies = {"rollout": BASE, "old": shifted(BASE, 0.1, 1), "other": shifted(BASE, 0.1, 2)}
    path = write_policies(tmp_path / "a.parquet", policies, rows_per_group=7)
    whole = compare(open_table(path))
    monkeypatch.setattr("rcdiag.table.readers.parquet.TOKENS_PER_BATCH", 20)
    parts = compare(open_table(path))
    for name, value in whole.pairs["old->other"].mismatch.items():
        other = parts.pairs["old->other"].mismatch[name]
        for one, two in ((value.value, other.value), (value.low, other.low)):
            assert (one is None) == (two is None), name
            assert one is None or one == pytest.approx(two, rel=1e-9, abs=1e-12), name
