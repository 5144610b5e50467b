"""Small tables to join, and the content of the joined table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rcdiag.results import JoinReport
from rcdiag.table.join import join_tables
from rcdiag.table.opening import open_table
from rcdiag.table.table import Table
from tests.builders import Lists
from tests.usecases.compare.tables import write_policies

IDS = ["s0", "s1", "s2", "s3"]
TOKENS = [[1, 2], [3], [4, 5, 6], [7]]
LOG_PROBS = [[-1.0, -2.0], [-3.0], [-4.0, -5.0, -6.0], [-7.0]]


def table(path: Path, name: str = "rollout", order=range(4), *, ids: Any = IDS, **more) -> Path:
    """Write rows of TOKENS with one policy; without `sample_id` if `ids` is None."""
    columns: dict[str, Any] = {"response_ids": [TOKENS[row] for row in order], **more}
    if ids is not None:
        columns["sample_id"] = [ids[row] for row in order]
    return write_policies(path, {name: [LOG_PROBS[row] for row in order]}, **columns)


def joined(folder: Path, *paths: Path) -> tuple[Table, JoinReport]:
    dumps = [open_table(path) for path in paths]
    table = join_tables(dumps)
    assert table.joined is not None
    return table, table.joined


def rows(dump: Table) -> list[dict[str, Any]]:
    return pq.read_table(dump.files[0].parquet).to_pylist()


def log_probs(dump: Table, policy: str) -> Lists:
    return [row[f"{policy}_log_probs"] for row in rows(dump)]
