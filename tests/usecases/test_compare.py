"""The use case `compare`: a table in, every pair of its policies out."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from rcdiag.pages.compare.words import nearest
from rcdiag.results import CompareResult, MetricValue
from rcdiag.table.opening import open_table
from rcdiag.usecases.compare.run import compare
from rcdiag.usecases.score import score
from tests.usecases.compare.tables import about, base_log_probs, shifted, write_policies

BASE = base_log_probs(30)
POLICIES = {
    "hf_fp32": shifted(BASE, 0.02, 2),
    "old": shifted(BASE, 0.1, 3),
    "vllm_bf16": shifted(BASE, 0.05, 1),
    "rollout": BASE,
}
SCORED = [
    about("vllm_bf16", "vllm", "bfloat16"),
    about("hf_fp32", "hf"),
    about("old", "hf", "bfloat16"),
]
GROUPS = [row // 2 for row in range(30)]
MASK = [[int((row + at) % 4 != 1) for at in range(len(BASE[row]))] for row in range(30)]


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("table") / "a.parquet"
    return write_policies(path, POLICIES, SCORED, group_id=GROUPS, response_mask=MASK)


@pytest.fixture(scope="module")
def found(table) -> CompareResult:
    return compare(open_table(table))


def near(value: MetricValue, *, rel: float = 1e-12, abs: float = 0.0) -> Any:
    """Return a value, interval and level that compare up to rounding."""
    return [
        item if item is None or isinstance(item, str) else pytest.approx(item, rel=rel, abs=abs)
        for item in numbers(value)
    ]


def numbers(value: MetricValue) -> list[Any]:
    return [value.value, value.low, value.high, value.level]


def test_every_ordered_pair_is_given(found):
    assert set(found.pairs) == {f"{a}->{b}" for a, b in permutations(POLICIES, 2)}
    for name, pair in found.pairs.items():
        assert name == f"{pair.behavior}->{pair.target}"


@pytest.mark.parametrize("pair", [("rollout", "old"), ("old", "rollout"), ("hf_fp32", "vllm_bf16")])
@pytest.mark.parametrize("seed", [0, 5])
def test_a_pair_has_the_numbers_and_intervals_that_score_gives(table, pair, seed):
    """All of them: where the behavior policy did not sample, they are weighted to the sampler."""
    behavior, target = pair
    mine = compare(open_table(table), seed=seed).pairs[f"{behavior}->{target}"]
    theirs = score(open_table(table), behavior=behavior, target=target, seed=seed)
    assert (mine.token_means, mine.sequence_means) == (theirs.token_means, theirs.sequence_means)
    assert set(mine.mismatch) == set(theirs.mismatch)
    for name, value in theirs.mismatch.items():
        assert numbers(mine.mismatch[name]) == near(value), name


def test_counts_are_those_of_score(found, table):
    other = score(open_table(table))
    assert found.num_sequences == other.num_sequences
    assert found.num_tokens == other.num_tokens == sum(map(sum, MASK))
    assert found.num_clusters == other.num_clusters == 15
    assert found.empty_sequences == other.empty_sequences


def test_the_ladder_goes_from_behavior_to_target_by_engine_and_precision(found):
    assert found.ladder.policies == ["rollout", "vllm_bf16", "hf_fp32", "old"]
    assert found.ladder.whole == found.pairs["rollout->old"].mismatch["k2_kl"]


def test_behavior_and_target_name_the_ends_of_the_ladder(table):
    found = compare(open_table(table), behavior="hf_fp32", target="rollout")
    assert (found.ladder.policies[0], found.ladder.policies[-1]) == ("hf_fp32", "rollout")


def test_only_chosen_policies_are_compared_in_their_order(table):
    order = ["old", "rollout", "vllm_bf16"]
    found = compare(open_table(table), policies=order)
    assert found.ladder.policies == order
    assert list(found.policies) == order
    assert set(found.pairs) == {f"{a}->{b}" for a, b in permutations(order, 2)}


def test_every_unordered_pair_has_figures_that_count_all_tokens(found):
    assert len(found.figures) == 6
    for name, figure in found.figures.items():
        assert name in found.pairs
        assert sum(cell[2] for cell in figure.cells) == found.num_tokens
        assert sum(item.tokens for item in figure.by_probability.bins) == found.num_tokens


def test_roles_are_read_from_the_metadata(found):
    roles = {name: item.role for name, item in found.policies.items()}
    assert roles == {
        "rollout": "sampler",
        "vllm_bf16": "engine",
        "hf_fp32": "trainer",
        "old": "trainer",
    }
    assert found.policies["rollout"].setup == "recorded"
    assert "bfloat16" in found.policies["old"].setup
    assert found.policies["old"].scoring == SCORED[2]


def test_mean_log_probs_and_the_nearest_policy_come_from_the_tokens(found):
    for name, lists in POLICIES.items():
        kept = np.concatenate(lists)[np.concatenate(MASK).astype(bool)]
        assert found.policies[name].log_prob_mean.value == pytest.approx(kept.mean(), rel=1e-12)
    assert found.nearest_policies == [
        name for name, item in found.policies.items() if item.may_be_nearest
    ]
    assert found.nearest_policies


@pytest.mark.parametrize(("files", "rows_per_group"), [(1, 1), (3, 4), (30, None)])
def test_files_row_groups_and_the_order_of_rows_do_not_matter(
    found, table, tmp_path, monkeypatch, files, rows_per_group
):
    monkeypatch.setattr("rcdiag.table.readers.parquet.TOKENS_PER_BATCH", 20)
    whole = pq.read_table(table).take(np.random.default_rng(files).permutation(30))
    for index, start in enumerate(range(0, 30, 30 // files)):
        part = whole.slice(start, 30 // files)
        pq.write_table(part, tmp_path / f"{index:02}.parquet", row_group_size=rows_per_group)
    other = compare(open_table(tmp_path))
    for mine, theirs in zip(found.ladder.rungs, other.ladder.rungs, strict=True):
        for name in ("contribution", "share", "k2", "log_ratio_mean"):
            same = near(getattr(theirs, name), rel=1e-11, abs=1e-16)
            assert numbers(getattr(mine, name)) == same
    for pair in found.pairs:
        one, two = found.pairs[pair].mismatch, other.pairs[pair].mismatch
        for name in ("k1_kl", "k2_kl", "k3_kl", "ess_token", "log_ratio_abs_max"):
            assert numbers(one[name]) == near(two[name]), name
    assert other.figures.keys() == found.figures.keys()
    assert [f.cells for f in other.figures.values()] == [f.cells for f in found.figures.values()]


def test_no_policy_fits_best_where_a_column_holds_sentinels(table, tmp_path):
    rows = pq.read_table(table)
    name = "rollout_log_probs"
    values = [[-1e4 if i % 7 == 3 else v for i, v in enumerate(r)] for r in rows[name].to_pylist()]
    column = rows.schema.get_field_index(name)
    path = tmp_path / "sentinels.parquet"
    pq.write_table(rows.set_column(column, rows.field(name), [values]), path)
    found = compare(open_table(path))
    assert found.diagnosis is not None
    assert found.diagnosis.causes[0].slug == "sentinel"
    assert found.nearest_policies == []
    assert all(policy.behind.value is None for policy in found.policies.values())
    assert "recorded-is-not-nearest" not in {finding.slug for finding in found.findings}
    assert nearest(found) == "best fit to the sampled tokens: not known"
