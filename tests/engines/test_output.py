"""The output of `score`: the unchanged table with the scores added."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.engine_models import make_model, make_table, rcdiag_alone
from tests.engines.engine_here import EngineHere

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A model without a tokenizer: engines read only token ids."""
    folder = make_model(tmp_path_factory.mktemp("models") / "qwen3", "qwen3")
    for file in folder.glob("*token*"):
        file.unlink()
    return folder


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    """A table with a recorded policy and an entropy that new scores must not keep."""
    path = make_table(tmp_path_factory.mktemp("tables") / "table.parquet")
    result = pq.read_table(path)
    zeros = pa.array([[-0.5] * len(row) for row in result["response_ids"].to_pylist()])
    result = result.append_column("old_log_probs", zeros).append_column("old_entropy", zeros)
    pq.write_table(result.replace_schema_metadata({"theirs": "kept"}), path)
    return path


NEW = ("--policy", "rollout=hf:float32")


@pytest.fixture(scope="module")
def scored(table, model, run_once, tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """Score one more policy in this process; returns table and result document."""
    out = tmp_path_factory.mktemp("scored") / "out.parquet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rcdiag.engines.process.EngineProcess", EngineHere)
        run = run_once("score", table, "--model", model, *NEW, "-o", out, "--json")
    assert run.code == 0, run.err
    return out, run.document


def test_rows_and_columns_stay_and_scores_come_last(scored, table):
    out, document = scored
    before, after = pq.read_table(table), pq.read_table(out)
    assert after.column_names == [*before.column_names, "rollout_log_probs"]
    assert after.select(before.column_names).equals(before)
    assert after.schema.metadata[b"theirs"] == b"kept"
    assert document["provenance"]["dump"] == [str(table)]
    slugs = {finding["slug"] for finding in document["findings"]}
    assert {"temperature-unknown", "sequences-without-tokens"} <= slugs


def test_comparing_needs_no_tokenizer_and_text_does(rcdiag, scored, model):
    out, _ = scored
    assert rcdiag("compare", out, "--json").code == 0
    refused = rcdiag("score", out, "--include-text", "--model", model)
    assert refused.code == 2
    assert "no tokenizer in the folder" in refused.err


def test_a_recorded_policy_is_not_overwritten(rcdiag, table, model, tmp_path):
    out = tmp_path / "out.parquet"
    policies = ("--policy", "old=hf:float32", "--policy", "rollout=hf:bfloat16")
    run = rcdiag("score", table, "--model", model, *policies, "-o", out)
    assert run.code == 2
    assert "`old_log_probs` is recorded" in run.err
    assert not out.exists()


@pytest.mark.slow
def test_force_replaces_all_of_a_policy(scored, model, tmp_path):
    table, _ = scored
    out, policies = tmp_path / "out.parquet", ("--policy", "old=hf:float32")
    options = ("-o", out, "--force", "--json")
    run = rcdiag_alone("score", table, "--model", model, *policies, *options)
    assert run.code == 0, run.err
    names = pq.read_schema(out).names
    assert names[-2:] == ["rollout_log_probs", "old_log_probs"]
    assert "old_entropy" not in names
    values = [pq.read_table(out)[name].to_pylist() for name in names[-2:]]
    assert values[0] == values[1]


@pytest.mark.slow
def test_model_alone_fills_what_the_default_pair_lacks(table, model, tmp_path):
    """`rollout` is missing and comes from vLLM; `old` is recorded and kept."""
    out = tmp_path / "out.parquet"
    run = rcdiag_alone("score", table, "--model", model, "-o", out, "--json")
    assert run.code == 0, run.err
    policies = json.loads(pq.read_schema(out).metadata[b"rcdiag"])["policies"]
    assert set(policies) == {"rollout"}
    assert (policies["rollout"]["backend"], policies["rollout"]["dtype"]) == ("vllm", "bfloat16")
    before, after = (pq.read_table(path)["old_log_probs"] for path in (table, out))
    assert before.equals(after)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that nobody can fill")
def test_an_output_that_cannot_be_written_is_an_error(rcdiag, table, model):
    run = rcdiag("score", table, "--model", model, *NEW, "-o", "/proc/out.parquet")
    assert run.code == 2
    assert "cannot be written" in run.err
    assert "Traceback" not in run.err


@pytest.mark.slow
def test_without_an_output_nothing_is_kept_but_the_numbers(table, model, tmp_path):
    run = rcdiag_alone("score", table, "--model", model, *NEW, "--json", cwd=tmp_path)
    assert run.code == 0, run.err
    assert "not kept" in run.err
    assert run.document["num_tokens"] > 0
    assert list(tmp_path.iterdir()) == []
