"""Tables drawn by hypothesis, with values, nulls and types that are rare in real dumps."""

from __future__ import annotations

import io
import warnings
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from tests.fuzz.corpus import rows_of

FLOATS = st.one_of(
    st.floats(-8.0, 0.0),
    st.sampled_from(
        [0.0, -0.0, -1e-30, -50.0, 1e-5, -1e4, -1e30, float("-inf"), float("nan"), 0.5]
    ),
)
ROW_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "sample_id": st.one_of(st.text(max_size=4), st.integers(-(2**63), 2**63 - 1)),
    "group_id": st.one_of(st.text(max_size=2), st.integers(0, 3)),
    "step": st.one_of(st.integers(0, 3), st.sampled_from([-1, 2**53, 2**63 - 1, None])),
    "reward": st.one_of(st.floats(), st.none()),
    "temperature": st.sampled_from([0.0, 1.0, 0.7, -1.0, float("nan"), None, 1e308]),
    "advantage": st.floats(),
    "finish_reason": st.sampled_from(["stop", "length", "", None, "\x1b[31m"]),
}
TYPES = [pa.float16(), pa.float32(), pa.float64()]


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    """Draw a valid table with some cells and columns changed, as bytes of a parquet file."""
    table = rows_of(draw(st.integers(0, 50)), draw(st.sampled_from([1, 2, 5, 24])))
    for name in draw(st.lists(st.sampled_from(table.column_names), max_size=2, unique=True)):
        if name not in ("response_ids", "rollout_log_probs", "old_log_probs"):
            table = table.drop_columns([name])
    for name in ("rollout_log_probs", "old_log_probs"):
        rows = table[name].to_pylist()
        for _ in range(draw(st.integers(0, 3))):
            row = draw(st.integers(0, len(rows) - 1))
            change = draw(st.sampled_from(["value", "null", "short", "empty"]))
            if change == "value" and rows[row]:
                rows[row][draw(st.integers(0, len(rows[row]) - 1))] = draw(FLOATS)
            elif change == "null" and draw(st.booleans()):
                rows[row] = None
            elif change == "short" and rows[row] and draw(st.integers(0, 9)) == 0:
                rows[row] = rows[row][:-1]
        kind = pa.list_(draw(st.sampled_from(TYPES)))
        at = table.column_names.index(name)
        table = table.set_column(at, name, pa.array(rows, pa.list_(pa.float64())).cast(kind))
    for name in draw(st.lists(st.sampled_from(sorted(ROW_VALUES)), max_size=3, unique=True)):
        try:
            values = pa.array([draw(ROW_VALUES[name]) for _ in range(table.num_rows)])
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):
            continue  # values of two types in one column
        if name in table.column_names:
            table = table.drop_columns([name])
        table = table.append_column(name, values)
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=draw(st.sampled_from([1, 7, 1000])))
    return sink.getvalue()


def drawn_tables(seed: int, count: int) -> list[bytes]:
    """Return tables, equal for equal seeds."""
    drawn: list[bytes] = []

    @seeded(seed)
    @settings(
        max_examples=max(min(count // 6, 800), 10),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(content=tables())
    def draw(content: bytes) -> None:
        drawn.append(content)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draw()
    return drawn
