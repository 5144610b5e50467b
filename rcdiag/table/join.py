"""Join several tables of the same samples on `sample_id`, row number or equal tokens.

Every distinct sample gets a number in order of first appearance, so that sample i is row i of the
first table. Joining and the report of left-out rows are then set operations on these numbers.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.results import JoinReport
from rcdiag.table.arrow import as_numpy, lengths_of, values_of
from rcdiag.table.grouping import hashed_rows
from rcdiag.table.hashing import mixed
from rcdiag.table.parquet_files import open_written
from rcdiag.table.schema import LOG_PROBS, column_setting
from rcdiag.table.scratch import Scratch
from rcdiag.table.stream import hashed
from rcdiag.table.survey import check_unique, number_groups
from rcdiag.table.table import RowsOfTable, Table
from rcdiag.table.trajectories import POLICY_NAME
from rcdiag.table.writer import TableWriter

NAMED = 10  # left-out samples that the report names
# Where two responses differ, this many following tokens are compared to detect an inserted token.
COMPARED = 4
Hashes = NDArray[np.uint64]
Numbers = NDArray[np.int64]
# Besides log-probs, the columns whose values would be wrong if equal rows were mismatched.
NUMBERS = ("reward", "advantage", "advantages")


def join_tables(
    dumps: Sequence[Table], *, of_one_run: bool = False, beside: Path | None = None
) -> Table:
    """Write the rows that are in all tables, with the log-probs of every table, and open them.

    All other columns come from the first table. If an earlier table has a policy of the same name,
    the later table's short name is appended to it. Rows are matched by `sample_id`, or by row
    number if no table has ids, and are kept only if their response tokens are equal. The file is
    in a temporary folder, next to the file `beside` if that is given.

    Dumps `of_one_run` complete each other: unless all have ids, rows are matched by step, prompt
    and response; columns missing from the first dump are taken from a later one, and log-probs that
    are equal in two dumps are kept once.
    """
    first, by, names = dumps[0], _matched_by(dumps, of_one_run), _short_names(dumps)
    samples, rows = _matched(dumps, by)
    in_all = np.logical_and.reduce([own >= 0 for own in rows])
    tokens = [_hashed(dump, ["response_ids"]) for dump in dumps]
    same = in_all & np.logical_and.reduce(
        [tokens[0] == keys[own] for keys, own in zip(tokens, rows, strict=True)]
    )
    other = np.flatnonzero(in_all & ~same)
    report = _report(dumps, names, samples, by, int(same.sum()), other)
    if not same.any():
        by_id = by == "sample_id"
        matched = (
            "is `sample_id` the same thing in both?" if by_id else "rows are matched by tokens"
        )
        where = ""
        if len(other) and len(dumps) == 2:
            where = _first_difference(dumps, [int(own[other[0]]) for own in rows], names, report)
        raise RcdiagError(
            f"{', '.join(report.tables)}: no sample is in all tables with the same tokens "
            f"({report.tokens_differ:,} have other tokens{where})",
            hint=f"join what was recorded of one run; {matched}",
        )
    added = _additions(dumps, names, rows, of_one_run)
    scratch = Scratch(beside)
    path = scratch.path / "joined.parquet"
    _write(path, dumps, added, same, report if of_one_run else None)
    sources = tuple(source for dump in dumps for source in dump.sources)
    origin = RowsOfTable(sources, first.for_workers(), np.flatnonzero(same))
    return replace(open_written(path, origin), scratch=scratch, joined=report)


def _short_names(dumps: Sequence[Table]) -> list[str]:
    """Return a distinct short name for each table, which can be the suffix of a policy's name."""
    names: list[str] = []
    for dump in dumps:
        source = dump.given_as[0] if len(dump.given_as) == 1 else dump.name
        letters = (c if POLICY_NAME.fullmatch(c) else "_" for c in Path(source).stem)
        stem = "".join(letters) or "table"
        names.append(stem if stem not in names else f"{stem}_{len(names) + 1}")
    return names


# Which rows are the same sample


def _matched_by(dumps: Sequence[Table], of_one_run: bool) -> str:
    """Return what rows are matched by: `sample_id`, `tokens` or `row`."""
    having = ["sample_id" in dump.schema.names for dump in dumps]
    if of_one_run and not all(having):
        return "tokens"
    if any(having) and not all(having):
        lacking = dumps[having.index(False)].name
        raise RcdiagError(
            f"{lacking}: no column `sample_id`, which the other tables have",
            hint=f"{column_setting({'sample_id': 'NAME'})}, or compare the tables without it",
        )
    return "sample_id" if all(having) else "row"


