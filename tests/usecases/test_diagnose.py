"""`rcdiag.diagnose` on the sample data: real policies, real samplers, known faults."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console

import rcdiag
from cli.terminal.diagnose import draw_diagnose
from rcdiag.errors import RcdiagError
from rcdiag.results import DiagnoseResult
from rcdiag.usecases.checkpoints import beside, folders_of
from tests.builders import write_table

SAMPLES = Path(__file__).parents[2] / "sample_data"
POLICY = SAMPLES / "policy"


@pytest.fixture(scope="module")
def stale() -> DiagnoseResult:
    return rcdiag.diagnose(SAMPLES / "stale.parquet", model=POLICY / "step_8", rows=48)


@pytest.mark.engine
def test_an_older_checkpoint_in_the_same_folder_is_named(stale):
    assert stale.diagnosis is not None
    first = stale.diagnosis.causes[0]
    assert (first.slug, first.verdict) == ("stale-weights", "correctable")
    assert first.confidence >= 0.9
    assert {Path(folder).name for folder in stale.checkpoints} == {"step_0", "step_4"}
    by_row = [max(row["probability"], key=row["probability"].get) for row in stale.weights]
    assert by_row == ["step_0"] * stale.rows_read
    assert sum(row["row_explained"] for row in stale.weights) >= 0.9 * stale.rows_read


@pytest.mark.engine
def test_the_evidence_counts_every_row_once(stale):
    evidence = dict(stale.diagnosis.causes[0].evidence[0])
    assert evidence.pop("name") == "rows by the weights that explain them"
    evidence.pop("reads")
    assert sum(evidence.values()) == stale.rows_read
    assert all(evidence.values())  # checkpoints without rows are not listed
    assert re.search(r"In all [\d,]+ rows .*tested\b", stale.diagnosis.summary)


@pytest.mark.engine
@pytest.mark.parametrize("verbose", [False, True])
def test_the_screen_lists_better_fits_and_counts_the_rest(stale, verbose):
    out = StringIO()
    draw_diagnose(Console(file=out, width=200), stale, verbose)
    labels = ("rollout  ",) if verbose else ("explained  ", "in part  ")
    lines = [line for line in out.getvalue().splitlines() if line.startswith(labels)]
    nearer = [one for one in stale.experiments if one.gain > 0 and one.rms_left < one.rms_before]
    assert "weights of step_0" in lines[0]
    if verbose:
        assert len(lines) == len(stale.experiments)
    else:
        assert lines[0].startswith("explained  ")
        assert 1 <= len(lines) <= min(len(nearer), 4)
        rest = len(stale.experiments) - len(lines)
        assert f"{rest} more settings (all: -v)" in " ".join(out.getvalue().split())


def test_a_table_without_log_probs_is_refused_with_commands_that_score_it(tmp_path):
    table = write_table(tmp_path / "a dump.parquet", response_ids=[[1, 2]], prompt_ids=[[3]])
    with pytest.raises(RcdiagError, match="no column of log-probs") as caught:
        rcdiag.diagnose(table)
    command = (
        f"rcdiag score '{table}' --model CKPT --policy rollout=vllm:bfloat16 "
        "--policy old=hf:float32 -o scored.parquet, then rcdiag diagnose scored.parquet"
    )
    assert command in caught.value.hint
    without_prompts = write_table(tmp_path / "b.parquet", response_ids=[[1, 2]])
    with pytest.raises(RcdiagError, match="no column of log-probs") as caught:
        rcdiag.diagnose(without_prompts)
    assert "without `prompt_ids` no engine" in caught.value.hint


@pytest.mark.slow
@pytest.mark.engine
def test_with_little_time_the_most_likely_cause_is_tested_first_on_few_rows():
    """The metadata declare different weights, which outweighs every other experiment."""
    hurried = rcdiag.diagnose(SAMPLES / "stale.parquet", model=POLICY / "step_8", budget=0.01)
    assert hurried.diagnosis is not None
    first = hurried.diagnosis.causes[0]
    assert (first.slug, hurried.rows_read) == ("stale-weights", 16)
    assert {one.experiment for one in hurried.experiments} == {"checkpoints"}
    assert [one.explained for one in hurried.experiments] == [True, False]
    assert hurried.experiments[0].setting == "weights of step_0"


@pytest.mark.engine
def test_experiments_that_did_not_run_for_lack_of_time_are_open():
    table = SAMPLES / "temperature.parquet"
    hurried = rcdiag.diagnose(table, model=POLICY / "step_8", budget=0.01)
    assert hurried.rows_read == 16
    assert hurried.experiments == []
    assert {"quantities", "kept-sets"} <= set(hurried.open)
    assert hurried.diagnosis is not None
    assert hurried.diagnosis.next[0].text.startswith("run what did not fit into the budget")
    assert (
        hurried.diagnosis.verdict == "broken"
    )  # the temperature of the tokens needs no forward pass


@pytest.mark.engine
def test_a_result_survives_a_json_round_trip(stale, tmp_path):
    stale.save(tmp_path / "r.json")
    again = rcdiag.load_result(tmp_path / "r.json")
    assert json.loads(again.to_json()) == json.loads(stale.to_json())
    assert again.frame("causes")["slug"].to_list()[0] == "stale-weights"
    written = rcdiag.report(again, tmp_path / "r.html")
    assert "weights-by-row" in written[0].read_text()


@pytest.mark.slow
@pytest.mark.engine
def test_the_temperature_of_the_sampler_is_estimated_from_the_tokens():
    result = rcdiag.diagnose(SAMPLES / "temperature.parquet", model=POLICY / "step_8", rows=64)
    assert result.diagnosis is not None
    assert result.diagnosis.verdict == "broken"
    assert result.diagnosis.causes[0].slug in (
        "temperature-raw-recorded",
        "trainer-without-temperature",
    )
    assert result.token_temperature is not None
    assert result.token_temperature.low < 0.7 < result.token_temperature.high


@pytest.mark.slow
@pytest.mark.engine
def test_a_healthy_run_leaves_engine_noise():
    result = rcdiag.diagnose(SAMPLES / "multi_turn.parquet", model=POLICY / "step_8", rows=48)
    assert result.diagnosis is not None
    assert result.diagnosis.verdict in ("healthy", "correctable")
    assert [cause.slug for cause in result.diagnosis.causes][-1:] == ["engine-noise"]
    assert result.open == []


@pytest.mark.engine
@pytest.mark.parametrize(
    ("model", "steps"),
    [
        pytest.param(POLICY / "step_8", [8], marks=pytest.mark.slow),
        (str(POLICY / "step_{step}"), [0, 4, 8]),
    ],
)
def test_a_checkpoint_is_applied_to_the_rows_of_its_step(model, steps):
    """The table has nine steps, three of them with a checkpoint."""
    result = rcdiag.diagnose(SAMPLES / "rollouts.parquet", model=model, rows=24)
    assert result.steps_of_model == steps
    assert result.diagnosis is not None
    assert result.diagnosis.verdict in ("healthy", "correctable")
    assert [cause.slug for cause in result.diagnosis.causes] == ["engine-noise"]


@pytest.mark.slow
@pytest.mark.engine
def test_agreeing_columns_are_not_blamed_for_a_wrong_checkpoint():
    result = rcdiag.diagnose(SAMPLES / "multi_turn.parquet", model=POLICY / "step_0", rows=24)
    assert result.diagnosis is not None
    assert result.diagnosis.verdict in ("healthy", "correctable")
    assert [cause.slug for cause in result.diagnosis.causes] == ["engine-noise"]
    assert "not the given model's" in result.diagnosis.summary


def _scored_otherwise(fault: str) -> dict[str, list]:
    """Score rows of the sample with the trainer's weights and one fault."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(POLICY / "step_8")
    if fault == "rotary base":
        config.rope_parameters = {**config.rope_parameters, "rope_theta": 12_000.0}
    model = AutoModelForCausalLM.from_pretrained(
        POLICY / "step_8", config=config, dtype=torch.float32
    ).eval()
    rows = pq.read_table(SAMPLES / "stale.parquet").slice(0, 32)
    columns = {name: rows[name].to_pylist() for name in ("prompt_ids", "response_ids")}
    other = []
    for prompt, response in zip(*columns.values(), strict=True):
        ids = torch.tensor([[*prompt, *response]])
        with torch.no_grad():
            laws = model(ids).logits[0].log_softmax(-1)
        after = int(fault == "logits not shifted")
        first = len(prompt) - 1 + after
        law = laws[first : first + len(response)]
        other.append(law.gather(1, torch.tensor(response)[:, None])[:, 0].tolist())
    return {
        **columns,
        "rollout_log_probs": rows["old_log_probs"].to_pylist(),
        "old_log_probs": other,
    }


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize(
    ("fault", "slug"),
    [
        ("logits not shifted", "logits-not-shifted"),
        ("rotary base", "rope-theta"),
    ],
)
def test_a_fault_of_the_trainers_forward_is_found_on_few_rows(fault, slug):
    """A rotary base of 1.2 times the model's is between scanned values."""
    table = rcdiag.open_table(_scored_otherwise(fault))
    result = rcdiag.diagnose(table, model=POLICY / "step_8")
    assert result.diagnosis is not None
    first = result.diagnosis.causes[0]
    assert (first.slug, first.verdict, first.side) == (slug, "broken", "trainer")
    assert first.confidence > 0.9


