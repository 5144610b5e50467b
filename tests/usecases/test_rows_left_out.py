"""Rows with NaN or impossible log-probs are left out of `mismatch`, counted and named."""

from __future__ import annotations

import json
from math import inf, nan
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import rcdiag
from rcdiag.results import CompareResult, Finding, ScoreResult, from_json, to_json
from tests.builders import Lists, arrow_table, ids_like, write_table


def draws(count: int) -> tuple[Lists, Lists]:
    """Draw log-probs of both policies on `count` rows of four tokens."""
    random = np.random.default_rng(0)
    behavior = random.uniform(-3.0, -1.0, (count, 4))
    return behavior.tolist(), (behavior + random.normal(0.0, 0.1, behavior.shape)).tolist()


def table_of(path: Path, behavior: Lists, target: Lists, **columns: list) -> Path:
    return write_table(
        path,
        response_ids=ids_like(behavior),
        rollout_log_probs=behavior,
        old_log_probs=target,
        **columns,
    )


def finding_of(result: ScoreResult | CompareResult) -> Finding:
    (finding,) = [item for item in result.findings if item.slug == "non-finite-log-probs"]
    return finding


def test_numbers_are_those_of_the_other_rows(tmp_path):
    behavior, target = draws(20)
    clean = rcdiag.score(table_of(tmp_path / "clean.parquet", behavior[2:], target[2:]))
    target[0][1], target[1][3] = nan, -inf
    result = rcdiag.score(table_of(tmp_path / "dirty.parquet", behavior, target))
    assert result.mismatch == clean.mismatch
    assert (result.num_sequences, result.num_tokens, result.rows_left_out) == (20, 80, 2)
    finding = finding_of(result)
    assert "`mismatch` is computed without these rows" in finding.message
    assert f"{tmp_path}/dirty.parquet, row 0; {tmp_path}/dirty.parquet, row 1" in finding.message
    assert finding.evidence["first_rows"] == [0, 1]
    assert finding.evidence["first_places"][1].endswith("dirty.parquet, row 1")
    logged = result.corrections["decoupled_token_is"]
    assert logged.kept_tokens == 80
    assert np.isnan(logged.metrics["rollout_corr/k3_kl"])
    assert from_json(to_json(result), "r").rows_left_out == 2


@pytest.mark.parametrize(("bad", "null"), [(10, False), (11, True), (20, True)])
def test_metrics_are_null_below_half_of_the_rows(tmp_path, bad, null):
    behavior, target = draws(20)
    for row in target[:bad]:
        row[0] = nan
    result = rcdiag.score(table_of(tmp_path / "a.parquet", behavior, target))
    assert all((value.value is None) >= null for value in result.mismatch.values())
    assert (result.mismatch["k3_kl"].value is None) == null
    assert result.rows_left_out == bad
    assert ("`mismatch` is null" in finding_of(result).message) == null
    assert rcdiag.report([result], tmp_path / "page.html") == [tmp_path / "page.html"]


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_metrics_are_null_for_a_constant_column(tmp_path, value):
    behavior, _ = draws(40)
    constant = [[value] * 4 for _ in behavior]
    table = table_of(tmp_path / "a.parquet", behavior, constant)
    result = rcdiag.score(table)
    assert result.diagnosis.verdict == "broken"
    assert all(metric.value is None for metric in result.mismatch.values())
    assert result.rows_left_out == 0
    (pair,) = {frozenset(name.split("->")) for name in rcdiag.compare(table).pairs}
    assert pair == {"rollout", "old"}
    for one in rcdiag.compare(table).pairs.values():
        assert all(metric.value is None for metric in one.mismatch.values())
    one_other = [*constant[:-1], [*constant[-1][:-1], value - 0.5]]
    result = rcdiag.score(table_of(tmp_path / "b.parquet", behavior, one_other))
    assert result.mismatch["k3_kl"].value is not None


BACKENDS = [  # metadata of the column, and whether its metrics are given
    ({}, False),
    ({"name": "old", "backend": "vllm", "engine_options": {"logprobs_mode": "x"}}, False),
    ({"name": "old", "backend": "acme", "dtype": "float32", "options": {}}, True),
]


