"""Convert a dump of any format to a parquet table, and report what was changed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from rcdiag.progress import Progress
from rcdiag.results import ConvertResult
from rcdiag.table.conversion import convert_files
from rcdiag.table.missing import SAYS_LOG_PROBS, meant_columns
from rcdiag.table.opening import open_files
from rcdiag.table.parquet_files import open_written
from rcdiag.table.readers.parquet import PARQUET
from rcdiag.table.readers.reader import Dump, Reader, Rows
from rcdiag.table.scratch import Scratch
from rcdiag.table.sources import SourceFiles
from rcdiag.table.stream import token_ids
from rcdiag.table.table import Table
from rcdiag.table.writer import TableWriter
from rcdiag.usecases.provenance import provenance


def convert(
    parts: Sequence[SourceFiles],
    output: Path,
    *,
    columns: Mapping[str, str] | None = None,
    given: Mapping[str, Any] | None = None,
    tokenizer: str | Path | None = None,
    progress: Progress,
) -> ConvertResult:
    """Write the table of some sources to a parquet file, which appears only if all went well."""
    table = open_files(parts, columns, given, tokenizer=tokenizer, progress=progress, beside=output)
    scratch = table.scratch or Scratch(output)
    written = scratch.path / "table.parquet"
    if table.joined is not None:
        tokens = 0
        with TableWriter(written, table.schema, table.metadata) as writer:
            for batch in table.batches():
                writer.write(batch.table)
                tokens += int(token_ids(batch, "response_ids").offsets[-1])
    elif table.conversion is not None:
        tokens, written = table.conversion.tokens, cast(Path, table.parquets[0])
    else:
        tokens = _check_parquet(table, parts[0].reader, written, progress)
    origin = provenance(table, 0)  # before the renaming, which moves the table's own file
    os.replace(written, output)
    progress.wrote(output)
    return _result(table, tokens, output, origin)


def _check_parquet(table: Table, kind: Reader, target: Path, progress: Progress) -> int:
    """Check a table that is parquet already and write it to one file, like any other format.

    `kind` is the reader of its files.
    """

    def read(dump: Dump) -> Iterator[Rows]:
        for text, rows in table.metadata.get("conversion", {}).get("changes", {}).items():
            dump.notes.change(text, rows)
        if table.naming.taken:
            dump.notes.change(f"columns have other names in the file: {table.naming.sentence()}")
        if table.naming.padding is not None:
            dump.notes.change(table.naming.padding.sentence())
        for batch in table.batches():
            file = table.file_of(batch.first_row)
            numbers = batch.numbers - file.first_row
            for record in batch.table.combine_chunks().to_batches():
                yield Rows(record, cast(Path, file.source.path), numbers[: record.num_rows])
                numbers = numbers[record.num_rows :]

    made = convert_files(
        replace(kind, read=read),
        table.sources,
        target,
        given={},
        renames={},
        on_progress=progress.converted,
        metadata=table.metadata,
    )
    return made.tokens


def _result(table: Table, tokens: int, output: Path, origin: dict[str, Any]) -> ConvertResult:
    written = open_written(output)
    conversion = written.metadata.get("conversion", {})
    return ConvertResult(
        provenance=origin,
        output=str(output),
        format=conversion.get("format", PARQUET.name),
        files=len(table.sources),
        rows=written.num_rows,
        tokens=tokens,
        columns=written.columns,
        policies=written.policies,
        changes=conversion.get("changes", {}),
        given=written.metadata.get("given", {}),
        dropped=conversion.get("dropped", {}),
        lacking=lacking(written, str(output)),
        joined=table.joined,
    )


def lacking(table: Table, name: str) -> dict[str, str]:
    """Return what is missing for score and replay, and how to get it."""
    missing: dict[str, str] = {}
    prompts = "prompt_ids" in table.columns
    recorders = {"rollout": "the sampler", "old": "the trainer before its update"}
    absent = [policy for policy in recorders if policy not in table.policies]
    wanted = {column: column for column in (f"{policy}_log_probs" for policy in absent)}
    meant = meant_columns(wanted, table.schema, {}, least=SAYS_LOG_PROBS)
    for policy in absent:
        column = f"{policy}_log_probs"
        missing[column] = (
            f"rcdiag score {name} --model CKPT -o scored.parquet"  # fills both columns
            if prompts
            else f"record those of {recorders[policy]}"
        )
        if own := meant.get(column):
            missing[column] = (
                f"--column {column}={own}, if `{own}` holds those of {recorders[policy]}; or "
                f"{missing[column]}"
            )
    if not prompts:
        missing["prompt_ids"] = "record them: a model needs them to score the tokens"
    if "temperature" not in table.columns:
        missing["temperature"] = "--given temperature=VALUE, if all rows have the same"
    if not {"advantage", "advantages"} & set(table.columns):
        missing["advantages"] = (
            "rcdiag replay computes them from `reward` and groups"
            if {"reward", "group_id"} <= set(table.columns)
            else "record `advantages`, or `reward` with groups, for replay"
        )
    if "step" not in table.columns:
        missing["step"] = "all rows count as one step; --given step=N sets it"
    return missing