def _matched(dumps: Sequence[Table], by: str) -> tuple[list[Numbers], list[Numbers]]:
    """Return for each table the samples of its rows, [rows], and the rows of samples.

    Rows are those of the samples of the first table, [rows of the first table]; -1 if a table does
    not have the sample.
    """
    samples = [np.arange(dump.num_rows) for dump in dumps]
    if by != "row":
        hashes = _hashed_tokens(dumps) if by == "tokens" else _hashed_ids(dumps)
        distinct, numbers = number_groups(np.concatenate(hashes))
        samples = [numbers[np.searchsorted(distinct, own)].astype(np.int64) for own in hashes]
    count, rows = dumps[0].num_rows, []
    for own in samples:
        row_of_sample = np.full(max(count, int(own.max()) + 1), -1, np.int64)
        row_of_sample[own] = np.arange(len(own))
        rows.append(row_of_sample[:count])
    return samples, rows


def _hashed_ids(dumps: Sequence[Table]) -> list[Hashes]:
    """Hash the sample ids of each table, [rows].

    Raises an error if ids are numbers in one table but text in another, or if an id is repeated.
    """
    kinds = [dump.schema.field("sample_id").type for dump in dumps]
    plain = [kind.value_type if pt.is_dictionary(kind) else kind for kind in kinds]
    hashes = []
    for dump, kind, own in zip(dumps, kinds, plain, strict=True):
        if pt.is_integer(own) != pt.is_integer(plain[0]):
            raise RcdiagError(
                f"{dump.name}: column `sample_id` is {kind}, but {kinds[0]} in {dumps[0].name}",
                hint="cast one of them, so that equal samples have equal ids",
            )
        without_dictionary = pa.schema([("sample_id", own)])
        ids = [
            hashed(replace(batch, table=batch.table.cast(without_dictionary)), "sample_id")
            for batch in dump.batches(["sample_id"])
        ]
        check_unique(dump, ids)
        hashes.append(np.concatenate(ids))
    return hashes


def _report(
    dumps: Sequence[Table],
    names: Sequence[str],
    samples: Sequence[Numbers],
    by: str,
    common: int,
    other: Numbers,
) -> JoinReport:
    """Report the rows that are left out; `other` are samples whose tokens differ."""
    every = np.unique(np.concatenate(samples))
    lacking = {name: np.setdiff1d(every, own) for name, own in zip(names, samples, strict=True)}
    out = [(sample, "other tokens") for sample in other[:NAMED]]
    out += [(one, f"not in {name}") for name, ids in lacking.items() for one in ids[:NAMED]]
    return JoinReport(
        tables=[dump.name for dump in dumps],
        table_rows=[dump.num_rows for dump in dumps],
        common_samples=common,
        missing_rows={name: len(ids) for name, ids in lacking.items()},
        tokens_differ=len(other),
        left_out=[f"{_name_of(int(one), dumps, samples, by)} ({why})" for one, why in out[:NAMED]],
        matched_by=by,
    )


def _name_of(sample: int, dumps: Sequence[Table], samples: Sequence[Numbers], by: str) -> str:
    """Return a sample's name for messages, from the first table that holds it."""
    if by == "row":
        return str(sample)
    found = (
        (dump, np.flatnonzero(own == sample)) for dump, own in zip(dumps, samples, strict=True)
    )
    dump, rows = next((dump, rows) for dump, rows in found if len(rows))
    if by == "tokens":
        return dump.where(int(rows[0]))
    (batch,) = dump.batches(["sample_id"], rows=rows)
    return str(batch.table["sample_id"][0].as_py())


def _first_difference(
    dumps: Sequence[Table], rows: Sequence[int], names: Sequence[str], report: JoinReport
) -> str:
    """Describe where the tokens of the first left-out sample start to differ."""
    lists = []
    for dump, row in zip(dumps, rows, strict=True):
        (batch,) = dump.batches(["response_ids"], rows=np.array([row]))
        lists.append(batch.table["response_ids"][0].as_py())
    one, other = lists
    if one is None or other is None:
        return ""
    pairs = zip(one, other, strict=False)
    least = min(len(one), len(other))
    place = next((at for at, (a, b) in enumerate(pairs) if a != b), least)
    sample = report.left_out[0].removesuffix(" (other tokens)")
    text = f"; those of {sample} differ from token {place} of the response on"
    # If one side has one token more, the tokens that follow it equal those of the other side.
    for longer, shorter, name in ((one, other, names[0]), (other, one, names[1])):
        follows = longer[place + 1 : place + 1 + COMPARED]
        if place < len(longer) and follows == shorter[place : place + len(follows)]:
            return f"{text}: {name} has an extra token {longer[place]}"
    return text


# What later tables add to the rows of the first