def test_a_table_without_prompts_is_judged_without_experiments(tmp_path):
    rows = pq.read_table(SAMPLES / "stale.parquet").drop_columns(["prompt_ids"])
    pq.write_table(rows, tmp_path / "bare.parquet")
    result = rcdiag.diagnose(tmp_path / "bare.parquet", model=POLICY / "step_8")
    assert result.diagnosis is not None
    assert result.diagnosis.causes[0].slug == "stale-weights"
    assert result.experiments == []
    assert any("prompt_ids" in finding.message for finding in result.findings)


@pytest.mark.engine
def test_a_name_by_step_without_any_folder_is_refused():
    with pytest.raises(RcdiagError, match="no folder for any of the steps 0, 1"):
        rcdiag.diagnose(SAMPLES / "rollouts.parquet", model=str(POLICY / "epoch_{step}"))


def small_table(path: Path) -> Path:
    rows = [[-0.1, -0.5, -2.0], [-0.3, -1.5]]
    ids = [[5, 6, 7], [8, 1]]
    return write_table(
        path, prompt_ids=ids, response_ids=ids, rollout_log_probs=rows, old_log_probs=rows
    )


def test_without_a_model_the_table_alone_is_judged(tmp_path):
    table = small_table(tmp_path / "t.parquet")
    result = rcdiag.diagnose(table)
    assert result.trainer_model is None
    assert result.experiments == []
    assert result.diagnosis == rcdiag.diagnose(str(table)).diagnosis


def test_checkpoints_beside_a_checkpoint_are_those_of_other_steps():
    assert [folder.name for folder in beside(POLICY / "step_8")] == ["step_4", "step_0"]
    assert {folder.name for folder in folders_of([POLICY])} == {"step_0", "step_4", "step_8"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoints": POLICY / "step_0"}, "compared with the trainer's"),
        ({"budget": 0.0}, "out of range"),
        ({"rows": 0}, "out of range"),
        ({"model": "/nowhere/at/all"}, "no such folder"),
    ],
)
def test_impossible_options_are_refused(tmp_path, options, message):
    with pytest.raises(RcdiagError, match=message):
        rcdiag.diagnose(small_table(tmp_path / "t.parquet"), **options)
