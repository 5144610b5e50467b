"""Join several tables of the same samples into one, on `sample_id` and equal tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.types as pt

from rcdiag.errors import RcdiagError
from rcdiag.results import JoinReport
from rcdiag.table.schema import FORMAT_VERSION, METADATA_KEY, VERSION, column_setting
from rcdiag.table.stream import UniqueSampleIds
from rcdiag.table.table import Table, open_table

NAMED = 10
ROW = "__row"


def join_tables(
    dumps: Sequence[Table], names: Sequence[str], path: Path
) -> tuple[Table, JoinReport]:
    """Write to `path` the rows that all tables have, with the log-probs of all tables.

    All other columns are those of the first table. A policy that an earlier table has too gets the
    later table's name (of `names`) at its end. Rows are the same sample by `sample_id`, or by their
    number where no table has ids, and only when their response tokens are equal.
    """
    by_id = _key(dumps)
    first, *later_frames = (_frame(dump, by_id) for dump in dumps)
    policies = dict(dumps[0].metadata.get("policies", {}))
    taken = set(dumps[0].policies)
    wide, numbers = first, range(len(later_frames))
    for index, (dump, frame, name) in enumerate(
        zip(dumps[1:], later_frames, names[1:], strict=True)
    ):
        renamed = _renamed(dump, taken, name)
        taken |= set(renamed.values())
        about = dump.metadata.get("policies", {})
        policies |= {
            new: _about(about[old], new, renamed) for old, new in renamed.items() if old in about
        }
        part = frame.select(
            by_id,
            pl.lit(True).alias(f"__in{index}"),
            pl.col("response_ids").alias(f"__ids{index}"),
            *(pl.col(f"{a}_log_probs").alias(f"{b}_log_probs") for a, b in renamed.items()),
        )
        wide = wide.join(part, on=by_id, how="left", maintain_order="left")
    in_all = pl.all_horizontal(pl.col(f"__in{n}").is_not_null() for n in numbers)
    tokens = pl.col("response_ids")
    same = pl.all_horizontal(pl.col(f"__ids{n}").eq_missing(tokens) for n in numbers)
    report = _report(dumps, names, (first, *later_frames), wide, in_all, same, by_id)
    helpers = [f"__{what}{n}" for what in ("in", "ids") for n in numbers]
    kept = wide.filter(in_all & same).drop(*helpers, *([ROW] if by_id == ROW else []))
    _write(kept, path, report)
    metadata = {"format_version": FORMAT_VERSION, **dumps[0].metadata, "policies": policies}
    joined = open_table(path)
    # Polars would write the metadata where Arrow does not look for it.
    noted = joined.schema.with_metadata({METADATA_KEY: json.dumps(metadata).encode()})
    return replace(joined, schema=noted), report


def _key(dumps: Sequence[Table]) -> str:
    having = ["sample_id" in dump.schema.names for dump in dumps]
    if any(having) and not all(having):
        lacking = dumps[having.index(False)].name
        raise RcdiagError(
            f"{lacking}: no column `sample_id`, which the other tables have",
            hint=f"{column_setting({'sample_id': 'NAME'})}, or compare the tables without it",
        )
    if not all(having):
        return ROW
    _check_ids(dumps)
    return "sample_id"


def _check_ids(dumps: Sequence[Table]) -> None:
    """Refuse ids that are numbers in one table and text in another, or that a table repeats."""
    kinds = [dump.schema.field("sample_id").type for dump in dumps]
    for dump, kind in zip(dumps, kinds, strict=True):
        if _is_text(kind) != _is_text(kinds[0]):
            raise RcdiagError(
                f"{dump.name}: column `sample_id` is {kind}, but {kinds[0]} in {dumps[0].name}",
                hint="cast one of them, so that equal samples have equal ids",
            )
        unique = UniqueSampleIds()
        for batch in dump.batches(["sample_id"]):
            unique.add(batch)
        unique.check(dump)


def _is_text(kind: pa.DataType) -> bool:
    return not pt.is_integer(kind.value_type if pt.is_dictionary(kind) else kind)


def _frame(dump: Table, key: str) -> pl.LazyFrame:
    frame = pl.scan_parquet([file.parquet for file in dump.files], glob=False)
    back = {in_file: name for name, in_file in dump.renames.items()}
    frame = frame.rename(back) if back else frame
    frame = frame.with_columns(pl.col("response_ids").cast(pl.List(pl.Int64)))
    if frame.collect_schema().get(VERSION) in (pl.String, pl.Categorical):
        number = pl.col(VERSION).cast(pl.String).str.strip_chars().cast(pl.Int64, strict=False)
        frame = frame.with_columns(number)
    if key == ROW:
        return frame.with_row_index(ROW)
    text = _is_text(dump.schema.field(key).type)
    return frame.with_columns(pl.col(key).cast(pl.String if text else pl.Int64))


def _renamed(dump: Table, taken: set[str], name: str) -> dict[str, str]:
    """Return the names of a table's policies in the joined table: name in the table -> new name."""
    renamed: dict[str, str] = {}
    for old in dump.policies:
        new = old
        while new in taken or new in renamed.values() or (new != old and new in dump.policies):
            new = f"{new}_{name}"
        renamed[old] = new
    return renamed


def _about(about: Mapping[str, Any], name: str, renamed: Mapping[str, str]) -> dict[str, Any]:
    """Return a policy's metadata under its new name; a repeat repeats its own table's policy."""
    options = dict(about.get("options") or {})
    if "repeat_of" in options:
        options["repeat_of"] = renamed.get(options["repeat_of"], options["repeat_of"])
    return {**about, "name": name, "options": options}


def _report(
    dumps: Sequence[Table],
    names: Sequence[str],
    frames: Sequence[pl.LazyFrame],
    wide: pl.LazyFrame,
    in_all: pl.Expr,
    same: pl.Expr,
    key: str,
) -> JoinReport:
    """Count and name the rows that the joined table leaves out."""

    def keys(rows: pl.LazyFrame) -> list[Any]:
        return rows.select(key).collect()[key].to_list()

    every = pl.concat([frame.select(key) for frame in frames]).unique(maintain_order=True)
    lacking = {
        name: keys(every.join(frame, on=key, how="anti", maintain_order="left"))
        for name, frame in zip(names, frames, strict=True)
    }
    wrong = keys(wide.filter(in_all & ~same))
    named = [f"{sample} (other tokens)" for sample in wrong]
    named += [f"{sample} (not in {name})" for name, ids in lacking.items() for sample in ids]
    return JoinReport(
        tables=[dump.name for dump in dumps],
        table_rows=[dump.num_rows for dump in dumps],
        common_samples=wide.filter(in_all & same).select(pl.len()).collect().item(),
        missing_rows={name: len(ids) for name, ids in lacking.items()},
        tokens_differ=len(wrong),
        left_out=named[:NAMED],
    )


def _write(rows: pl.LazyFrame, path: Path, report: JoinReport) -> None:
    if report.common_samples == 0:
        raise RcdiagError(
            f"{', '.join(report.tables)}: no sample is in all tables with the same tokens "
            f"({report.tokens_differ:,} have other tokens)",
            hint="join runs of the same dump; is `sample_id` the same thing in both?",
        )
    rows.sink_parquet(path, maintain_order=True, compression="lz4")
