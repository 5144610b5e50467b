"""Join several tables of the same samples into one, on `sample_id`, place or equal tokens."""

from __future__ import annotations

import importlib.metadata
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pt
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.files import not_writable
from rcdiag.results import JoinReport
from rcdiag.table.opening import open_table
from rcdiag.table.schema import FORMAT_VERSION, LOG_PROBS, column_setting, with_metadata
from rcdiag.table.survey import UniqueSampleIds
from rcdiag.table.table import RowsOfTable, Table

NAMED = 10
# Tokens behind a place where two sides part by which a token that one has more is told.
COMPARED = 4
ROW = "__row"
PLACE = "__place"
IN_ALL, SAME, OTHER = "__in_all", "__same", "__other"
Hashes = NDArray[np.uint64]
# Columns beside log-probs for which it matters which rows of two dumps belong together.
NUMBERS = ("reward", "advantage", "advantages")
# An odd number that mixes the hash of one column before that of another is added.
MIX = np.uint64(0x9E3779B97F4A7C15)


def join_tables(
    dumps: Sequence[Table], names: Sequence[str], path: Path, *, of_one_run: bool = False
) -> tuple[Table, JoinReport]:
    """Write to `path` the rows that all tables have, with the log-probs of all tables.

    All other columns are those of the first table. A policy that an earlier table has too gets the
    later table's name (of `names`) at its end. Rows are the same sample by `sample_id`, or by their
    number where no table has ids, and only when their response tokens are equal.

    Dumps `of_one_run` complete each other: where not all have ids their rows are the same sample by
    step, prompt and response; columns that the first lacks are taken from a later one, and
    log-probs that two of them hold alike are kept once.
    """
    by = _key(dumps, of_one_run)
    key = "sample_id" if by == "sample_id" else ROW
    partners = matched_rows(dumps) if by == "tokens" else [None] * len(dumps)
    with tempfile.TemporaryDirectory(prefix="rcdiag-", dir=path.parent) as folder:
        frames = [
            _frame(dump, key, rows, Path(folder), number)
            for number, (dump, rows) in enumerate(zip(dumps, partners, strict=True))
        ]
        try:
            return _joined(dumps, frames, names, path, by, partners, of_one_run)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise RcdiagError(
                f"{', '.join(dump.name for dump in dumps)}: cannot be joined ({reason})",
                hint=f"is there room in {path.parent}? Else drop columns that rcdiag does not need",
            ) from error


class _Addition(Struct, frozen=True, kw_only=True):
    """What a later table adds to the columns of the first."""

    dump: Table
    frame: pl.LazyFrame
    policies: Mapping[str, str]  # name in its table -> name in the joined one
    log_probs: Mapping[str, str]  # the same of their columns
    lacking: Sequence[str]  # columns that no earlier table has

    @property
    def about_policies(self) -> dict[str, Any]:
        """Return the metadata of its policies by their new names; a repeat is of its own table."""
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
    dumps: Sequence[Table],
    frames: Sequence[pl.LazyFrame],
    names: Sequence[str],
    key: str,
    of_one_run: bool,
) -> list[_Addition]:
    """Return what each later table adds, under names that no table before it has."""
    taken, columns = set(dumps[0].policies), set(frames[0].collect_schema().names())
    added = []
    for dump, frame, name in zip(dumps[1:], frames[1:], names[1:], strict=True):
        policies: dict[str, str] = {}
        for old in dump.policies:
            new = old
            while new in taken or new in policies.values() or (new != old and new in dump.policies):
                new = f"{new}_{name}"
            policies[old] = new
        log_probs = {f"{old}_log_probs": f"{new}_log_probs" for old, new in policies.items()}
        own = set(frame.collect_schema().names()) - columns - log_probs.keys() - {key}
        lacking = sorted(own) if of_one_run else []
        taken |= set(policies.values())
        columns |= {*lacking, *log_probs.values()}
        added.append(
            _Addition(
                dump=dump, frame=frame, policies=policies, log_probs=log_probs, lacking=lacking
            )
        )
    return added