class _Addition(Struct, frozen=True):
    """The columns that a later table adds to those of the first."""

    dump: Table
    policies: Mapping[str, str]  # policy name in its table -> name in the joined table
    log_probs: Mapping[str, str]  # log-prob column in its table -> name in the joined table
    lacking: Sequence[str]  # columns that no earlier table has
    rows_of: Numbers  # its row for each sample of the first table, [rows of the first table]

    def columns(self) -> pa.Table:
        """Return the added columns for all rows of its table, under their joined names."""
        names = [*self.lacking, *self.log_probs]
        whole = pa.concat_tables([batch.table for batch in self.dump.batches(names)])
        whole = whole.rename_columns([*self.lacking, *self.log_probs.values()])
        return whole.unify_dictionaries().combine_chunks()

    @property
    def about_policies(self) -> dict[str, Any]:
        """Return the metadata of its policies, with policy names (also in `repeat_of`) renamed."""
        renamed = {}
        for old, facts in self.dump.metadata.get("policies", {}).items():
            if old in self.policies:
                options = dict(facts.get("options") or {})
                if (repeated := options.get("repeat_of")) is not None:
                    options["repeat_of"] = self.policies.get(repeated, repeated)
                name = self.policies[old]
                renamed[name] = {**facts, "name": name, "options": options}
        return renamed


def _additions(
    dumps: Sequence[Table], names: Sequence[str], rows: Sequence[Numbers], of_one_run: bool
) -> list[_Addition]:
    """Return what each later table adds, with policies renamed to be unique."""
    taken, columns = set(dumps[0].policies), set(dumps[0].columns)
    added = []
    for dump, name, rows_of in zip(dumps[1:], names[1:], rows[1:], strict=True):
        policies: dict[str, str] = {}
        for old in dump.policies:
            new = old
            while new in taken or new in policies.values() or (new != old and new in dump.policies):
                new = f"{new}_{name}"
            policies[old] = new
        log_probs = {f"{old}_log_probs": f"{new}_log_probs" for old, new in policies.items()}
        own = set(dump.columns) - columns - log_probs.keys()
        lacking = sorted(own) if of_one_run else []
        taken |= set(policies.values())
        columns |= {*lacking, *log_probs.values()}
        added.append(_Addition(dump, policies, log_probs, lacking, rows_of))
    return added


def _write(
    path: Path,
    dumps: Sequence[Table],
    added: Sequence[_Addition],
    same: NDArray[np.bool_],
    of_one_run: JoinReport | None,
) -> None:
    """Write the rows of the first table where `same` [rows] is true, with the added columns.

    If dumps are `of_one_run`, log-prob columns that equal those of an earlier dump are left out.
    """
    first, later = dumps[0], [(one.columns(), one.rows_of) for one in added]

    def joined(names: Sequence[str]) -> Iterator[pa.Table]:
        for batch in first.batches(names):
            some = batch.take(same[batch.numbers])
            table = some.table
            for columns, rows_of in later:
                own = columns.take(rows_of[some.numbers])
                for name in own.column_names:
                    table = table.append_column(name, own[name])
            yield table

    policies = dict(first.metadata.get("policies", {}))
    for one in added:
        policies |= one.about_policies
    metadata = dict(first.metadata)
    equal: list[str] = []
    if of_one_run is not None:
        twins = {new: old for one in added for old, new in one.log_probs.items() if new != old}
        equal = [*twins]
        of_first = sorted({*twins.values()} & {*first.columns})
        for table in joined(["response_ids", *of_first]) if twins else ():
            equal = [name for name in equal if _are_equal(table[name], table[twins[name]])]
        policies = {
            name: facts for name, facts in policies.items() if f"{name}_log_probs" not in equal
        }
        metadata |= _conversions(dumps, of_one_run)
    if policies:
        metadata["policies"] = policies
    tables = (first, *(columns for columns, _ in later))
    fields = [field for table in tables for field in table.schema if field.name not in equal]
    with TableWriter(path, pa.schema(fields), metadata) as writer:
        for table in joined(first.columns):
            writer.write(table.drop_columns(equal))