@pytest.mark.parametrize(("about", "counts"), BACKENDS)
def test_a_constant_column_is_valid_only_if_an_engine_scored_it(tmp_path, about, counts):
    """`score`, `compare` and `replay` agree."""
    behavior, _ = draws(40)
    table = tmp_path / "a.parquet"
    columns = arrow_table(
        response_ids=ids_like(behavior),
        rollout_log_probs=behavior,
        old_log_probs=[[-2.0] * 4 for _ in behavior],
        advantage=[1.0, -1.0] * 20,
    )
    noted = json.dumps({"policies": {"old": about}})
    pq.write_table(columns.replace_schema_metadata({"rcdiag": noted}), table)
    (pair,) = (each for each in rcdiag.compare(table).pairs.values() if each.target == "old")
    replayed = rcdiag.replay(table).factors
    numbers = {
        "score": rcdiag.score(table).mismatch["k3_kl"].value,
        "compare": pair.mismatch["k3_kl"].value,
        "mismatch of replay": replayed["mismatch"].k3_kl.value,
        "product of replay": replayed["product"].k3_kl.value,
    }
    assert {name: number is not None for name, number in numbers.items()} == dict.fromkeys(
        numbers, counts
    )


def test_a_few_tokens_may_be_equal_by_chance(tmp_path):
    table = table_of(tmp_path / "a.parquet", [[-1.0, -1.0], [-1.0]], [[-1.1, -0.9], [-1.0]])
    assert rcdiag.score(table).mismatch["k3_kl"].value is not None


def test_a_step_is_judged_by_its_own_rows(tmp_path):
    behavior, target = draws(20)
    for row in target[:5]:
        row[2] = nan
    steps = [0] * 5 + [1] * 15
    result = rcdiag.score(table_of(tmp_path / "a.parquet", behavior, target, step=steps))
    assert result.steps["0"].mismatch["k3_kl"].value is None
    assert result.steps["0"].corrections
    assert (result.steps["0"].num_sequences, result.steps["0"].rows_left_out) == (5, 5)
    assert result.steps["1"].rows_left_out == 0
    assert result.mismatch["k3_kl"].value == pytest.approx(
        result.steps["1"].mismatch["k3_kl"].value or 0.0, rel=1e-12
    )


def test_pairs_of_a_comparison_are_of_the_same_rows(tmp_path):
    behavior, target = draws(20)
    other = [[value - 0.1 for value in row] for row in behavior]
    clean = rcdiag.compare(
        table_of(tmp_path / "a.parquet", behavior[1:], target[1:], vllm_log_probs=other[1:])
    )
    target[0][0] = nan
    path = table_of(tmp_path / "b.parquet", behavior, target, vllm_log_probs=other)
    result = rcdiag.compare(path)
    assert result.rows_left_out == 1
    for name, pair in result.pairs.items():
        assert pair.mismatch == clean.pairs[name].mismatch
    assert "`mismatch` is computed without these rows" in finding_of(result).message


def test_the_level_of_a_correction_is_unknown_where_its_numbers_are_missing(tmp_path):
    behavior, target = draws(20)
    names = ("decoupled_token_is", "decoupled_geo_rs", "disabled")
    clean = rcdiag.score(table_of(tmp_path / "clean.parquet", behavior, target), presets=names)
    target[0][1] = nan
    result = rcdiag.score(table_of(tmp_path / "dirty.parquet", behavior, target), presets=names)
    assert "unknown" not in {clean.corrections[name].level for name in names}
    weighted = result.corrections["decoupled_token_is"]
    assert np.isnan(weighted.weight_sum)
    assert weighted.level == "unknown"
    # No correction is judged by `mismatch`, which is computed on other rows.
    assert result.corrections["disabled"].level == result.mismatch["k3_kl"].level == "warning"


def test_a_finding_is_named_after_the_fault_of_the_values(tmp_path):
    behavior, target = draws(20)
    target[0][1], target[1][3], target[2][0], target[2][2] = nan, inf, 0.4, 1.5
    result = rcdiag.score(table_of(tmp_path / "a.parquet", behavior, target))
    found = {one.slug: one for one in result.findings if one.slug.endswith("-log-probs")}
    assert set(found) == {"non-finite-log-probs", "positive-log-probs"}
    assert found["positive-log-probs"].evidence["first_rows"] == [2]
    assert found["positive-log-probs"].evidence["tokens"] == 2
    assert (
        "2 unmasked log-probs of `old` are positive, in 1 row ("
        in found["positive-log-probs"].message
    )
    assert found["non-finite-log-probs"].evidence["first_rows"] == [0, 1]
    assert result.rows_left_out == 3


def test_positive_values_alone_are_not_called_non_finite(tmp_path):
    behavior, target = draws(20)
    target[5][0] = 0.4
    result = rcdiag.score(table_of(tmp_path / "a.parquet", behavior, target))
    slugs = {one.slug for one in result.findings}
    assert "positive-log-probs" in slugs
    assert "non-finite-log-probs" not in slugs
