"""Small test data: tables on disk, pairs of policies, and their metrics as plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rcdiag.dumps.reader import Batch, open_dump
from rcdiag.pair import PolicyPair
from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.table import SequenceTable, sequence_table
from rcdiag.statistics.totals import totals
from rcdiag.trajectories import Ragged, Trajectories

Lists = Sequence[Sequence[float]]

LIST_TYPES = {
    "response_ids": pa.list_(pa.int32()),
    "prompt_ids": pa.list_(pa.int32()),
    "response_mask": pa.list_(pa.uint8()),
}


def arrow_table(**columns: object) -> pa.Table:
    """Columns as Arrow arrays, with the types of the contract where Python lists are given."""

    def column(name: str, values: object) -> pa.Array:
        if isinstance(values, (pa.Array, pa.ChunkedArray)):
            return values
        kind = pa.list_(pa.float64()) if name.endswith("_log_probs") else LIST_TYPES.get(name)
        return pa.array(values, kind)

    return pa.table({name: column(name, values) for name, values in columns.items()})


def write_table(path: Path, *, rows_per_group: int | None = None, **columns: object) -> Path:
    pq.write_table(arrow_table(**columns), path, row_group_size=rows_per_group)
    return path


def first_batch(path: Path) -> Batch:
    return next(open_dump(path).batches())


def ids_like(lists: Lists) -> list[list[int]]:
    """Some token ids for every value of `lists`."""
    return [list(range(len(row))) for row in lists]


def flat(lists: Lists) -> np.ndarray:
    return np.array([value for row in lists for value in row], dtype=float)


def make_pair(behavior: Lists, target: Lists) -> PolicyPair:
    lengths = np.array([len(row) for row in behavior], dtype=np.int64)
    return PolicyPair(
        behavior_log_probs=flat(behavior), target_log_probs=flat(target), lengths=lengths
    )


def make_trajectories(
    behavior: Lists, target: Lists, mask: Lists | None = None, first_row: int = 0
) -> Trajectories:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in behavior])]).astype(np.int64)
    values = flat(behavior)
    return Trajectories(
        first_row=first_row,
        response_ids=Ragged(np.arange(len(values), dtype=np.int32), offsets),
        mask=np.ones(len(values), dtype=bool) if mask is None else flat(mask).astype(bool),
        log_probs={"rollout": values, "old": flat(target)},
    )


def make_sequences(
    behavior: Lists, target: Lists, cluster: Sequence[int] | None = None
) -> SequenceTable:
    """The sequence table of a pair; each sequence its own cluster unless told."""
    clusters = np.arange(len(behavior)) if cluster is None else np.array(cluster)
    return sequence_table(make_pair(behavior, target), clusters.astype(np.uint64), None)


def metrics_of(table: SequenceTable) -> dict[str, float]:
    """Every metric's value, without the intervals."""
    point = totals(table)
    return {name: float(metric.formula(point)[0]) for name, metric in METRICS.items()}


def metrics(behavior: Lists, target: Lists) -> dict[str, float]:
    return metrics_of(make_sequences(behavior, target))
