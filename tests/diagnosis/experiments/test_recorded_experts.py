"""The sampler's experts, given to the model, explain a column with other routing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rcdiag
from rcdiag.engines.hf.engine import HfEngine
from rcdiag.engines.notation import parse_policy
from rcdiag.table.opening import open_table
from rcdiag.table.stream import decode, read_chunks
from rcdiag.table.trajectories import Scores

pytestmark = [pytest.mark.engine, pytest.mark.slow]

TABLE, MODEL = Path("sample_data/moe.parquet"), Path("sample_data/moe")
ROWS, EXPERTS, TOP_K = 64, 8, 2


def score(path: Path, options: str) -> Scores:
    rows = decode(next(read_chunks(open_table(path), [(0, ROWS)])))
    return HfEngine(parse_policy(f"p=hf:float32{options}", str(MODEL))).score(rows, lambda n: None)


def write(path: Path, table: pa.Table, column: str, values: pa.Array) -> Path:
    """Write a table with other values in a column."""
    pq.write_table(table.set_column(table.column_names.index(column), column, values), path)
    return path


def rerouted(lists: list[list[list[int]]], share: float) -> list[list[list[int]]]:
    """Replace one expert in a layer for a share of the tokens."""
    random = np.random.default_rng(0)
    for tokens in lists:
        for experts in tokens:
            if experts and random.random() < share:
                layer = random.integers(len(experts) // TOP_K)
                own = experts[layer * TOP_K : (layer + 1) * TOP_K]
                others = [one for one in range(EXPERTS) if one not in own]
                experts[layer * TOP_K + 1] = int(random.choice(others))
    return lists


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Make rows whose sampler used other experts at some tokens, with matching log-probs."""
    table = pq.read_table(TABLE).slice(0, ROWS).replace_schema_metadata(None)
    lists = rerouted(table["rollout_routed_experts"].to_pylist(), 0.05)
    path = tmp_path / "rerouted.parquet"
    kind = table["rollout_routed_experts"].type
    write(path, table, "rollout_routed_experts", pa.array(lists, kind))
    scores = score(path, ",experts=rollout").log_probs
    lengths = [len(row) for row in table["response_ids"]]
    rows = [part.tolist() for part in np.split(scores, np.cumsum(lengths)[:-1])]
    again = pq.read_table(path)
    return write(path, again, "rollout_log_probs", pa.array(rows, pa.list_(pa.float32())))


def test_recorded_experts_explain_a_column_with_other_routing(made):
    result = rcdiag.diagnose(made, model=MODEL)
    assert result.diagnosis.causes[0].slug == "moe-routing"
    (test,) = [one for one in result.experiments if one.experiment == "recorded-experts"]
    assert test.explained
    assert test.rms_left < 0.01 * test.rms_before


def test_experts_that_explain_nothing_rule_routing_out(made, tmp_path):
    """The column has the model's own experts at another temperature; recorded ones are random."""
    table = pq.read_table(made)
    hotter = pa.array([0.7] * len(table), pa.float64())
    path = write(tmp_path / "hot.parquet", table, "temperature", hotter)
    scores = score(path, "").log_probs
    lengths = [len(row) for row in table["response_ids"]]
    rows = [part.tolist() for part in np.split(scores, np.cumsum(lengths)[:-1])]
    write(path, table, "rollout_log_probs", pa.array(rows, pa.list_(pa.float32())))
    result = rcdiag.diagnose(path, model=MODEL)
    assert "moe-routing" not in [cause.slug for cause in result.diagnosis.causes]
    assert "moe-routing" in result.diagnosis.ruled_out
