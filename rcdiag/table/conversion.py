"""What readers make of a dump becomes one parquet table: checked, typed, grouped, in one pass."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from msgspec import Struct, field
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError, mapping_setting, setting
from rcdiag.table import given as given_values
from rcdiag.table import missing
from rcdiag.table import schema as columns
from rcdiag.table.arrow import as_numpy, lengths_of, ragged
from rcdiag.table.batches import Origin, with_urls
from rcdiag.table.checked import check_values, checked_lengths, typed
from rcdiag.table.grouping import Grouping
from rcdiag.table.placeholders import FEWEST_TOKENS, FLOOR, EqualityWatch, LogProbWatch
from rcdiag.table.readers.reader import Dump, Notes, Reader, Rows
from rcdiag.table.sources import SourceFile
from rcdiag.table.writer import GrowingWriter

# Takes the file that is read now, its number from 1, the number of files, rows and tokens so far.
Heard = Callable[[str, int, int, int, int], None]

# Columns that all rows have or none, and what to do where some have them.
_APART = "leave these records out of the dump, or convert them apart"
NEVER_NULL = {
    "step": f"{_APART}, with {mapping_setting('given', {'step': 'N'}, '--given')}",
    "prompt_ids": _APART,
    "group_id": _APART,
    "sample_id": _APART,
}


class Conversion(Struct, frozen=True):
    """What became of a dump."""

    origin: Origin
    metadata: dict[str, Any]
    policies_of: dict[Path, set[str]]  # file -> the policies whose log-probs its rows have
    rows: int = 0
    tokens: int = 0


class _Pass(Struct):
    """One pass over the rows of a dump, and what it learns."""

    notes: Notes
    given: Mapping[str, Any]
    renames: Mapping[str, str]
    grouping: Grouping
    origin: Origin
    tokens: int = 0
    watches: dict[str, LogProbWatch] = field(default_factory=dict)
    watches_of_files: dict[tuple[Path, str], LogProbWatch] = field(default_factory=dict)
    equals: dict[tuple[str, str], EqualityWatch] = field(default_factory=dict)
    rows_with: dict[str, int] = field(default_factory=dict)  # column -> rows of files that have it
    nulls: dict[str, int] = field(default_factory=dict)  # log-probs -> rows without, in those files
    lacking: dict[str, tuple[str, int]] = field(default_factory=dict)  # column -> first row, rows
    mapped: set[str] = field(default_factory=set)  # columns that a file has under another name
    policies_of: dict[Path, set[str]] = field(default_factory=dict)

    def table(self, rows: Rows) -> pa.Table:
        """Return some rows as they are written; a row that cannot be is refused."""
        table = pa.Table.from_batches([rows.batch])
        self.mapped |= {name for name, own in self.renames.items() if own in table.column_names}
        table = typed(_renamed(table, self.renames, rows), rows)
        for name in table.column_names:
            self.rows_with[name] = self.rows_with.get(name, 0) + table.num_rows
        lengths = checked_lengths(table, rows)
        check_values(table, rows)
        given = given_values.of_all_rows(self.given)
        for name, value in given.items():
            if given_values.column_of(name) in table.column_names and name != "group_size":
                row = given_values.contradiction(table, name, value)
                if row is not None:
                    own = table[name][row].as_py()
                    raise given_values.refusal(rows.where(row), name, value, own)
        fills = {name: value for name, value in given.items() if name != "group_size"}
        table = given_values.filled(table, fills, np.arange(table.num_rows))
        table = self._watched(table, lengths, rows.file)
        table = self.grouping.add_to(table, rows)
        self._count_lacking(table, rows)
        self.tokens += int(lengths.sum())
        self.origin.add(rows.file, rows.record, rows.numbers)
        return table

    def _watched(self, table: pa.Table, lengths: NDArray[np.int64], file: Path) -> pa.Table:
        """Return rows with NaN for floored log-probs, having looked at all log-probs."""
        policies = columns.policies_in(table.column_names)
        if not policies:
            return table
        sampled = _sampled(table, int(lengths.sum()))
        complete: dict[str, NDArray[np.floating]] = {}  # log-probs of all tokens
        for policy in policies:
            name = f"{policy}_log_probs"
            column = table[name].combine_chunks()
            self.nulls[name] = self.nulls.get(name, 0) + column.null_count
            if pt.is_null(column.type) or column.null_count == len(column):
                continue
            own_lengths = lengths_of(column)
            counted = sampled
            if column.null_count:  # rows without the column
                present = as_numpy(column.is_valid())
                counted = sampled[np.repeat(present, lengths)]
            flat = column.flatten()
            numbers = as_numpy(flat)
            watch = self.watches.setdefault(name, LogProbWatch())
            watch.add(numbers, counted)
            self.watches_of_files.setdefault((file, name), LogProbWatch()).add(numbers, counted)
            floored = numbers == FLOOR
            any_floored = bool(floored.any())
            if any_floored:
                watch.floor(counted & floored, own_lengths)
                numbers = np.where(floored, np.nan, numbers).astype(numbers.dtype)
            if flat.null_count or any_floored:
                index = table.column_names.index(name)
                null = column.is_null() if column.null_count else None
                table = table.set_column(index, name, ragged(numbers, own_lengths, null))
            if not column.null_count:
                complete[policy] = numbers
        self._compare(complete, sampled)
        return table

    def _compare(
        self, values: Mapping[str, NDArray[np.floating]], sampled: NDArray[np.bool_]
    ) -> None:
        if "rollout" not in values:
            return
        for policy in values:
            if policy != "rollout":
                pair = self.equals.setdefault(("rollout", policy), EqualityWatch())
                pair.add(values["rollout"], values[policy], sampled)

    def _count_lacking(self, table: pa.Table, rows: Rows) -> None:
        """Count the rows without what tells rows apart, and keep the place of the first."""
        for name in NEVER_NULL:
            present = table[name].is_valid() if name in table.column_names else None
            without = table.num_rows if present is None else table[name].null_count
            if without:
                first = 0 if present is None else int(np.argmin(as_numpy(present)))
                where, before = self.lacking.get(name, (rows.where(first), 0))
                self.lacking[name] = where, before + without

    def _check_lacking(self) -> None:
        """Refuse a dump of which some rows lack what the others have and every row must have."""
        total = self.origin.num_rows
        for name in NEVER_NULL:
            where, without = self.lacking.get(name, ("", 0))
            if 0 < without < total:
                raise RcdiagError(
                    f"{where}: no `{name}`, which other rows have ({without:,} of {total:,} rows "
                    "have none)",
                    hint=NEVER_NULL[name],
                )

    def _check_placeholders(self, dropped: Mapping[str, str]) -> None:
        """Refuse a dump of which one file has a placeholder where others have log-probs."""
        for (file, name), watch in self.watches_of_files.items():
            if watch.placeholder and watch.tokens >= FEWEST_TOKENS and name not in dropped:
                raise RcdiagError(
                    f"{file}: every sampled token has {watch.placeholder} in `{name}`, a "
                    "placeholder; other files of the dump have log-probs there",
                    hint="leave this file out, or convert it apart",
                )

    def finished(self, reader: Reader, files: Sequence[SourceFile]) -> dict[str, str]:
        """Note what the whole dump tells; returns the columns to drop with the reason."""
        rows = self.origin.num_rows
        self.grouping.check(files[0].name)
        self._check_lacking()
        if self.grouping.rule:
            self.notes.change(self.grouping.rule)
        for name, having in self.rows_with.items():
            if having < rows:
                without = "counts every token" if name == "response_mask" else "is null"
                self.notes.change(f"{name}: {without} in rows of files without it", rows - having)
        for name, nulls in self.nulls.items():
            if 0 < nulls < self.rows_with[name]:
                self.notes.change(f"{name}: is null in rows whose records have none", nulls)
        dropped: dict[str, str] = {}
        for name, watch in self.watches.items():
            if watch.placeholder:
                dropped[name] = f"every sampled token has {watch.placeholder}, a placeholder"
            elif watch.floored:
                self.notes.change(
                    f"{name}: NaN in place of {FLOOR:g} at {watch.floored:,} sampled tokens, which "
                    "stands for a log-prob that the writer could not express, as -inf",
                    watch.rows_floored,
                )
        self._check_placeholders(dropped)
        for (one, other), pair in self.equals.items():
            names = f"{one}_log_probs", f"{other}_log_probs"
            if pair.equal and pair.tokens and not dropped.keys() & set(names):
                self.notes.change(
                    f"{names[1]} equals {names[0]} bit for bit on every token: the mismatch is not "
                    "observable"
                )
        for name, reason in dropped.items():
            self.notes.change(f"{name}: dropped, {reason}")
        return dropped


def convert_files(
    reader: Reader,
    files: Sequence[SourceFile],
    target: Path,
    *,
    given: Mapping[str, Any],
    renames: Mapping[str, str],
    tokenizer: str | None = None,
    heard: Heard | None = None,
    metadata: Mapping[str, Any] | None = None,
    left: Sequence[str] = (),
) -> Conversion:
    """Write the rows of a dump's files to a parquet file, in one pass and in bounded memory.

    The file appears when all went well. An error names a file as the user knows it. `metadata` is
    what is known of the table already; `left` are names of files that are not read though they are
    named as those of the dump.
    """
    if reader.text_only and tokenizer is None:
        raise RcdiagError(
            f"{files[0].name}: {reader.name} dumps hold text, no token ids and no log-probs",
            hint=f"{reader.text_only}; or {setting('tokenizer', 'PATH')} of rcdiag convert encodes "
            "the text again, which loses the recorded mismatch",
        )
    given_values.check_choices(given, reader.asks_for, f"a dump of {reader.name}")
    paths = tuple(cast(Path, file.path) for file in files)  # what is converted is on this machine
    dump = Dump(files=paths, given=given, tokenizer=tokenizer)
    if left:
        named = ", ".join(left[:3]) + (" ..." if len(left) > 3 else "")
        dump.notes.change(
            f"files of the folder that hold something else are left out ({len(left)}): {named}"
        )
    origin = Origin(files)
    grouping = Grouping(given.get("group_size"), reader.grouped_by_order)
    work = _Pass(dump.notes, given, renames, grouping, origin)
    try:
        return _converted(reader, dump, files, target, work, heard, metadata or {})
    except RcdiagError as error:
        raise with_urls(error, files) from error


def _converted(
    reader: Reader,
    dump: Dump,
    files: Sequence[SourceFile],
    target: Path,
    work: _Pass,
    heard: Heard | None,
    known: Mapping[str, Any],
) -> Conversion:
    assert reader.read is not None
    places = {file.path: number for number, file in enumerate(files, 1)}
    names = {file.path: file.name for file in files}
    with GrowingWriter(target) as writer:
        for rows in reader.read(dump):
            table = work.table(rows)
            if table.num_rows == 0:
                continue
            writer.write(table)
            having = columns.policies_in(table.column_names)
            work.policies_of.setdefault(rows.file, set()).update(having)
            if heard is not None:
                place = places.get(rows.file, 0)
                name = names.get(rows.file, str(rows.file))
                heard(name, place, len(files), work.origin.num_rows, work.tokens)
        if work.origin.num_rows == 0:
            raise RcdiagError(
                f"{files[0].name}: the table has zero rows", hint="was the dump finished?"
            )
        dropped = work.finished(reader, files)
        for name in sorted(writer.mixed):
            reason = "files hold types that nothing unites"
            if columns.column_spec(name) is not None:
                raise RcdiagError(
                    f"{files[0].name}: column `{name}`: {reason}", hint="see --column"
                )
            dropped[name] = reason
            dump.notes.change(f"{name}: dropped, {reason}")
        metadata = {**known, **_metadata(reader, dump, len(files), dropped, work.given)}
        schema = writer.finish(metadata, dropped)
        # Mapped columns that no file of the dump has are refused.
        lacking = {name: own for name, own in work.renames.items() if name not in work.mapped}
        if schema is not None and lacking:
            missing.check_columns([], schema, lacking, files[0].name)
    return Conversion(work.origin, metadata, work.policies_of, work.origin.num_rows, work.tokens)


def _metadata(
    reader: Reader, dump: Dump, files: int, dropped: Mapping[str, str], given: Mapping[str, Any]
) -> dict[str, Any]:
    policies = {
        name: facts
        for name, facts in dump.notes.policies.items()
        if f"{name}_log_probs" not in dropped
    }
    metadata: dict[str, Any] = {
        "conversion": {
            "format": reader.name,
            "files": files,
            "changes": dump.notes.changes,
            "dropped": dict(dropped),
            "rcdiag": importlib.metadata.version("rcdiag"),
        }
    }
    if given:
        metadata["given"] = dict(given)
    if policies:
        metadata["policies"] = policies
    return {**dump.notes.facts, **metadata}


def _renamed(table: pa.Table, renames: Mapping[str, str], rows: Rows) -> pa.Table:
    """Return rows with mapped columns under their canonical names."""
    names = list(table.column_names)
    for name, in_file in renames.items():
        if in_file not in names:
            continue
        if name in names and name != in_file:
            raise RcdiagError(
                f"{rows.file}: {columns.column_setting({name: in_file})}, but the dump has "
                f"`{name}` as well",
                hint="leave the option away",
            )
        names[names.index(in_file)] = name
    return table.rename_columns(names)


def _sampled(table: pa.Table, tokens: int) -> NDArray[np.bool_]:
    """Flag the sampled response tokens, [tokens]."""
    if "response_mask" not in table.column_names or pt.is_null(table["response_mask"].type):
        return np.ones(tokens, np.bool_)
    mask = table["response_mask"].combine_chunks()
    if mask.null_count:
        lengths = lengths_of(table["response_ids"])
        out = np.ones(tokens, np.bool_)
        present = np.repeat(as_numpy(mask.is_valid()), lengths)
        out[present] = as_numpy(mask.flatten()).astype(np.bool_)
        return out
    return as_numpy(mask.flatten()).astype(np.bool_)
