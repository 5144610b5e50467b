"""Tables of extreme shapes are processed in bounded memory, or refused with the limit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import astuple

from rcdiag.errors import RcdiagError
from rcdiag.table.opening import open_table
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.compare.run import compare
from rcdiag.usecases.score import PairWalk, _read, score
from rcdiag.usecases.sweep.run import sweep
from tests.builders import write_table
from tests.corrections.builders import presets_of
from tests.statistics.comparisons import assert_near

ROWS = 4_096


def stored(tmp_path: Path, rows: int, length: int, steps: int = 1) -> Path:
    """Write a float32 table of rows of equal length, four rows per group."""
    random = np.random.default_rng(0)
    behavior = -random.exponential(1.0, (rows, length)).astype(np.float32)
    noise = random.normal(0.0, 0.01, behavior.shape).astype(np.float32)
    path = tmp_path / "table.parquet"
    write_table(
        path,
        response_ids=random.integers(0, 32_000, behavior.shape).tolist(),
        rollout_log_probs=pa.array(list(behavior)),
        old_log_probs=pa.array(list(np.minimum(behavior + noise, 0.0))),
        step=(np.arange(rows) * steps // rows).tolist(),
        group_id=(np.arange(rows) // 4).tolist(),
    )
    return path


@pytest.fixture(scope="module")
def plan() -> Plan:
    return presets_of("verl-0.9")


@pytest.mark.parametrize("command", [score, compare, sweep])
def test_a_row_beyond_the_limit_is_refused_with_the_limit(tmp_path, monkeypatch, command):
    monkeypatch.setattr("rcdiag.table.stream.MOST_TOKENS_OF_ROW", 49)
    path = stored(tmp_path, rows=4, length=50)
    with pytest.raises(RcdiagError) as caught:
        command(open_table(path))
    assert caught.value.message == f"{path}, row 0: a response of 50 tokens; the limit is 49"
    assert caught.value.hint


def test_adjacent_long_rows_are_processed_in_separate_batches(tmp_path, monkeypatch, plan):
    path = stored(tmp_path, rows=60, length=40, steps=3)
    expected = score(open_table(path), plan=plan)
    walked: list[int] = []
    whole = PairWalk.of_batch

    def seen(self, batch, *others):
        walked.append(len(batch.token_id))
        return whole(self, batch, *others)

    monkeypatch.setattr(PairWalk, "of_batch", seen)
    monkeypatch.setattr("rcdiag.usecases.passes.TOKENS_OF_BATCH", 200)
    result = score(open_table(path), plan=plan)
    assert max(walked) == 200
    assert sum(walked) == 2_400
    for name in ("mismatch", "corrections", "steps", "profiles", "worst_sequences"):
        assert_near(getattr(result, name), getattr(expected, name), name)


@pytest.mark.parametrize("length", [1, 20])
def test_a_pass_stores_about_a_kilobyte_per_sequence(tmp_path, plan, length):
    path = stored(tmp_path, rows=ROWS, length=length)
    dump = open_table(path)
    reading, _ = _read(dump, PairWalk.of(dump, "rollout", "old", plan), None, None)
    assert reading.rows is not None
    assert reading.state is not None
    (rows,), (suite,) = reading.rows.steps.values(), reading.state.suites.values()
    own = [rows.lengths, rows.cluster, rows.reward]
    table = suite.table
    columns = [*own, *rows.columns.values(), table.lengths, table.cluster]
    columns += [*table.sums.values(), *astuple(table.ratio_sums)]
    assert len(rows) == ROWS
    assert sum(column.nbytes for column in columns) < 1_250 * ROWS