def _side_by_side(first: pl.LazyFrame, added: Sequence[_Addition], key: str) -> pl.LazyFrame:
    """Put what later tables add beside the rows of the first, with the helper columns PLACE,
    IN_ALL and SAME (all tables have the row, and its tokens), and OTHER, the second's tokens.
    """
    wide, ids = first.with_row_index(PLACE), [f"__ids{n}" for n in range(len(added))]
    for name, one in zip(ids, added, strict=True):
        part = one.frame.select(
            key,
            pl.struct("response_ids").alias(name),  # null where the table lacks the row
            *one.lacking,
            *(pl.col(old).alias(new) for old, new in one.log_probs.items()),
        )
        wide = wide.join(part, on=key, how="left", maintain_order="left")
    tokens = [pl.col(name).struct.field("response_ids") for name in ids]
    return wide.with_columns(
        pl.all_horizontal(pl.col(name).is_not_null() for name in ids).alias(IN_ALL),
        pl.all_horizontal(one.eq_missing(pl.col("response_ids")) for one in tokens).alias(SAME),
        tokens[0].alias(OTHER),
    ).drop(ids)


def _joined(
    dumps: Sequence[Table],
    frames: Sequence[pl.LazyFrame],
    names: Sequence[str],
    path: Path,
    by: str,
    partners: Sequence[NDArray[np.int64] | None],
    of_one_run: bool,
) -> tuple[Table, JoinReport]:
    """Join scans of the tables, whose rows are the same sample `by` id, row or tokens."""
    key = "sample_id" if by == "sample_id" else ROW
    added = _additions(dumps, frames, names, key, of_one_run)
    wide = _side_by_side(frames[0], added, key)
    report = _report(dumps, names, frames, wide, by, partners)
    if report.common_samples == 0:
        by_id = by == "sample_id"
        matched = (
            "is `sample_id` the same thing in both?" if by_id else "rows are matched by tokens"
        )
        where = _first_difference(wide.filter(pl.col(IN_ALL), ~pl.col(SAME)), names, report)
        raise RcdiagError(
            f"{', '.join(report.tables)}: no sample is in all tables with the same tokens "
            f"({report.tokens_differ:,} have other tokens{where})",
            hint=f"join what was recorded of one run; {matched}",
        )
    kept = wide.filter(IN_ALL, SAME)
    places = kept.select(PLACE).collect()[PLACE].to_numpy().astype(np.int64)
    kept = kept.drop(PLACE, IN_ALL, SAME, OTHER, *([ROW] if key == ROW else []))
    policies = dict(dumps[0].metadata.get("policies", {}))
    for one in added:
        policies |= one.about_policies
    if of_one_run:
        twins = {b: a for one in added for a, b in one.log_probs.items() if a != b}
        repeated = _equal_columns(kept, twins)
        kept = kept.drop(repeated)
        policies = {
            name: facts for name, facts in policies.items() if f"{name}_log_probs" not in repeated
        }
    kept.sink_parquet(path, maintain_order=True, compression="lz4")
    metadata = {"format_version": FORMAT_VERSION, **dumps[0].metadata}
    if policies:
        metadata["policies"] = policies
    if of_one_run:
        metadata |= _together(dumps, report)
    joined = open_table(path)
    (file,) = joined.files
    sources = tuple(source for dump in dumps for source in dump.sources)
    origin = RowsOfTable(sources, dumps[0].for_workers(), places)
    # Polars would write the metadata where Arrow does not look for it.
    noted = with_metadata(joined.schema, metadata)
    file = replace(file, path=sources[0].path, url=sources[0].url, converted=path, origin=origin)
    return replace(joined, schema=noted, files=(file,)), report


def _first_difference(wrong: pl.LazyFrame, names: Sequence[str], report: JoinReport) -> str:
    """Say where the tokens of the first sample with other tokens part, in two dumps."""
    rows = wrong.select("response_ids", OTHER).head(1).collect().rows()
    if len(names) != 2 or not rows or None in rows[0]:
        return ""
    one, other = rows[0]
    pairs = zip(one, other, strict=False)
    least = min(len(one), len(other))
    place = next((at for at, (a, b) in enumerate(pairs) if a != b), least)
    sample = report.left_out[0].removesuffix(" (other tokens)")
    text = f"; those of {sample} part at place {place} of the response"
    # A token that one side has more shows in what follows: it goes on as on the other side.
    for longer, shorter, name in ((one, other, names[0]), (other, one, names[1])):
        follows = longer[place + 1 : place + 1 + COMPARED]
        if place < len(longer) and follows == shorter[place : place + len(follows)]:
            return f"{text}, where {name} has token {longer[place]} and the other has not"
    return text


