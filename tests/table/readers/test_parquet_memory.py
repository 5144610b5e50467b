"""A parquet file is read in pieces, however large its row groups are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rcdiag.table.opening import open_table

ROWS, LENGTH = 4_000, 500
COLUMNS = ("response_ids", "rollout_log_probs", "old_log_probs")


def test_a_row_group_of_any_size_is_read_in_pieces(tmp_path):
    draw = np.random.default_rng(0)
    offsets = np.arange(0, ROWS * LENGTH + 1, LENGTH, dtype=np.int32)

    def lists(values: np.ndarray) -> pa.Array:
        return pa.ListArray.from_arrays(offsets, values)

    ids = lists(draw.integers(0, 1 << 30, ROWS * LENGTH, dtype=np.int32))
    log_probs = lists(-draw.random(ROWS * LENGTH, dtype=np.float32))
    path = tmp_path / "one_row_group.parquet"
    table = pa.table([ids, log_probs, log_probs], COLUMNS)
    size = table.nbytes
    pq.write_table(table, path, compression="none", use_dictionary=False)
    del ids, log_probs, table
    dump, most, rows = open_table(path), 0, 0
    before = pa.total_allocated_bytes()
    for batch in dump.batches(COLUMNS):
        most = max(most, pa.total_allocated_bytes() - before)
        rows += batch.table.num_rows
    assert rows == ROWS
    assert pq.ParquetFile(path).num_row_groups == 1
    assert most < 0.8 * size  # a batch is a quarter of the rows, as large as the file
