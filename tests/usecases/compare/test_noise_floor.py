"""Repeats of a policy: the noise floor of a comparison, never a rung of its ladder."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from rcdiag.results import CompareResult, from_json, to_json
from rcdiag.table.opening import open_table
from rcdiag.usecases.compare.run import compare
from tests.builders import flat
from tests.usecases.compare.tables import about, base_log_probs, shifted, write_policies

BASE = base_log_probs(40)
VLLM = shifted(BASE, 0.05, 1)
AGAIN = shifted(VLLM, 0.02, 2)
POLICIES = {
    "rollout": BASE,
    "vllm": VLLM,
    "vllm_again": AGAIN,
    "near": shifted(VLLM, 0.01, 3),
    "old": shifted(BASE, 0.3, 4),
}
SCORED = [
    about("vllm", "vllm", "bfloat16"),
    about("vllm_again", "vllm", "bfloat16", max_num_seqs=5, repeat_of="vllm"),
    about("near", "hf", "bfloat16"),
    about("old", "hf"),
]


def compared(tmp_path, names=tuple(POLICIES), chosen=()) -> CompareResult:
    policies = {name: POLICIES[name] for name in names}
    scored = [item for item in SCORED if item["name"] in names]
    path = write_policies(tmp_path / "a.parquet", policies, scored)
    return compare(open_table(path), policies=chosen)


def test_a_repeat_is_the_noise_floor(tmp_path):
    floor = compared(tmp_path).noise_floor
    assert floor is not None
    assert (floor.policy, floor.repeat) == ("vllm", "vllm_again")
    apart = flat(AGAIN) - flat(VLLM)
    assert floor.k2.value == pytest.approx(np.mean(apart**2) / 2, rel=1e-9)
    assert floor.log_ratio_abs_max == pytest.approx(np.abs(apart).max(), rel=1e-12)


def test_a_repeat_stays_out_of_the_ladder(tmp_path):
    result = compared(tmp_path)
    assert result.ladder.policies == ["rollout", "vllm", "near", "old"]
    assert result.policies["vllm_again"].role == "repeat"


def test_a_chosen_repeat_is_the_floor_and_not_a_rung(tmp_path):
    result = compared(tmp_path, chosen=["rollout", "vllm_again", "old", "vllm"])
    assert result.ladder.policies == ["rollout", "old", "vllm"]
    assert result.noise_floor is not None


def test_pairs_no_further_apart_than_two_runs_are_at_the_floor(tmp_path):
    result = compared(tmp_path)
    at_floor = {name for name, pair in result.pairs.items() if pair.at_floor}
    same = permutations(["vllm", "near", "vllm_again"], 2)
    assert at_floor <= {f"{a}->{b}" for a, b in same}
    assert {"vllm->near", "near->vllm", "vllm->vllm_again", "vllm_again->vllm"} <= at_floor


def test_the_finding_names_the_pairs_at_the_floor_and_not_the_repeat_itself(tmp_path):
    (finding,) = [item for item in compared(tmp_path).findings if item.slug == "noise-floor"]
    assert finding.severity == "note"
    assert "vllm->near" in finding.evidence["pairs"]
    assert "vllm->vllm_again" not in finding.evidence["pairs"]
    assert "vllm->near" in finding.message


def test_without_a_repeat_no_noise_is_reported(tmp_path):
    result = compared(tmp_path, ["rollout", "vllm", "old"])
    assert result.noise_floor is None
    assert {pair.at_floor for pair in result.pairs.values()} == {None}
    assert "noise-floor" not in {item.slug for item in result.findings}


def test_a_repeat_without_its_first_run_is_not_a_floor(tmp_path):
    result = compared(tmp_path, ["rollout", "vllm_again", "old"])
    assert result.noise_floor is None
    assert result.ladder.policies == ["rollout", "old"]


def test_a_policy_and_its_repeat_alone_have_a_floor_and_no_step(tmp_path):
    result = compared(tmp_path, ["vllm", "vllm_again"])
    assert result.noise_floor is not None
    assert result.ladder.rungs == []
    assert set(result.pairs) == {"vllm->vllm_again", "vllm_again->vllm"}
    assert from_json(to_json(result), "r") == result