def _equal_columns(rows: pl.LazyFrame, twins: Mapping[str, str]) -> list[str]:
    """Return the columns that hold on all rows what their twins of an earlier dump hold."""
    if not twins:
        return []
    values = pl.List(pl.Float64)
    equal = rows.select(
        pl.col(one).cast(values).eq_missing(pl.col(other).cast(values)).all().alias(one)
        for one, other in twins.items()
    ).collect()
    return [name for name in equal.columns if equal[name].item()]


def _together(dumps: Sequence[Table], report: JoinReport) -> dict[str, Any]:
    """Return what the conversions of joined dumps did, and how their rows were matched."""
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
    """Say how many rows of each of joined dumps are rows of the others too, and by what."""
    sides = ", ".join(
        f"{report.common_samples:,} of {rows:,} rows of {table}"
        for table, rows in zip(report.tables, report.table_rows, strict=True)
    )
    words = {"tokens": "step, prompt and response tokens", "row": "their place in the table"}
    sentence = f"joined by {words.get(report.matched_by, report.matched_by)}: {sides}"
    if report.tokens_differ:
        first = next((name for name in report.left_out if name.endswith("(other tokens)")), "")
        sentence += f"; {report.tokens_differ:,} have other tokens there and are left out: {first}"
    return sentence


def _key(dumps: Sequence[Table], of_one_run: bool) -> str:
    """Return what tells the same sample: `sample_id`, `tokens` or `row`."""
    having = ["sample_id" in dump.schema.names for dump in dumps]
    if of_one_run and not all(having):
        return "tokens"
    if any(having) and not all(having):
        lacking = dumps[having.index(False)].name
        raise RcdiagError(
            f"{lacking}: no column `sample_id`, which the other tables have",
            hint=f"{column_setting({'sample_id': 'NAME'})}, or compare the tables without it",
        )
    if not all(having):
        return "row"
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


def _frame(
    dump: Table, key: str, rows: NDArray[np.int64] | None, folder: Path, number: int
) -> pl.LazyFrame:
    """Scan a table with canonical names; `rows` are its rows' numbers in the joined table.

    The rows are copied to a file in `folder` first, read as every command reads them: polars does
    not notice damage that Arrow refuses.
    """
    path = folder / f"{number}.arrow"
    _copy(dump, path)
    frame = pl.scan_ipc(path).with_columns(pl.col("response_ids").cast(pl.List(pl.Int64)))
    if rows is not None:
        numbers = pl.LazyFrame({PLACE: np.arange(len(rows), dtype=np.uint32), ROW: rows})
        frame = frame.with_row_index(PLACE).join(
            numbers, on=PLACE, how="left", maintain_order="left"
        )
        return frame.drop(PLACE)
    if key == ROW:
        return frame.with_row_index(ROW).with_columns(pl.col(ROW).cast(pl.Int64))
    text = _is_text(dump.schema.field(key).type)
    return frame.with_columns(pl.col(key).cast(pl.String if text else pl.Int64))


def _copy(dump: Table, path: Path) -> None:
    """Write the rows of a table to an Arrow file, with canonical names."""
    schema = dump.schema.remove_metadata()
    options = pa.ipc.IpcWriteOptions(compression="lz4", emit_dictionary_deltas=True)
    try:
        with (
            pa.OSFile(str(path), "wb") as file,
            pa.ipc.new_file(file, schema, options=options) as to,
        ):
            for batch in dump.batches():
                to.write_table(batch.table.cast(schema))
    except OSError as error:
        raise not_writable(path, error) from error


