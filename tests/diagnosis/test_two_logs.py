"""Several training logs together: which run is worst, what it is called, where it leaves others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rcdiag
from rcdiag.formats import shortest_names
from rcdiag.pages.diagnose.logs import over_steps
from rcdiag.results import DiagnoseResult
from tests.diagnosis.test_logged import BEGINS, STEPS, log_of, run_of

CONFIG = """
algorithm:
  rollout_correction: {rollout_is: token, rollout_is_threshold: 2.0, bypass_mode: false}
actor_rollout_ref:
  rollout: {name: vllm, calculate_log_probs: true}
"""


def said_over_steps(result: DiagnoseResult) -> str:
    assert result.diagnosis is not None
    assert result.diagnosis.over_steps is not None
    return result.diagnosis.over_steps.says


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a/m.csv", "b/m.csv", "b/n.csv"], ["a/m.csv", "b/m.csv", "n.csv"]),
        (["x/a/m.csv", "y/a/m.csv"], ["x/a/m.csv", "y/a/m.csv"]),
        (["m.csv", "a/m.csv"], ["m.csv", "a/m.csv"]),
        (["imp_weight/avg", "approx_kl/avg"], ["imp_weight/avg", "approx_kl/avg"]),
        (["train/mis_kl"], ["mis_kl"]),
    ],
)
def test_names_have_the_last_parts_that_tell_them_apart(paths: list[str], names: list[str]) -> None:
    assert shortest_names(paths) == names


def test_logs_of_one_name_are_called_by_their_folders(tmp_path: Path) -> None:
    paths = []
    for folder, after in (("healthy", 0.01), ("failed", 0.2)):
        (tmp_path / folder).mkdir()
        paths.append(log_of(run_of(0.01, after), tmp_path / folder, "metrics.jsonl"))
    result = rcdiag.diagnose(paths)
    assert result.diagnosis is not None
    assert result.diagnosis.summary.startswith("failed/metrics.jsonl: ")
    deviates = f"failed/metrics.jsonl deviates from healthy/metrics.jsonl at step {BEGINS + 1}"
    assert deviates in said_over_steps(result)
    assert [log.file for log in result.logs] == [str(path) for path in paths]
    (panel, *_) = over_steps(result).panels
    assert [mark.label for mark in panel.marks] == ["healthy/metrics.jsonl", "failed/metrics.jsonl"]


def test_a_log_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    path = log_of(run_of(0.01, 0.2), tmp_path)
    assert len(rcdiag.diagnose([path, path.parent / "." / path.name]).logs) == 1


def test_of_equal_verdicts_the_run_with_a_fault_is_the_worst(tmp_path: Path) -> None:
    """A mean log-ratio alone leaves the healthy run open too, since it shows no exchanged rows."""

    def means(after: float) -> list[dict[str, float]]:
        wobble = [1e-5 * (i % 5 - 2) for i in range(STEPS)]
        return [{"train/vllm_kl": x + (after if i >= BEGINS else 0)} for i, x in enumerate(wobble)]

    paths = [log_of(means(x), tmp_path, f"{name}.jsonl") for name, x in (("a", 0.0), ("b", 0.3))]
    result = rcdiag.diagnose(paths)
    assert result.diagnosis is not None
    assert [log.log_verdict for log in result.logs] == ["inconclusive", "inconclusive"]
    assert result.diagnosis.summary.startswith("b.jsonl: ")
    assert result.diagnosis.causes[0].from_step == BEGINS + 1


def test_a_fault_from_the_first_step_on_is_a_difference_of_levels(tmp_path: Path) -> None:
    """Chance moves of one key later on are not where the runs part."""
    failed = run_of(0.2, 0.2)
    for i, row in enumerate(failed):
        row["rollout_corr/chi2_seq"] = 8.0 if i == 9 else 1.0
    healthy = [{**row, "rollout_corr/chi2_seq": 0.001} for row in run_of(0.01, 0.01)]
    paths = [log_of(failed, tmp_path, "failed.jsonl"), log_of(healthy, tmp_path, "healthy.jsonl")]
    says = said_over_steps(rcdiag.diagnose(paths))
    assert says.startswith(
        "failed.jsonl differs from healthy.jsonl from their first common step 1 on: "
        "`rollout_corr/kl` 0.02 and 5e-05, "
    )
    assert "deviates" not in says


def test_a_growing_fault_parts_from_a_healthy_run_where_it_began(tmp_path: Path) -> None:
    """The ESS of a healthy run has almost no noise; its late move is not the first."""
    grown = [0.01 + 0.2 * max(i - BEGINS, 0) / (STEPS - BEGINS) for i in range(STEPS)]
    failed = [run_of(x, x)[i] for i, x in enumerate(grown)]
    healthy = run_of(0.01, 0.01)
    for i, (bad, good) in enumerate(zip(failed, healthy, strict=True)):
        good["rollout_corr/rollout_is_eff_sample_size"] = 0.9999 - 1e-6 * (i % 3)
        late = max(grown[i] - 0.12, 0.0)
        bad["rollout_corr/rollout_is_eff_sample_size"] = 0.9999 - 1e-6 * (i % 3) - late
    paths = [log_of(failed, tmp_path, "failed.jsonl"), log_of(healthy, tmp_path, "healthy.jsonl")]
    result = rcdiag.diagnose(paths)
    assert result.diagnosis is not None
    began = result.diagnosis.causes[0].from_step
    assert began is not None
    assert abs(began - (BEGINS + 1)) <= 2
    assert f"deviates from healthy.jsonl at step {began}: `" in said_over_steps(result)


def test_keys_of_another_generation_are_named_and_share_a_panel(tmp_path: Path) -> None:
    healthy = [
        {key.replace("rollout_corr/", "mismatch/mismatch_"): x for key, x in row.items()}
        for row in run_of(0.01, 0.01)
    ]
    paths = [
        log_of(run_of(0.01, 0.2), tmp_path, "new.jsonl"),
        log_of(healthy, tmp_path, "old.jsonl"),
    ]
    result = rcdiag.diagnose(paths)
    assert "`rollout_corr/k3_kl` (there `mismatch/mismatch_k3_kl`)" in said_over_steps(result)
    chart = over_steps(result)
    (panel,) = (one for one in chart.panels if "k3_kl" in one.title)
    assert panel.title == "rollout_corr/k3_kl or mismatch/mismatch_k3_kl"
    lines = {mark.where for mark in panel.marks}
    drawn = {("run", run) for key, run, *_ in chart.rows if key == panel.title}
    assert lines == drawn
    assert len(drawn) == 2


def test_a_configuration_counts_for_the_runs_of_its_trainer(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(CONFIG)
    of_trl = [
        {"sampling/sampling_logp_difference/mean": 1e-3, "completions/mean_length": 100.0 + i % 3}
        for i in range(STEPS)
    ]
    paths = [
        log_of(of_trl, tmp_path, "trl.jsonl"),
        log_of(run_of(0.01, 0.01), tmp_path, "verl.jsonl"),
    ]
    for given in ({"trainer_config": config}, {"trainer": "verl"}):
        logs = rcdiag.diagnose(paths, **given).logs
        assert [log.trainer_of_log for log in logs] == ["trl", "verl"]
    # Of a log alone the user says what it is.
    assert rcdiag.diagnose(paths[0], trainer="verl").logs[0].trainer_of_log == "verl"


def test_what_is_said_of_several_runs_is_made_of_sentences(tmp_path: Path) -> None:
    paths = [log_of(run_of(0.01, 0.01), tmp_path, f"{name}.jsonl") for name in "ab"]
    says = said_over_steps(rcdiag.diagnose(paths))
    assert says.endswith(f". No measure of the mismatch changes over steps 1 to {STEPS}.")


def test_a_mean_of_squares_near_0_does_not_move(tmp_path: Path) -> None:
    """E[ratio^2] of responses far below 1 is the sum of a few of them."""
    rows = run_of(0.3, 0.3)
    for i, row in enumerate(rows):
        row["rollout_corr/chi2_seq"] = -1.0 + (1e-2 if i == 9 else 1e-6)
    moved = rcdiag.diagnose(log_of(rows, tmp_path)).logs[0].keys_moved
    assert "rollout_corr/chi2_seq" not in [one.key for one in moved]


def test_a_size_from_weights_names_both_keys(tmp_path: Path) -> None:
    """AReaL logs the mean of bounded weights, and a mean log-ratio with the other sign than k1."""
    key = "ppo_actor/update/behave_{}/avg"
    rows = [
        {key.format("approx_kl"): 1e-5 * (i % 3 - 1), key.format("imp_weight"): 1.08}
        for i in range(STEPS)
    ]
    said = rcdiag.diagnose(log_of(rows, tmp_path)).diagnosis
    assert said is not None
    weights = "`ppo_actor/update/behave_imp_weight/avg - 1 - ppo_actor/update/behave_approx_kl/avg`"
    assert weights in said.summary


def test_a_pair_in_python_and_in_json_is_the_same(tmp_path: Path) -> None:
    paths = [log_of(run_of(0.01, x), tmp_path, f"{x}.jsonl") for x in (0.01, 0.2)]
    result = rcdiag.diagnose(paths)
    document = json.loads(result.to_json())
    assert [log["file"] for log in document["logs"]] == [str(path) for path in paths]
    assert document["diagnosis"]["over_steps"]["says"] == said_over_steps(result)
