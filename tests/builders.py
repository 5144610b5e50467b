"""Small test data: tables on disk, pairs of policies, and their metrics as plain numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rcdiag.diagnosis.guides import judged
from rcdiag.results import MetricValue
from rcdiag.statistics.merging import merge
from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.pair import PolicyPair, pair_of
from rcdiag.statistics.suite import Suite, SuiteState
from rcdiag.table.opening import open_table
from rcdiag.table.table import RowBatch
from rcdiag.table.trajectories import Ragged, Trajectories

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
        per_token = name.endswith(("_log_probs", "_entropy"))
        kind = pa.list_(pa.float64()) if per_token else LIST_TYPES.get(name)
        return pa.array(values, kind)

    return pa.table({name: column(name, values) for name, values in columns.items()})


def write_table(path: Path, *, rows_per_group: int | None = None, **columns: object) -> Path:
    pq.write_table(arrow_table(**columns), path, row_group_size=rows_per_group)
    return path


def first_batch(path: Path) -> RowBatch:
    return next(open_table(path).batches())


def ids_like(lists: Lists) -> list[list[int]]:
    """Make arbitrary token ids with the lengths of `lists`."""
    return [list(range(len(row))) for row in lists]


def flat(lists: Lists) -> np.ndarray:
    return np.array([value for row in lists for value in row], dtype=float)


def make_trajectories(
    behavior: Lists,
    target: Lists,
    mask: Lists | None = None,
    first_row: int = 0,
    *,
    cluster: Sequence[int] | None = None,
    step: Sequence[int] | None = None,
    reward: Sequence[float] | None = None,
    entropy: dict[str, Lists] | None = None,
    token_ids: Lists | None = None,
    engine: Sequence[str] | None = None,
    policy_version: NDArray[np.int64] | None = None,
) -> Trajectories:
    """Make rows with the policies `rollout` and `old`; token ids count up unless given."""
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in behavior])]).astype(np.int64)
    values = flat(behavior)
    ids = np.arange(len(values)) if token_ids is None else flat(token_ids)
    return Trajectories(
        first_row=first_row,
        response_ids=Ragged(ids.astype(np.int32), offsets),
        mask=np.ones(len(values), dtype=bool) if mask is None else flat(mask).astype(bool),
        log_probs={"rollout": values, "old": flat(target)},
        group=None if cluster is None else np.array(cluster, dtype=np.uint64),
        step=None if step is None else np.array(step, dtype=np.int64),
        reward=None if reward is None else np.array(reward, dtype=np.float64),
        entropy={name: flat(lists) for name, lists in (entropy or {}).items()},
        engine=engine,
        policy_version=policy_version,
    )


def make_pair(
    behavior: Lists, target: Lists, cluster: Sequence[int] | None = None, **columns: Any
) -> PolicyPair:
    """Make two policies on the same tokens; by default each sequence is its own cluster."""
    return pair_of(
        make_trajectories(behavior, target, cluster=cluster, **columns), "rollout", "old"
    )


def summed(states: Iterable[Any]) -> Any:
    """Merge states in their order."""
    return merge(list(states))


def make_state(
    behavior: Lists, target: Lists, cluster: Sequence[int] | None = None, first_row: int = 0
) -> SuiteState:
    """Make the state that the suite keeps of a pair of policies."""
    return SuiteState.of(make_pair(behavior, target, cluster, first_row=first_row))


def mismatch(state: SuiteState) -> dict[str, MetricValue]:
    """Compute every metric with its interval and level."""
    return judged(Suite(state))


def values_of(state: SuiteState) -> dict[str, float | None]:
    """Compute every metric's value; None where it is undefined."""
    suite = Suite(state)
    return {name: metric.value(suite).value for name, metric in METRICS.items()}


def metrics_of(state: SuiteState) -> dict[str, float]:
    """Compute every metric's value; NaN where it is undefined."""
    return {name: np.nan if value is None else value for name, value in values_of(state).items()}


def metrics(behavior: Lists, target: Lists) -> dict[str, float]:
    return metrics_of(make_state(behavior, target))