def _report(
    dumps: Sequence[Table],
    names: Sequence[str],
    frames: Sequence[pl.LazyFrame],
    wide: pl.LazyFrame,
    by: str,
    partners: Sequence[NDArray[np.int64] | None],
) -> JoinReport:
    """Count and name the rows that the joined table leaves out."""
    key = "sample_id" if by == "sample_id" else ROW

    def keys(rows: pl.LazyFrame) -> list[Any]:
        return rows.select(key).collect()[key].to_list()

    every = pl.concat([frame.select(key) for frame in frames]).unique(maintain_order=True)
    lacking = {
        name: keys(every.join(frame, on=key, how="anti", maintain_order="left"))
        for name, frame in zip(names, frames, strict=True)
    }
    wrong = keys(wide.filter(pl.col(IN_ALL), ~pl.col(SAME)))
    out = [(sample, "other tokens") for sample in wrong[:NAMED]]
    out += [(one, f"not in {name}") for name, ids in lacking.items() for one in ids[:NAMED]]
    named = [f"{_sample(one, dumps, partners)} ({reason})" for one, reason in out[:NAMED]]
    return JoinReport(
        tables=[dump.name for dump in dumps],
        table_rows=[dump.num_rows for dump in dumps],
        common_samples=wide.filter(IN_ALL, SAME).select(pl.len()).collect().item(),
        missing_rows={name: len(ids) for name, ids in lacking.items()},
        tokens_differ=len(wrong),
        left_out=named,
        matched_by=by,
    )


def _sample(key: Any, dumps: Sequence[Table], partners: Sequence[NDArray[np.int64] | None]) -> str:
    """Name a sample as the user knows it; matched by tokens it has a number of the joined table."""
    for dump, rows in zip(dumps, partners, strict=True):
        if rows is not None and (own := np.flatnonzero(rows == key)).size:
            return dump.where(int(own[0]))
    return str(key)


# Rows that are matched by their tokens, where nothing else tells them


def matched_rows(dumps: Sequence[Table]) -> list[NDArray[np.int64]]:
    """Return for each dump its rows' numbers in the first one, [rows].

    Rows match that have the same response, and the same prompt and step where all dumps have them;
    of several equal rows the first matches the first. A row without a match gets a number that no
    row of the first dump has.
    """
    having = [set(dump.schema.names) for dump in dumps]
    names = ["response_ids"]
    names += [name for name in ("prompt_ids", "step") if all(name in own for own in having)]
    first = _keys(dumps[0], names)
    matched = [np.arange(dumps[0].num_rows)]
    free = dumps[0].num_rows
    for dump in dumps[1:]:
        keys = _keys(dump, names)
        rows = _partners(first, keys)
        _check_ambiguity(dumps[0], first, dump, keys)
        alone = rows < 0
        rows[alone] = free + np.arange(int(alone.sum()))
        free += int(alone.sum())
        matched.append(rows)
    return matched


def _keys(dump: Table, names: Sequence[str]) -> Hashes:
    """Return a hash of some columns of every row, [rows]."""
    parts = []
    for batch in dump.batches(names):
        key = np.zeros(batch.table.num_rows, np.uint64)
        for name in names:
            kind = pl.Int64 if name == "step" else pl.List(pl.Int64)
            values = pl.Series(batch.table[name].combine_chunks()).cast(kind)
            key = key * MIX + values.hash(seed=0).to_numpy()
        parts.append(key)
    return np.concatenate(parts)


def _partners(first: Hashes, later: Hashes) -> NDArray[np.int64]:
    """Return for every later row the row of the first dump with its key, or -1, [rows].

    Of rows with one key the n-th meets the n-th.
    """
    repeat = pl.int_range(pl.len()).over("key").alias("repeat")
    ours, theirs = (pl.DataFrame({"key": keys}).with_columns(repeat) for keys in (first, later))
    found = theirs.join(
        ours.with_row_index("row"), on=["key", "repeat"], how="left", maintain_order="left"
    )
    return found["row"].cast(pl.Int64).fill_null(-1).to_numpy().copy()


def _check_ambiguity(one: Table, one_keys: Hashes, other: Table, other_keys: Hashes) -> None:
    """Refuse equal rows of which one dump has more, where it matters which belong together.

    Equal rows of both dumps are in the same order, but where one has more nothing tells which are
    missing. It matters where the rows that may be left over differ in their numbers.
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
        f"{len(other_rows)} rows of {other.name}; they differ otherwise, and nothing tells which "
        f"belong together ({int(bad.sum())} such cases)",
        hint=f"give both dumps ids: {column_setting({'sample_id': 'NAME'})}",
    )


def _differing(table: Table, keys: Hashes, doubtful: Hashes) -> NDArray[np.bool_]:
    """Tell for keys of several rows whether those rows differ in their numbers, [keys]."""
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
        values = pl.DataFrame(batch.table.take(rows)).hash_rows(seed=0).to_numpy()
        np.minimum.at(low, at[rows], values)
        np.maximum.at(high, at[rows], values)
    return low < high
