"""The use case `sweep`: rows in, result out."""

from __future__ import annotations

from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import rcdiag
from rcdiag.errors import RcdiagError
from rcdiag.results import SweepResult, from_json, to_json
from rcdiag.table.opening import open_table
from rcdiag.trainers import find_trainer
from rcdiag.trainers.plan import plan_corrections
from rcdiag.usecases.score import score
from rcdiag.usecases.sweep.candidates import CANDIDATES
from rcdiag.usecases.sweep.estimator_families import FAMILIES
from rcdiag.usecases.sweep.run import sweep
from tests.builders import write_table

ROWS = 80


def columns(seed: int = 0, **more: object) -> dict[str, object]:
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 12, ROWS)
    behavior = [-random.exponential(1.0, size) for size in lengths]
    target = [np.minimum(logs + random.normal(-0.005, 0.1, len(logs)), 0.0) for logs in behavior]
    return {
        "response_ids": [random.integers(0, 9, size).tolist() for size in lengths],
        "rollout_log_probs": [logs.tolist() for logs in behavior],
        "old_log_probs": [logs.tolist() for logs in target],
        "group_id": [row // 2 for row in range(ROWS)],
        "reward": random.random(ROWS).tolist(),
        **more,
    }


def run(folder, rows_per_group: int | None = None, **more: object) -> SweepResult:
    path = write_table(folder / "a.parquet", rows_per_group=rows_per_group, **columns(**more))
    return sweep(open_table(path), thresholds=20)


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> SweepResult:
    return run(tmp_path_factory.mktemp("sweep"))


def test_every_family_and_candidate_is_there(result):
    assert list(result.families) == list(FAMILIES)
    assert all(family.rows for family in result.families.values())
    assert {item.name for item in result.recommendation.candidates} == set(CANDIDATES)
    assert (result.num_sequences, result.num_groups_with_two, result.num_clusters) == (ROWS, 40, 40)
    assert result.provenance["trainer"] == find_trainer("verl").name
    # Responses have at most 11 tokens, so the forecast is untested and ends there.
    assert result.forecast.holds is None
    assert result.forecast.points == []


def test_a_forecast_that_could_not_be_tested_ends_at_the_longest_response():
    path = Path(__file__).parents[2] / "sample_data" / "stale.parquet"
    table = open_table(path)
    result = sweep(table, thresholds=2)
    longest = max(len(row) for row in pq.read_table(path)["response_ids"].to_pylist())
    lengths = [point.response_length for point in result.forecast.points]
    assert result.forecast.holds is None
    assert lengths[0] < longest / 4
    assert longest / 2 < lengths[-1] <= longest


def test_the_document_survives_a_round_trip(result):
    document = to_json(result)
    assert to_json(from_json(document, "it")) == document


def test_rows_are_the_numbers_of_score(tmp_path):
    path = write_table(tmp_path / "a.parquet", **columns())
    trainer = find_trainer("verl-0.9")
    plan = plan_corrections(
        trainer, {"it": {"rollout_is": "sequence", "rollout_is_threshold": 2.0}}
    )
    expected = score(open_table(path), plan=plan).corrections["it"]
    rows = sweep(open_table(path)).families["seq_tis"].rows
    (row,) = [item for item in rows if item.bounds == {"upper": 2.0}]
    assert row.ess_seq_applied.value == pytest.approx(expected.actual["ess_seq_applied"], rel=1e-12)
    ess = expected.metrics["rollout_corr/rollout_is_eff_sample_size"]
    assert row.ess_trainer == pytest.approx(ess, rel=1e-12)


def test_how_the_rows_are_cut_into_batches_does_not_matter(result, tmp_path, monkeypatch):
    monkeypatch.setattr("rcdiag.table.readers.parquet.TOKENS_PER_BATCH", 1)
    cut = run(tmp_path, rows_per_group=7)
    for name, family in result.families.items():
        for row, other in zip(family.rows, cut.families[name].rows, strict=True):
            assert other.kept_tokens == row.kept_tokens
            assert other.kept_groups == row.kept_groups
            assert other.ess_token_applied == close(row.ess_token_applied)
            assert other.ess_seq_applied.value == close(row.ess_seq_applied.value)
            assert other.mean_weight.low == close(row.mean_weight.low)
    assert cut.recommendation.answer == result.recommendation.answer
    assert cut.recommendation.choice == result.recommendation.choice


def close(value: float | None) -> Any:
    return None if value is None else pytest.approx(value, rel=1e-9, abs=1e-12)


def test_recorded_advantages_are_used(result, tmp_path):
    recorded = run(tmp_path, advantage=[float(row % 2) for row in range(ROWS)])
    assert any(row.advantage_shift.value for row in recorded.families["geo_rs"].rows)
    assert all(row.advantage_shift.value is None for row in result.families["geo_rs"].rows)


def test_nan_values_give_fix_the_cause(tmp_path):
    rows = columns()
    rows["old_log_probs"][3] = [nan] * len(rows["old_log_probs"][3])
    result = run(tmp_path, old_log_probs=rows["old_log_probs"])
    assert result.recommendation.answer == "fix-the-cause"
    slugs = {finding.slug for finding in result.findings}
    assert {"non-finite-log-probs", "fix-before-correcting"} <= slugs
    assert to_json(result)


def test_without_groups_and_rewards_the_other_results_are_given(tmp_path):
    table = {name: values for name, values in columns().items() if name != "group_id"}
    del table["reward"]
    result = sweep(open_table(write_table(tmp_path / "a.parquet", **table)), thresholds=20)
    assert (result.num_groups_with_two, result.num_clusters) == (0, ROWS)
    assert all(row.kept_groups == 0 for row in result.families["geo_rs"].rows)
    assert any("no rewards" in reason for reason in result.recommendation.reasons)


def test_a_table_without_any_unmasked_token_is_refused(tmp_path):
    mask = [[0] * len(ids) for ids in columns()["response_ids"]]
    with pytest.raises(RcdiagError, match=r"a\.parquet: no unmasked"):
        run(tmp_path, response_mask=mask)


def test_unknown_trainers_and_policies_are_refused(tmp_path):
    dump = open_table(write_table(tmp_path / "a.parquet", **columns()))
    with pytest.raises(RcdiagError):
        sweep(dump, trainer="nobody")
    with pytest.raises(RcdiagError):
        rcdiag.sweep(dump, behavior="old", target="old")


def test_names_of_groups_and_numbering_of_tokens_have_no_effect(tmp_path):
    """400 groups are more than the limit of separate sums."""
    random = np.random.default_rng(3)
    groups, width = np.repeat(np.arange(400), 2), 12
    logits = random.normal(0.0, 2.0, 900)
    laws = [np.log(np.exp(x) / np.exp(x).sum()) for x in (logits, random.normal(logits, 0.1))]
    ids = random.choice(900, (len(groups), width), p=np.exp(laws[0]))
    behavior, target = (law[ids] for law in laws)
    reward = random.random(len(groups))

    def swept(name: str, ids: np.ndarray, groups: list[str]) -> SweepResult:
        path = write_table(
            tmp_path / f"{name}.parquet",
            response_ids=ids.tolist(),
            rollout_log_probs=behavior.tolist(),
            old_log_probs=target.tolist(),
            group_id=groups,
            reward=reward.tolist(),
        )
        return sweep(open_table(path), thresholds=4)

    expected = swept("a", ids, [f"prompt {group}" for group in groups])
    other = random.permutation(100_000)
    renamed = swept("b", other[ids], [f"{other[group]}-x" for group in groups])
    assert renamed.recommendation.answer == expected.recommendation.answer
    for one, wanted in zip(
        renamed.recommendation.candidates, expected.recommendation.candidates, strict=True
    ):
        assert one.name == wanted.name
        assert one.gradient_noise == pytest.approx(wanted.gradient_noise, rel=1e-9)
        assert one.gradient_bias_high == pytest.approx(wanted.gradient_bias_high, rel=1e-6)
