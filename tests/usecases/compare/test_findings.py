"""Findings of a comparison, and no findings without evidence."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest

from rcdiag.results import CompareResult, Finding, from_json, to_json
from rcdiag.table.opening import open_table
from rcdiag.usecases.compare.run import compare
from tests.usecases.compare.tables import about, base_log_probs, known, shifted, write_policies

BASE = base_log_probs(60)
NEAR, OTHER = shifted(BASE, 0.01, 1), shifted(BASE, 0.3, 2)
SCORED = [about("vllm", "vllm", "bfloat16"), about("old", "hf")]


def compared(tmp_path, policies, scored=SCORED, **columns) -> CompareResult:
    path = write_policies(tmp_path / "a.parquet", policies, scored, **columns)
    return compare(open_table(path))


def only(result: CompareResult, slug: str) -> Finding:
    (finding,) = [item for item in result.findings if item.slug == slug]
    return finding


@pytest.mark.parametrize(
    ("recorded", "rescored", "trainer", "agreement", "severity"),
    [
        (BASE, NEAR, OTHER, "engine-against-trainer", "warning"),
        (OTHER, BASE, NEAR, "generation-against-rescoring", "warning"),
        (BASE, OTHER, NEAR, "rescoring-stands-apart", "warning"),
        (BASE, OTHER, shifted(BASE, 0.3, 3), "three-differ", "warning"),
        (BASE, NEAR, shifted(BASE, 0.01, 3), "three-agree", "note"),
    ],
)
def test_the_verdict_is_a_finding_of_the_same_name(
    tmp_path, recorded, rescored, trainer, agreement, severity
):
    result = compared(tmp_path, {"rollout": recorded, "vllm": rescored, "old": trainer})
    assert result.triangulation is not None
    assert result.triangulation.agreement == agreement
    finding = only(result, agreement)
    assert finding.severity == severity
    assert finding.fix
    for name in ("`rollout`", "`vllm`", "`old`"):
        assert name in finding.message


@pytest.mark.parametrize(
    ("policies", "scored"),
    [
        ({"rollout": BASE, "old": OTHER}, SCORED),
        ({"rollout": BASE, "hf": NEAR, "old": OTHER}, [about("hf", "hf"), about("old", "hf")]),
        ({"vllm": BASE, "hf": NEAR, "old": OTHER}, [*SCORED, about("hf", "hf")]),
        ({"rollout": BASE, "vllm": NEAR}, SCORED),
        (
            {"rollout": BASE, "vllm": NEAR, "vllm_fp32": OTHER},
            [*SCORED, about("vllm_fp32", "vllm")],
        ),
    ],
)
def test_a_verdict_needs_recorded_rescored_and_trainer_log_probs(tmp_path, policies, scored):
    assert compared(tmp_path, policies, scored).triangulation is None


def test_a_sampler_that_is_not_nearest_is_reported_with_the_nearest(tmp_path):
    lower = [[value - 0.05 for value in row] for row in BASE]
    result = compared(tmp_path, {"rollout": lower, "old": BASE})
    finding = only(result, "recorded-is-not-nearest")
    assert result.nearest_policies == ["old"]
    assert finding.evidence == {"nearest": ["old"], "behind": pytest.approx(0.05)}
    assert "`old` fits the sampled tokens better" in finding.message


def test_a_nearest_sampler_gives_no_finding(tmp_path):
    lower = [[value - 0.05 for value in row] for row in BASE]
    result = compared(tmp_path, {"rollout": BASE, "old": lower})
    assert result.nearest_policies == ["rollout"]
    assert "recorded-is-not-nearest" not in {item.slug for item in result.findings}


def test_one_prompt_group_gives_numbers_without_intervals(tmp_path):
    result = compared(tmp_path, {"rollout": OTHER, "vllm": NEAR, "old": BASE}, group_id=[1] * 60)
    assert result.ladder.whole.low is None
    assert result.num_clusters == 1
    assert only(result, "few-clusters").evidence == {"clusters": 1}


@pytest.mark.parametrize("bad", [nan, -inf, inf])
@pytest.mark.parametrize("where", ["rollout", "vllm", "old"])
def test_nan_is_a_finding_and_stays_nan(tmp_path, bad, where):
    dirty = {"rollout": BASE, "vllm": NEAR, "old": OTHER}
    dirty[where] = [[bad, *BASE[0][1:]], *dirty[where][1:]]
    result = compared(tmp_path, dirty)
    finding = only(result, "non-finite-log-probs")
    assert finding.severity == "error"
    assert finding.evidence == {
        **{"policy": where, "tokens": 1, "rows": 1, "first_rows": [0]},
        "first_places": [f"{tmp_path / 'a.parquet'}, row 0"],
    }
    assert "`mismatch` is computed without these rows" in finding.message
    assert result.rows_left_out == 1
    for pair in result.pairs.values():
        assert np.isfinite(known(pair.mismatch["k2_kl"]))


@pytest.mark.parametrize("bad", [nan, -inf, inf])
@pytest.mark.parametrize("where", ["rollout", "vllm", "old"])
def test_a_policy_without_numbers_does_not_hide_the_others(tmp_path, bad, where):
    dirty = {"rollout": BASE, "vllm": NEAR, "old": OTHER}
    dirty[where] = [[bad, *row[1:]] for row in dirty[where]]
    result = compared(tmp_path, dirty)
    finding = only(result, "non-finite-log-probs")
    assert "`mismatch` of its pairs is null" in finding.message
    others = [name for name in dirty if name != where]
    for other in others:
        assert result.pairs[f"{where}->{other}"].mismatch["k2_kl"].value is None
    assert np.isfinite(known(result.pairs[f"{others[0]}->{others[1]}"].mismatch["k2_kl"]))
    assert result.triangulation is None
    for rung in result.ladder.rungs:
        if where in (rung.start, rung.end):
            assert rung.k2.value is None
            assert not rung.at_floor
    if where in ("rollout", "old"):
        assert result.ladder.whole.value is None
    assert to_json(from_json(to_json(result), "r")) == to_json(result)


def test_nan_at_a_masked_token_gives_no_finding(tmp_path):
    mask = [[0, *([1] * (len(row) - 1))] for row in BASE]
    dirty = [[nan, *row[1:]] for row in OTHER]
    result = compared(tmp_path, {"rollout": BASE, "old": dirty}, response_mask=mask)
    assert "non-finite-log-probs" not in {item.slug for item in result.findings}
    assert np.isfinite(known(result.ladder.whole))


def test_the_most_severe_finding_comes_first(tmp_path):
    result = compared(
        tmp_path, {"rollout": BASE, "vllm": NEAR, "old": [[nan] * len(r) for r in BASE]}
    )
    order = ["error", "warning", "note"]
    ranks = [order.index(item.severity) for item in result.findings]
    assert ranks == sorted(ranks)
    assert ranks[0] == 0
