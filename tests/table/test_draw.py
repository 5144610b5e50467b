"""Drawing of prompt groups: which ones, from which files, and what the result reports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import rcdiag
from rcdiag.errors import RcdiagError
from rcdiag.table import drawn_rows as draw
from rcdiag.table.drawn_rows import draw_rows
from rcdiag.table.opening import open_table
from rcdiag.table.table import Table
from tests.builders import write_table

FILES, GROUPS, SIZE = 4, 25, 4  # 400 rows in groups of 4, 25 groups per file, one row group each


def write_files(folder: Path, *, groups: bool = True) -> Path:
    random = np.random.default_rng(0)
    (folder / "dump").mkdir()
    for index in range(FILES):
        numbers = np.arange(index * GROUPS * SIZE, (index + 1) * GROUPS * SIZE)
        behavior = random.uniform(-3.0, -1.0, (len(numbers), 3))
        columns = {"group_id": (numbers // SIZE).tolist()} if groups else {}
        write_table(
            folder / "dump" / f"{index}.parquet",
            rows_per_group=SIZE,
            response_ids=[[1, 2, 3]] * len(numbers),
            sample_id=numbers.tolist(),
            rollout_log_probs=behavior.tolist(),
            old_log_probs=(behavior + random.normal(0.0, 0.1, behavior.shape)).tolist(),
            **columns,
        )
    return folder / "dump"


def ids(table: Table) -> list[int]:
    return [row for batch in table.batches(["sample_id"]) for row in batch.table[0].to_pylist()]


def test_whole_groups_of_all_files_are_drawn(tmp_path):
    table = open_table(write_files(tmp_path))
    some = draw_rows(table, 80, seed=1)
    samples = ids(some)
    assert some.num_rows == len(samples) == 80
    assert samples == sorted(samples)
    assert {sample // SIZE * SIZE + offset for sample in samples for offset in range(SIZE)} == {
        *samples
    }
    in_files = np.bincount(np.array(samples) // (GROUPS * SIZE)).tolist()
    assert in_files == pytest.approx([20] * FILES, abs=SIZE)
    assert some.columns == table.columns
    assert some.metadata == table.metadata


def test_draws_depend_on_the_seed_and_groups_are_equally_likely(tmp_path):
    table = open_table(write_files(tmp_path))
    assert ids(draw_rows(table, 40, seed=1)) == ids(draw_rows(table, 40, seed=1))
    assert ids(draw_rows(table, 40, seed=1)) != ids(draw_rows(table, 40, seed=2))
    counts = np.zeros(7)
    for seed in range(7_000):
        counts[draw._drawn(7, 3, 7, seed)] += 1
    # 3 of 7 groups, so each in 3,000 of 7,000 draws, with a standard deviation of 41.
    assert np.abs(counts - 3_000).max() < 5 * 41


def test_rows_keep_their_names_and_numbers(tmp_path):
    table = open_table(write_files(tmp_path))
    some = draw_rows(table, 40, seed=3)
    for row, sample in enumerate(ids(some)):
        assert some.where(row) == table.where(sample)
        assert some.number(row) == sample
    for batch in some.batches(["sample_id"]):
        sample = batch.table[0].to_pylist()[-1]
        assert batch.where(batch.table.num_rows - 1) == table.where(sample)


def test_without_groups_single_rows_are_drawn(tmp_path):
    some = draw_rows(open_table(write_files(tmp_path, groups=False)), 81, seed=0)
    assert some.num_rows == 81


def test_row_groups_without_a_drawn_row_are_not_read(tmp_path, monkeypatch):
    read: list[int] = []
    iterate = pq.ParquetFile.iter_batches

    def counted(self, size, row_groups=None, columns=None):
        if columns != ["group_id"]:
            read.extend(row_groups)
        return iterate(self, size, row_groups, columns=columns)

    table = open_table(write_files(tmp_path))
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    draw_rows(table, 40, seed=0)
    assert len(read) == 10  # as many as drawn groups, of 100


def test_a_small_table_is_taken_whole(tmp_path):
    table = open_table(write_files(tmp_path))
    assert draw_rows(table, 400, seed=0) is table
    with pytest.raises(RcdiagError, match="nothing to draw"):
        draw_rows(table, 0, seed=0)


def test_results_state_how_many_rows_were_drawn(tmp_path):
    source = write_files(tmp_path)
    result = rcdiag.score(source, rows=40, seed=5)
    drawn = ids(draw_rows(open_table(source), 40, seed=5))
    assert (result.provenance["rows"], result.provenance["rows_drawn"]) == (400, 40)
    assert len(result.provenance["dump"]) == FILES
    assert (result.num_sequences, result.num_clusters) == (40, 10)
    assert {sequence.row for sequence in result.worst_sequences} <= {*drawn}
    assert all(sequence.row == sequence.sample_id for sequence in result.worst_sequences)
    whole = rcdiag.score(source)
    assert "rows_drawn" not in whole.provenance
    assert whole.provenance["fingerprint"] != result.provenance["fingerprint"]
    assert rcdiag.compare(source, rows=40, seed=5).provenance["rows_drawn"] == 40
    assert rcdiag.sweep(source, rows=40, seed=5, thresholds=2).provenance["rows_drawn"] == 40


def test_joined_dumps_of_fewer_rows_are_not_drawn(tmp_path):
    rows = [[1, 2, 3]] * 20
    names = list(range(20))
    for policy in ("rollout", "old"):
        values = {f"{policy}_log_probs": [[-1.0, -2.0, -0.5]] * 20}
        path = tmp_path / f"{policy}.parquet"
        write_table(path, response_ids=rows, sample_id=names, group_id=names, **values)
    dumps = [tmp_path / "rollout.parquet", tmp_path / "old.parquet"]
    assert "rows_drawn" not in rcdiag.compare(*dumps, rows=20).provenance
    assert rcdiag.compare(*dumps, rows=10).provenance["rows_drawn"] == 10


def test_a_replay_draws_rows_of_its_step(tmp_path):
    random = np.random.default_rng(0)
    behavior = random.uniform(-3.0, -1.0, (80, 3)).tolist()
    path = write_table(
        tmp_path / "a.parquet",
        response_ids=[[1, 2, 3]] * 80,
        rollout_log_probs=behavior,
        old_log_probs=behavior,
        group_id=(np.arange(80) // SIZE).tolist(),
        step=[0] * 40 + [1] * 40,
        advantage=random.normal(size=80).tolist(),
    )
    last, first = rcdiag.replay(path, rows=16), rcdiag.replay(path, rows=16, step=0)
    assert (last.step, last.num_sequences, last.num_groups) == (1, 16, 4)
    assert (first.step, first.num_sequences) == (0, 16)
    assert (last.provenance["rows"], last.provenance["rows_drawn"]) == (80, 16)
    assert rcdiag.replay(path, rows=50).num_sequences == 40
    with pytest.raises(RcdiagError, match="no step 7"):
        rcdiag.replay(path, rows=16, step=7)
    with pytest.raises(RcdiagError, match="rows of one step are drawn"):
        rcdiag.replay(path, rows=16, steps=2)
