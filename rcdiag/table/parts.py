"""Convert scores to columns of a table, and to parquet parts that survive a killed scoring run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.arrow import ragged
from rcdiag.table.readers.parquet import open_parquet, read_whole
from rcdiag.table.schema import metadata_of
from rcdiag.table.trajectories import Scores
from rcdiag.table.writer import TableWriter

# Metadata key of a part: the facts that its engine reports about itself.
SCORED_BY = "scored_by"


def score_columns(policy: str) -> list[str]:
    """Return the column names of a policy's scores: log-probs, entropy, top-k ids and log-probs,
    and experts.
    """
    names = ("log_probs", "entropy", "top_ids", "top_logprobs", "routed_experts")
    return [f"{policy}_{what}" for what in names]


def score_table(policy: str, scores: Scores, offsets: NDArray[np.int64]) -> pa.Table:
    """Return a policy's scores as list columns, one list per row (`offsets` are row bounds)."""
    values = (
        scores.log_probs,
        scores.entropy,
        scores.top_ids,
        scores.top_log_probs,
        scores.routed_experts,
    )
    columns = {}
    for name, of_tokens in zip(score_columns(policy), values, strict=True):
        if of_tokens is not None:
            flat: Any = of_tokens
            if flat.ndim > 1:  # a list of equally many values per token
                flat = ragged(flat.ravel(), np.full(len(flat), flat.shape[1]))
            columns[name] = ragged(flat, np.diff(offsets))
    return pa.table(columns)


def write_part(path: Path, table: pa.Table, about: Mapping[str, Any]) -> None:
    """Write a part, with the facts that the engine reports about itself."""
    with TableWriter(path, table.schema, {SCORED_BY: dict(about)}) as writer:
        writer.write(table)


def read_part(path: Path) -> pa.Table:
    return read_whole(path).replace_schema_metadata(None)


def about_part(path: Path, rows: int) -> dict[str, Any] | None:
    """Return the facts that the engine reports in a part; None if the part is not complete.

    Only the part's footer is read.
    """
    try:
        if not path.is_file() or (part := open_parquet(path)).metadata.num_rows != rows:
            return None
        about = metadata_of(part.schema_arrow, str(path)).get(SCORED_BY)
    except RcdiagError:
        return None
    return about if isinstance(about, dict) else None
