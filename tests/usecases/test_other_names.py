"""Columns recognised under other names are reported in every result, also of joined tables."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import rcdiag
from tests.builders import write_table

IDS = [[1, 2, 3], [4, 5], [6]]
ROLLOUT = pa.array([[-1.0, -0.5, -0.2], [-0.3, -0.4], [-0.1]])
OLD = pa.array([[-1.1, -0.4, -0.2], [-0.3, -0.5], [-0.1]])
TAKEN = {"rollout_log_probs": "inference_logprobs", "old_log_probs": "trainer_logprobs"}


def slugs(result: rcdiag.Result) -> set[str]:
    return {finding.slug for finding in result.findings}


@pytest.fixture
def own(tmp_path) -> Path:
    columns = {"inference_logprobs": ROLLOUT, "trainer_logprobs": OLD}
    return write_table(
        tmp_path / "own.parquet", response_ids=IDS, reward=[0.0, 1.0, 0.0], **columns
    )


@pytest.mark.parametrize("command", ["score", "compare", "sweep", "diagnose"])
def test_every_result_reports_columns_recognised_by_name(own, command):
    options = {"thresholds": 4} if command == "sweep" else {}
    result = getattr(rcdiag, command)(own, **options)
    assert "columns-read-by-name" in slugs(result)
    assert result.provenance["columns_read_as"] == TAKEN


def test_selected_rows_of_a_table_keep_recognised_names(own):
    result = rcdiag.score(own, rows=2)
    assert "columns-read-by-name" in slugs(result)
    assert result.provenance["columns_read_as"] == TAKEN


def test_dumps_of_one_run_with_other_names_are_joined(tmp_path):
    sampler = {"response_ids": IDS, "inference_logprobs": ROLLOUT}
    trainer = {"response_ids": IDS, "trainer_logprobs": OLD}
    both = [
        write_table(tmp_path / f"{number}.parquet", sample_id=["a", "b", "c"], **columns)
        for number, columns in enumerate((sampler, trainer))
    ]
    result = rcdiag.score(both)
    assert result.num_tokens == 6
    assert result.provenance["columns_read_as"] == TAKEN


@pytest.mark.parametrize("command", ["score", "diagnose"])
def test_log_probs_in_objects_are_named_beside_a_single_policy(tmp_path, command):
    pairs = [[{"token": 7, "logprob": value} for value in row] for row in ROLLOUT.to_pylist()]
    path = write_table(
        tmp_path / "t.parquet", response_ids=IDS, old_log_probs=OLD, logprobs=pa.array(pairs)
    )
    result = getattr(rcdiag, command)(path)
    (note,) = [one for one in result.findings if one.slug == "column-not-read"]
    assert "`logprobs` is not read, as its lists hold objects of" in note.message
    assert "token" in note.message
