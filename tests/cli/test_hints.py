"""Commands in hints work when followed, and a misspelt word gets the closest valid one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pyarrow as pa
import pytest

from tests.builders import write_table

COLUMNS = ("--column", "response_ids=tokens", "--column", "old_log_probs=logprobs")


@pytest.fixture
def own(tmp_path) -> Path:
    log_probs = pa.array([[-1.0, -0.5], [-0.7], [-0.2]])
    return write_table(
        tmp_path / "own.parquet",
        tokens=pa.array([[1, 2], [3], [4]]),
        logprobs=log_probs,
        inference_logprobs=log_probs,
        group=pa.array([0, 0, 1]),
        reward=pa.array([0.0, 1.0, 0.0]),
    )


@pytest.mark.parametrize("command", ["score", "sweep", "replay"])
def test_the_first_hint_makes_the_command_work(rcdiag, own, command):
    ran = rcdiag(command, own, "--dry-run")
    assert ran.code == 2
    (options,) = re.findall(r"hint: (--column .*?)(?: \(the most similar|;|$)", ran.err.strip())
    assert rcdiag(command, own, *shlex.split(options), "--dry-run").code == 0


def test_compare_offers_columns_for_the_pair_that_is_missing(rcdiag, own):
    ran = rcdiag("compare", own, "--column", "response_ids=tokens")
    assert "read: `rollout_log_probs` from `inference_logprobs` (prime-rl)" in ran.err
    assert "hint: --column old_log_probs=logprobs (" in ran.err


def test_a_policy_name_that_is_a_column_gets_the_hint_to_map_it(rcdiag, own):
    ran = rcdiag("score", own, *COLUMNS, "--behavior", "inference_logprobs")
    ran.refuses("is a column, which is read as policy `rollout`", "hint: --behavior rollout")
    off = (*COLUMNS, "--column", "rollout_log_probs=")
    ran = rcdiag("score", own, *off, "--behavior", "inference_logprobs")
    hint = shlex.split(ran.err.split("hint: ")[1])
    assert " ".join(hint) == (
        "--column inference_log_probs=inference_logprobs --behavior inference"
    )
    assert rcdiag("score", own, *off, *hint, "-q").code == 0
    ran = rcdiag("score", own, *COLUMNS, "--target", "old_log_probs")
    assert "hint: --target old" in ran.err


def test_columns_that_are_read_by_their_names_are_a_note(rcdiag, own):
    document = rcdiag("score", own, *COLUMNS, "--json").document
    (note,) = [one for one in document["findings"] if one["slug"] == "columns-read-by-name"]
    assert note["severity"] == "note"
    taken = {"rollout_log_probs": "inference_logprobs", "group_id": "group"}
    assert note["evidence"] == {"columns": taken}
    assert document["provenance"]["columns_read_as"].items() >= taken.items()
    off = (*COLUMNS, "--column", "rollout_log_probs=inference_logprobs", "--column", "group_id=")
    document = rcdiag("score", own, *off, "--json").document
    slugs = {one["slug"] for one in document["findings"]}
    assert not slugs & {"columns-read-by-name", "column-not-read"}
    assert "group_id" not in document["provenance"]["columns_read_as"]


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (("score", "--trainer", "verll"), "verl"),
        (("score", "--trainer", "Verl-0.8"), "verl-0.8.0"),
        (("score", "--policy", "new=vlm:bfloat16"), "vllm"),
        (("score", "--policy", "new=hf:bf16"), "bfloat16"),
        (("score", "--policy", "new=hf:fp32"), "float32"),
        (("score", "--policy", "new=hf:float32,lm_head=bf16"), "bfloat16"),
        (("score", "--preset", "decoupled_token"), "decoupled_token_is"),
        (("score", "--set", "decoupled_token_is.threshold=3"), "rollout_is_threshold"),
        (("score", "--set", "decoupled_k3_rs.threshold=3"), "rollout_rs_threshold"),
        (("score", "--fail-on", "warnings"), "warning"),
        (("score", "--arithmetic", "float"), "float64"),
        (("score", "--ladder", "engines"), "engine"),
        (("sweep", "--emit", "verl", "--candidate", "seq_tiss_5"), "seq_tis_5"),
        (("sweep", "--emit", "slimes"), "slime"),
        (("replay", "--aggregation", "token_mean"), "token-mean"),
        (("replay", "--loss", "vanila"), "vanilla"),
        (("replay", "--advantage", "grop"), "grpo"),
    ],
)
def test_a_misspelt_word_gets_the_closest_valid_one(rcdiag, clean, arguments, near):
    command, *rest = arguments
    ran = rcdiag(command, clean, *rest)
    assert ran.code == 2
    assert f"did you mean {near}? " in f"{' '.join(ran.err.split())} "


def test_an_unknown_level_of_a_trainer_gets_the_closest_one(rcdiag, clean):
    level = "decoupled_token_is.rollout_is=tokens"
    ran = rcdiag("score", clean, "--preset", "decoupled_token_is", "--set", level, "--json")
    fixes = [finding["fix"] for finding in ran.document["findings"]]
    assert any("did you mean token? " in fix for fix in fixes)


@pytest.mark.parametrize("quiet", [(), ("-q",), ("--json",)])
def test_a_failing_exit_code_says_why_in_one_line(rcdiag, bad, quiet):
    ran = rcdiag("score", bad, "--fail-on", "error", *quiet)
    assert ran.code == 1
    (line,) = [line for line in ran.err.splitlines() if line.startswith("exit 1")]
    assert line.startswith("exit 1 by --fail-on error: ")
    assert "mismatch-above-guide" in line


def test_an_exit_code_of_0_says_nothing(rcdiag):
    sample = Path(__file__).parents[2] / "sample_data" / "multi_turn.parquet"
    assert rcdiag("score", sample, "--fail-on", "error", "-q").err == ""