def _are_equal(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    """Tell whether two columns of lists of numbers are equal; NaN equals NaN."""
    lengths = [lengths_of(column, of_null=-1) for column in (one, other)]
    numbers = [as_numpy(values_of(column.combine_chunks())) for column in (one, other)]
    same_lengths = np.array_equal(lengths[0], lengths[1])
    return same_lengths and np.array_equal(numbers[0], numbers[1], equal_nan=True)


def _conversions(dumps: Sequence[Table], report: JoinReport) -> dict[str, Any]:
    """Return the metadata of a join: what each conversion did, and how rows were matched."""
    conversions = [dump.metadata.get("conversion", {}) for dump in dumps]
    changes = {text: n for each in conversions for text, n in each.get("changes", {}).items()}
    changes[match_sentence(report)] = report.common_samples
    formats = [each.get("format", "parquet") for each in conversions]
    together: dict[str, Any] = {
        "conversion": {
            "format": " + ".join(dict.fromkeys(formats)),
            "files": sum(len(dump.sources) for dump in dumps),
            "changes": changes,
            "dropped": {
                name: reason
                for each in conversions
                for name, reason in each.get("dropped", {}).items()
            },
            "rcdiag": importlib.metadata.version("rcdiag"),
        }
    }
    given = {
        name: value for dump in dumps for name, value in dump.metadata.get("given", {}).items()
    }
    return together | ({"given": given} if given else {})


def match_sentence(report: JoinReport) -> str:
    """Say how many rows of each joined dump were matched, and by which columns."""
    sides = ", ".join(
        f"{report.common_samples:,} of {rows:,} rows of {table}"
        for table, rows in zip(report.tables, report.table_rows, strict=True)
    )
    words = {"tokens": "step, prompt and response tokens", "row": "row number"}
    sentence = f"joined by {words.get(report.matched_by, report.matched_by)}: {sides}"
    if report.tokens_differ:
        first = next((name for name in report.left_out if name.endswith("(other tokens)")), "")
        sentence += f"; {report.tokens_differ:,} differ in their tokens and are left out: {first}"
    return sentence


# Matching rows by their tokens


def _hashed_tokens(dumps: Sequence[Table]) -> list[Hashes]:
    """Hash the response, and prompt and step if all dumps have them, of each dump's rows, [rows].

    Equal rows are matched in order: the n-th in one dump to the n-th in another.
    """
    names = ["response_ids"]
    names += [
        name for name in ("prompt_ids", "step") if all(name in dump.columns for dump in dumps)
    ]
    keys = [_hashed(dump, names) for dump in dumps]
    for dump, own in zip(dumps[1:], keys[1:], strict=True):
        _check_ambiguity(dumps[0], keys[0], dump, own)
    numbered = []
    for own in keys:
        order = np.argsort(own, kind="stable")
        ordered = own[order]
        earlier = np.empty(len(own), np.uint64)  # rows before with the same key
        earlier[order] = np.arange(len(own)) - np.searchsorted(ordered, ordered)
        numbered.append(mixed(own) + earlier)
    return numbered


def _hashed(dump: Table, names: Sequence[str]) -> Hashes:
    return np.concatenate([hashed_rows(batch.table, names) for batch in dump.batches(names)])


def _check_ambiguity(one: Table, one_keys: Hashes, other: Table, other_keys: Hashes) -> None:
    """Raise an error if equal rows cannot be matched because one dump has more of them.

    Equal rows are in the same order in both dumps, but if one dump has more, it is unknown which
    are missing from the other. This matters only if these rows differ in log-probs or rewards.
    """
    own, own_counts = np.unique(one_keys, return_counts=True)
    others, other_counts = np.unique(other_keys, return_counts=True)
    shared, at, other_at = np.intersect1d(own, others, return_indices=True)
    more = own_counts[at] - other_counts[other_at]
    doubtful, more = shared[more != 0], more[more != 0]
    if not len(doubtful):
        return
    differ = _differing(one, one_keys, doubtful)
    bad = np.where(more > 0, differ, _differing(other, other_keys, doubtful))
    if not bad.any():
        return
    key = doubtful[np.argmax(bad)]
    rows, other_rows = np.flatnonzero(one_keys == key), np.flatnonzero(other_keys == key)
    raise RcdiagError(
        f"{one.where(int(rows[0]))}: {len(rows)} rows of this dump have the same tokens, and "
        f"{len(other_rows)} rows of {other.name}; their other columns differ, so it is unknown "
        f"which belong together ({int(bad.sum())} such cases)",
        hint=f"give both dumps ids: {column_setting({'sample_id': 'NAME'})}",
    )


def _differing(table: Table, keys: Hashes, doubtful: Hashes) -> NDArray[np.bool_]:
    """For each key shared by several rows, tell whether these rows differ in numbers, [keys]."""
    names = [name for name in table.columns if LOG_PROBS.fullmatch(name) or name in NUMBERS]
    if not names:
        return np.zeros(len(doubtful), np.bool_)
    low = np.full(len(doubtful), np.iinfo(np.uint64).max, np.uint64)
    high = np.zeros(len(doubtful), np.uint64)
    for batch in table.batches(names):
        own = keys[batch.numbers]
        at = np.minimum(np.searchsorted(doubtful, own), len(doubtful) - 1)
        rows = np.flatnonzero(doubtful[at] == own)
        if not len(rows):
            continue
        values = hashed_rows(batch.table.take(rows), names)
        np.minimum.at(low, at[rows], values)
        np.maximum.at(high, at[rows], values)
    return low < high
