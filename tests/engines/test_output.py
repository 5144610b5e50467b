"""What `score` writes: the table as it was, with the scores in it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.engine_models import make_model, make_table, rcdiag

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "qwen3", "qwen3")


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    """A table with a recorded policy and an entropy that does not belong to new scores."""
    path = make_table(tmp_path_factory.mktemp("tables") / "table.parquet")
    found = pq.read_table(path)
    zeros = pa.array([[-0.5] * len(row) for row in found["response_ids"].to_pylist()])
    found = found.append_column("old_log_probs", zeros).append_column("old_entropy", zeros)
    pq.write_table(found.replace_schema_metadata({"theirs": "kept"}), path)
    return path


def test_rows_and_columns_stay_and_scores_come_last(table, model, tmp_path):
    out = tmp_path / "out.parquet"
    done = rcdiag(
        "score",
        table,
        "--model",
        model,
        "--policy",
        "new=hf:float32",
        "--behavior",
        "new",
        "--target",
        "old",
        "-o",
        out,
        "--json",
    )
    assert done.returncode == 0, done.stderr
    before, after = pq.read_table(table), pq.read_table(out)
    assert after.column_names == [*before.column_names, "new_log_probs"]
    assert after.select(before.column_names).equals(before)
    assert after.schema.metadata[b"theirs"] == b"kept"
    document = json.loads(done.stdout)
    assert document["provenance"]["dump"] == [str(table)]
    slugs = {finding["slug"] for finding in document["findings"]}
    assert {"temperature-unknown", "sequences-without-tokens"} <= slugs


def test_a_recorded_policy_is_not_overwritten(table, model, tmp_path):
    out = tmp_path / "out.parquet"
    done = rcdiag(
        "score",
        table,
        "--model",
        model,
        "--policy",
        "old=hf:float32",
        "--policy",
        "rollout=hf:bfloat16",
        "-o",
        out,
    )
    assert done.returncode == 2
    assert "`old_log_probs` is recorded" in done.stderr
    assert not out.exists()


def test_force_replaces_all_of_a_policy(table, model, tmp_path):
    out = tmp_path / "out.parquet"
    done = rcdiag(
        "score",
        table,
        "--model",
        model,
        "--policy",
        "old=hf:float32",
        "--policy",
        "rollout=hf:bfloat16",
        "-o",
        out,
        "--force",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    names = pq.read_schema(out).names
    assert names[-2:] == ["old_log_probs", "rollout_log_probs"]
    assert "old_entropy" not in names


def test_model_alone_fills_what_the_default_pair_lacks(table, model, tmp_path):
    """`rollout` is not there and comes from vLLM; `old` is recorded and stays."""
    out = tmp_path / "out.parquet"
    done = rcdiag("score", table, "--model", model, "-o", out, "--json")
    assert done.returncode == 0, done.stderr
    policies = json.loads(pq.read_schema(out).metadata[b"rcdiag"])["policies"]
    assert set(policies) == {"rollout"}
    assert (policies["rollout"]["backend"], policies["rollout"]["dtype"]) == ("vllm", "bfloat16")
    before, after = (pq.read_table(path)["old_log_probs"] for path in (table, out))
    assert before.equals(after)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that nobody can fill")
def test_an_output_that_the_system_refuses_is_said(table, model):
    done = rcdiag(
        "score",
        table,
        "--model",
        model,
        "--policy",
        "new=hf:float32",
        "--behavior",
        "new",
        "--target",
        "old",
        "-o",
        "/proc/out.parquet",
    )
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_an_output_nothing_is_kept_but_the_numbers(table, model, tmp_path):
    done = rcdiag(
        "score",
        table,
        "--model",
        model,
        "--policy",
        "new=hf:float32",
        "--behavior",
        "new",
        "--target",
        "old",
        "--json",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "not kept" in done.stderr
    assert json.loads(done.stdout)["num_tokens"] > 0
    assert list(tmp_path.iterdir()) == []


def test_scoring_by_every_engine_and_comparing_need_no_tokenizer(table, model, tmp_path):
    """Token ids are all that they read; text is what `--include-text` asks for."""
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in model.iterdir():
        if "token" not in file.name:
            shutil.copyfile(file, bare / file.name)
    out, pair = tmp_path / "out.parquet", ("--behavior", "a", "--target", "b")
    done = rcdiag(
        *("score", table, "--model", bare, "-o", out, *pair),
        *("--policy", "a=vllm:float32", "--policy", "b=hf:float32"),
    )
    assert done.returncode == 0, done.stderr
    done = rcdiag("compare", out, *pair, "--json")
    assert done.returncode == 0, done.stderr
    refused = rcdiag("score", out, *pair, "--include-text", "--model", bare)
    assert refused.returncode == 2
    assert "no tokenizer in the folder" in refused.stderr
