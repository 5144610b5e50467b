"""Convert a reader's rows to one parquet table in one pass: check, type and group them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from msgspec import Struct, field
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError, first_line, mapping_setting, setting
from rcdiag.table import given as given_values
from rcdiag.table import missing, token_columns
from rcdiag.table import schema as columns
from rcdiag.table.arrow import as_numpy, lengths_of, ragged
from rcdiag.table.grouping import PromptGroups
from rcdiag.table.readers.reader import DAMAGED, Dump, Notes, Reader, Rows
from rcdiag.table.sources import SourceFile
from rcdiag.table.table import Conversion, Origin, named_by_url
from rcdiag.table.writer import TableWriter

# Arguments: current file, its number (from 1), number of files, rows and tokens so far.
OnProgress = Callable[[str, int, int, int, int], None]

# Columns that must be set in all rows or in none, and what to do if only some rows have them.
_APART = "leave these records out of the dump, or convert them separately"
NEVER_NULL = {
    "step": f"{_APART}, with {mapping_setting('given', {'step': 'N'}, '--given')}",
    "prompt_ids": _APART,
    "group_id": _APART,
    "sample_id": _APART,
}


# Constants that trainers write for log-probs that they did not compute. A column that holds one of
# them at every sampled token is dropped.
PLACEHOLDERS = (0.0, 1.0, -1.0)
# What vLLM and SkyRL write in place of a log-prob that JSON or the trainer cannot hold (-inf):
# vllm/entrypoints/openai/chat_completion/serving.py, skyrl/train/dataset/preprocess.py.
FLOOR = -9999.0
# With fewer sampled tokens than this, a constant column may be real: 0.0 at certain tokens.
FEWEST_TOKENS = 100


@dataclass
class LogProbWatch:
    """Statistics of one log-prob column, collected while its rows stream by."""

    tokens: int = 0  # sampled tokens with a value, including NaN
    floored: int = 0  # sampled tokens whose value was FLOOR
    rows_floored: int = 0  # rows with at least one such token
    constant: float | None = None  # the first sampled value
    varies: bool = False

    def add(self, values: NDArray[np.floating], sampled: NDArray[np.bool_]) -> None:
        """Add the values at some tokens and whether each was sampled, both [tokens]."""
        self.tokens += int(np.count_nonzero(sampled))
        if self.varies or not self.tokens:
            return
        own = values[sampled]
        if self.constant is None:
            self.constant = float(own[0])
        self.varies = not bool((own == self.constant).all())

    def floor(self, floored: NDArray[np.bool_], lengths: NDArray[np.integer]) -> None:
        """Count the sampled tokens that hold FLOOR [tokens], and their rows (lengths [rows])."""
        owner = np.repeat(np.arange(len(lengths)), lengths)
        self.floored += int(floored.sum())
        self.rows_floored += len(np.unique(owner[floored]))

    @property
    def placeholder(self) -> str:
        """Return the placeholder that fills the whole column, as text; empty if none does."""
        if self.tokens and self.floored == self.tokens:
            return f"{FLOOR:g}"
        constant = None if self.varies else self.constant
        return f"{constant:g}" if constant in PLACEHOLDERS and self.tokens else ""


class _Pass(Struct):
    """One pass over the rows of a dump, and the facts that it collects."""

    notes: Notes
    given: Mapping[str, Any]
    renames: Mapping[str, str]
    grouping: PromptGroups
    origin: Origin
    tokens: int = 0
    watches: dict[str, LogProbWatch] = field(default_factory=dict)
    watches_of_files: dict[tuple[Path, str], LogProbWatch] = field(default_factory=dict)
    # Policy -> whether its log-probs have been bit for bit those of the sampler so far.
    equal: dict[str, bool] = field(default_factory=dict)
    rows_with: dict[str, int] = field(default_factory=dict)  # column -> rows in files that have it
    nulls: dict[str, int] = field(default_factory=dict)  # log-probs -> null rows in such files
    lacking: dict[str, tuple[str, int]] = field(default_factory=dict)  # column -> first row, count
    mapped: set[str] = field(default_factory=set)  # columns that a file has under a mapped name
    policies_of: dict[Path, set[str]] = field(default_factory=dict)

    def table(self, rows: Rows) -> pa.Table:
        """Return some rows as they will be written; raise an error at an invalid row."""
        table = pa.Table.from_batches([rows.batch])
        self.mapped |= {name for name, own in self.renames.items() if own in table.column_names}
        table = typed(_renamed(table, self.renames, rows), rows)
        for name in table.column_names:
            self.rows_with[name] = self.rows_with.get(name, 0) + table.num_rows
        lengths = checked_lengths(table, rows)
        given = given_values.of_all_rows(self.given)
        given_values.check_agreement(table, given, rows.where)
        table = given_values.filled(table, given, np.arange(table.num_rows))
        table = self._watched(table, lengths, rows.file)
        table = self.grouping.add_to(table, rows)
        for name in NEVER_NULL:
            column = table[name] if name in table.column_names else pa.nulls(table.num_rows)
            if column.null_count:
                first = int(np.argmax(as_numpy(column.is_null())))
                where, before = self.lacking.get(name, (rows.where(first), 0))
                self.lacking[name] = where, before + column.null_count
        self.tokens += int(lengths.sum())
        self.origin.add(rows.file, rows.record, rows.numbers)
        if table.num_rows:
            having = columns.policies_in(table.column_names)
            self.policies_of.setdefault(rows.file, set()).update(having)
        return table

    def _watched(self, table: pa.Table, lengths: NDArray[np.int64], file: Path) -> pa.Table:
        """Update the watches of all log-prob columns; return the rows with FLOOR set to NaN."""
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
                null = as_numpy(column.is_null())
                table = table.set_column(index, name, ragged(numbers, own_lengths, null))
            if not column.null_count:
                complete[policy] = numbers
        if (rollout := complete.pop("rollout", None)) is not None and sampled.any():
            for policy, numbers in complete.items():
                same = np.array_equal(rollout[sampled], numbers[sampled])
                self.equal[policy] = self.equal.get(policy, True) and same
        return table

    def finished(self, source: str, mixed: Collection[str]) -> dict[str, str]:
        """Run the checks that need the whole dump; return columns to drop with the reasons.

        `source` names the dump in errors; `mixed` are columns whose types differ irreconcilably.
        """
        self._check_rows(source)
        self._note_nulls()
        dropped = self._placeholders()
        for policy, equal in self.equal.items():
            names = "rollout_log_probs", f"{policy}_log_probs"
            if equal and not dropped.keys() & set(names):
                self.notes.change(
                    f"{names[1]} equals {names[0]} bit for bit on every token: the mismatch is not "
                    "observable"
                )
        for name in sorted(mixed):
            reason = "files hold types that cannot be combined"
            if columns.column_spec(name) is not None:
                raise RcdiagError(f"{source}: column `{name}`: {reason}", hint="see --column")
            dropped[name] = reason
        for name, reason in dropped.items():
            self.notes.change(f"{name}: dropped, {reason}")
        return dropped

    def _check_rows(self, source: str) -> None:
        """Refuse a dump without rows, and a step, prompt, group or id that only some rows have."""
        rows = self.origin.num_rows
        if rows == 0:
            raise RcdiagError(f"{source}: the table has zero rows", hint="was the dump finished?")
        self.grouping.check(source)
        for name in NEVER_NULL:
            where, lacking = self.lacking.get(name, ("", 0))
            if 0 < lacking < rows:
                raise RcdiagError(
                    f"{where}: no `{name}`, which other rows have ({lacking:,} of {rows:,} rows "
                    "have none)",
                    hint=NEVER_NULL[name],
                )

    def _note_nulls(self) -> None:
        """Note how rows were grouped, and the columns that are null in some rows."""
        rows = self.origin.num_rows
        if self.grouping.rule:
            self.notes.change(self.grouping.rule)
        for name, having in self.rows_with.items():
            if having < rows:
                without = "counts every token" if name == "response_mask" else "is null"
                self.notes.change(f"{name}: {without} in rows of files without it", rows - having)
        for name, nulls in self.nulls.items():
            if 0 < nulls < self.rows_with[name]:
                self.notes.change(f"{name}: is null in rows whose records have none", nulls)

    def _placeholders(self) -> dict[str, str]:
        """Return placeholder columns of log-probs, each with the reason; note floored values."""
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
        for (file, name), watch in self.watches_of_files.items():
            if watch.placeholder and watch.tokens >= FEWEST_TOKENS and name not in dropped:
                raise RcdiagError(
                    f"{file}: every sampled token has {watch.placeholder} in `{name}`, a "
                    "placeholder; other files of the dump have log-probs there",
                    hint="leave this file out, or convert it separately",
                )
        return dropped


def convert_files(
    reader: Reader,
    files: Sequence[SourceFile],
    target: Path,
    *,
    given: Mapping[str, Any],
    renames: Mapping[str, str],
    tokenizer: str | None = None,
    on_progress: OnProgress | None = None,
    metadata: Mapping[str, Any] | None = None,
    left: Sequence[str] = (),
) -> Conversion:
    """Write the rows of a dump's files to one parquet file, in one pass and in bounded memory.

    The target appears only after success. Errors name files as the user knows them. `metadata` is
    already known about the table; `left` names files that match the dump's file names but hold
    something else and are not read.
    """
    if reader.text_only and tokenizer is None:
        raise RcdiagError(
            f"{files[0].name}: {reader.name} dumps hold text, no token ids and no log-probs",
            hint=f"{reader.text_only}; or {setting('tokenizer', 'PATH')} of rcdiag convert encodes "
            "the text again, which loses the recorded mismatch",
        )
    given_values.check_choices(given, reader.asks_for, f"a dump of {reader.name}")
    paths = tuple(cast(Path, file.path) for file in files)  # files to convert are always local
    dump = Dump(files=paths, given=given, tokenizer=tokenizer)
    if left:
        named = ", ".join(left[:3]) + (" ..." if len(left) > 3 else "")
        dump.notes.change(
            f"files of the folder that hold something else were left out ({len(left)}): {named}"
        )
    grouping = PromptGroups(given.get("group_size"), reader.grouped_by_order)
    work = _Pass(dump.notes, given, renames, grouping, Origin(files))
    places = {file.path: (file.name, number) for number, file in enumerate(files, 1)}
    assert reader.read is not None
    with named_by_url(files), TableWriter(target) as writer:
        for rows in reader.read(dump):
            table = work.table(rows)
            if table.num_rows == 0:
                continue
            writer.write(table)
            if on_progress is not None:
                name, place = places.get(rows.file, (str(rows.file), 0))
                on_progress(name, place, len(files), work.origin.num_rows, work.tokens)
        dropped = work.finished(files[0].name, writer.mixed)
        known = {**(metadata or {}), **_metadata(reader, dump, dropped)}
        schema = writer.finish(known, dropped)
        # Mapped columns that no file of the dump has are refused.
        lacking = {name: own for name, own in renames.items() if name not in work.mapped}
        if schema is not None and lacking:
            missing.check_columns([], schema, lacking, files[0].name)
    return Conversion(work.origin, work.policies_of, work.tokens)


def _metadata(reader: Reader, dump: Dump, dropped: Mapping[str, str]) -> dict[str, Any]:
    """Return the metadata that describes the conversion."""
    policies = {
        name: facts
        for name, facts in dump.notes.policies.items()
        if f"{name}_log_probs" not in dropped
    }
    metadata: dict[str, Any] = {
        "conversion": {
            "format": reader.name,
            "files": len(dump.files),
            "changes": dump.notes.changes,
            "dropped": dict(dropped),
            "rcdiag": importlib.metadata.version("rcdiag"),
        }
    }
    if dump.given:
        metadata["given"] = dict(dump.given)
    if policies:
        metadata["policies"] = policies
    return {**dump.notes.facts, **metadata}


def _renamed(table: pa.Table, renames: Mapping[str, str], rows: Rows) -> pa.Table:
    """Return rows with mapped columns renamed to their canonical names."""
    names = list(table.column_names)
    for name, in_file in renames.items():
        if in_file not in names:
            continue
        if name in names and name != in_file:
            raise RcdiagError(
                f"{rows.file}: {columns.column_setting({name: in_file})}, but the dump has "
                f"`{name}` as well",
                hint="leave out the option",
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


# Check a reader's rows and cast them to the types of the table


def typed(table: pa.Table, rows: Rows) -> pa.Table:
    """Return rows cast to the column types of the table."""
    if "response_ids" not in table.column_names:
        raise RcdiagError(
            f"{rows.file}: no column `response_ids`; there are {', '.join(table.column_names)}",
            hint=columns.column_setting({"response_ids": "NAME"}),
        )
    table = columns.with_steps_as_numbers(table, rows.where)
    known = [field for field in table.schema if not pt.is_null(field.type)]
    columns.check_types(
        pa.schema(known),
        str(rows.file),
        lambda name: rows.where(columns.first_of_wrong_type(name, table[name])),
    )
    schema = pa.schema([(f.name, columns.table_type(f.name, f.type)) for f in table.schema])
    try:
        return table.cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _bad_cast(table, schema, rows, error) from error


def _bad_cast(table: pa.Table, schema: pa.Schema, rows: Rows, error: Exception) -> RcdiagError:
    """Return the error for the first value that its column's type cannot hold, with its row."""
    for wanted in schema:
        column = table[wanted.name]
        for row in range(table.num_rows):
            try:
                column.take([row]).cast(wanted.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                return RcdiagError(
                    f"{rows.where(row)}: column `{wanted.name}` does not fit {wanted.type} "
                    f"({first_line(error)})",
                    hint="if another column is meant, name it by --column",
                )
    return RcdiagError(f"{rows.file}: {first_line(error)}")


def checked_lengths(table: pa.Table, rows: Rows) -> NDArray[np.int64]:
    """Return the length of every response; refuse token columns of other lengths."""
    ids = table["response_ids"]
    if ids.null_count:
        row = int(np.argmax(as_numpy(ids.is_null())))
        raise RcdiagError(
            f"{rows.where(row)}: no response tokens (null)",
            hint="an empty response is an empty list; drop rows that were never sampled",
        )
    lengths, refuse = lengths_of(ids), token_columns.in_file(rows.where)
    for name in table.column_names:
        column = table[name]
        if token_columns.has_value_by_token(name, column.type):
            own = lengths_of(column, of_null=-1)
            token_columns.check_lengths(name, own, lengths, refuse, unexplained=DAMAGED)
        is_ids = name in ("response_ids", "prompt_ids")
        if (is_ids or name == "response_mask") and not pt.is_null(column.type):
            check = token_columns.check_ids if is_ids else token_columns.check_mask
            values = as_numpy(column.combine_chunks().flatten())
            check(name, values, lengths_of(column), refuse)
    return lengths
