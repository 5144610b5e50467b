"""Open the sources that a user names as one trajectory table, joining them if there are several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rcdiag.errors import RcdiagError
from rcdiag.formats import listed
from rcdiag.table.column_names import names_for, spelled
from rcdiag.table.in_memory import InMemory, name_in_memory
from rcdiag.table.join import join_tables
from rcdiag.table.naming import POLICIES, Naming
from rcdiag.table.opening import open_parts, open_rows
from rcdiag.table.readers.parquet import open_parquet
from rcdiag.table.schema import policies_in
from rcdiag.table.scratch import Scratch
from rcdiag.table.sources import SourceFiles, check_remote, find_files
from rcdiag.table.table import Table
from rcdiag.table.trajectories import POLICY_NAME
from rcdiag.url_secrets import remember_secrets, without_own_secrets
from rcdiag.usecases.progress import Progress

if TYPE_CHECKING:
    from rcdiag.results import JoinReport

# A dump in any format that rcdiag knows: a file, a directory, a glob, a URL; a list of these; an
# open table; or data in memory: a data frame, an Arrow table, a mapping of columns, a list of rows.
FileSource = str | Path | Sequence[str | Path]
Source = FileSource | Table | InMemory
# At most this many changes of a conversion are reported while a command runs.
CHANGES = 6


def open_table(
    source: Source,
    *,
    columns: Mapping[str, str] | None = None,
    needed: Sequence[str] = (),
    format: str | None = None,
    given: Mapping[str, Any] | None = None,
    tokenizer: str | Path | None = None,
    progress: Progress | None = None,
) -> Table:
    """Open a dump of any format that rcdiag knows as a trajectory table.

    Of parquet only the footers are read, and a few rows if columns have other names; other formats
    and tables in memory are converted once, into a temporary folder that is deleted with the table.
    A table without tokens is refused, and the error also names the columns of `needed` that are
    missing.

    Args:
        source: a file, a directory, a glob or a URL that fsspec knows (s3://, gs://, hf://), or a
            list of these. Sources of one format are concatenated in that order; sources of two
            formats, or with different policies, are taken for dumps of one run and joined by
            `sample_id`, or without it by equal tokens. Or a table in memory: a pandas or polars
            frame, an Arrow table or stream, a mapping of columns (each a list, an array or a
            tensor), or a list of rows (each a mapping).
        columns: name that rcdiag knows -> name in the files: `{"old_log_probs": "my_trainer"}`.
            Names that trainers and engines use are recognised without it, unless the values
            contradict; an empty name leaves the column out.
        needed: columns that the error for a table without tokens also names.
        format: the format of the files, if it cannot be recognised.
        given: values that the dump lacks, for all rows: `{"temperature": 0.7}`. Values that the
            dump has must be equal to them.
        tokenizer: folder of a checkpoint whose tokenizer encodes dumps that hold only text.
        progress: listener for the progress of a conversion.
    """
    remember_secrets(source)
    if isinstance(source, Table):
        if columns or given or format:
            raise RcdiagError(
                "columns of an open table cannot be mapped or given",
                hint="give them to open_table(source, columns=..., given=..., format=...)",
            )
        return source
    if not isinstance(source, (str, Path)) and not (
        isinstance(source, Sequence) and all(isinstance(one, (str, Path)) for one in source)
    ):
        return open_rows(source, columns, needed, given)
    parts = located(cast(FileSource, source), format)
    table = open_located(parts, columns, given, needed, tokenizer, progress)
    if progress is not None:
        for text in _changes(table):
            progress.say(text)
    return table


def _changes(table: Table) -> list[str]:
    """Return sentences on what a conversion changed in a dump, the first CHANGES of many."""
    cut = any(file.converted is not None for file in table.files)
    if table.conversion is None and table.joined is None and not cut:
        return []
    done = table.metadata.get("conversion", {"changes": {}})  # none if only structs were flattened
    texts = list(done["changes"])
    more = len(texts) - CHANGES
    if more > 1:
        texts = [*texts[:CHANGES], f"and {more} more changes: rcdiag convert ... -v names them"]
    return [f"{done['format']}: {text}" for text in texts]


def located(source: str | Path | Sequence[str | Path], format: str | None) -> list[SourceFiles]:
    """Find the files of sources, each of one format."""
    sources = [source] if isinstance(source, (str, Path)) else source
    if not sources:
        raise RcdiagError("no table to open", hint="give at least one file")
    check_remote([str(place) for place in sources], format)
    parts = [find_files(str(place), format) for place in sources]
    _check_once(parts)
    return parts


def _check_once(parts: Sequence[SourceFiles]) -> None:
    """Refuse a file that two sources hold: its rows would count twice."""
    owners: dict[str, str] = {}
    for part in parts:
        for file in part.files:
            name = file.url or str(file.path.resolve() if isinstance(file.path, Path) else file)
            if name in owners:
                raise RcdiagError(
                    f"{file.name} is given twice, by {without_own_secrets(owners[name])} and by "
                    f"{without_own_secrets(part.source)}",
                    hint="give every file once: its rows would count twice",
                )
            owners[name] = part.source


def open_located(
    parts: Sequence[SourceFiles],
    columns: Mapping[str, str] | None = None,
    given: Mapping[str, Any] | None = None,
    needed: Sequence[str] = (),
    tokenizer: str | Path | None = None,
    progress: Progress | None = None,
    beside: Path | None = None,
) -> Table:
    """Open sources as one table; dumps of one run with different policies are joined.

    Converted files go to a temporary folder, next to the file `beside` if that is given.
    """
    on_progress = None if progress is None else progress.converted
    encoder = None if tokenizer is None else str(tokenizer)

    def opened(some: Sequence[SourceFiles]) -> Table:
        return open_parts(some, columns, needed, given, encoder, on_progress, beside)

    by_format: dict[str, list[SourceFiles]] = {}  # in the order in which formats first appear
    for part in parts:
        by_format.setdefault(part.reader.name, []).append(part)
    tables = [table for kind in by_format.values() for table in _by_policies(kind, opened, columns)]
    given_as = tuple(without_own_secrets(part.source) for part in parts)
    if len(tables) == 1:
        return replace(tables[0], given_as=given_as)
    scratch = Scratch(beside)
    names = _short_names(tables, [table.name for table in tables])
    joined, report = join_tables(tables, names, scratch.path / "joined.parquet", of_one_run=True)
    naming = Naming({name: own for table in tables for name, own in table.naming.taken.items()})
    return replace(joined, scratch=scratch, joined=report, naming=naming, given_as=given_as)


def _by_policies(
    parts: Sequence[SourceFiles],
    opened: Callable[[Sequence[SourceFiles]], Table],
    columns: Mapping[str, str] | None,
) -> list[Table]:
    """Open sources of one format: as one table, or as several if their policies are disjoint.

    Files that are not parquet are converted first, to find out which policies they hold. Files of
    a format whose columns the user names form one table.
    """
    if len(parts) == 1 or (parts[0].reader.any_names and parts[0].reader.read is not None):
        return [opened(parts)]
    table = None
    if parts[0].reader.read is None:
        policies = [_policies_of_parquet(part, columns or {}) for part in parts]
    else:
        table = opened(parts)
        assert table.conversion is not None
        of_file = table.conversion.policies_of
        policies = [
            set().union(*(of_file.get(cast(Path, file.path), set()) for file in part.files))
            for part in parts
        ]
    kinds = list(dict.fromkeys(frozenset(names) for names in policies if names))
    if len(kinds) < 2 or sum(map(len, kinds)) > len(frozenset().union(*kinds)):
        return [table or opened(parts)]
    # Sources without any log-probs are opened together with the first group of policies.
    owner = [next((n for n, kind in enumerate(kinds) if names & kind), 0) for names in policies]
    return [
        opened([part for part, own in zip(parts, owner, strict=True) if own == number])
        for number in range(len(kinds))
    ]


def _policies_of_parquet(part: SourceFiles, columns: Mapping[str, str]) -> set[str]:
    """Return the policies that the first file of a source has, read from its footer."""
    names = set(open_parquet(part.files[0].path).schema_arrow.names)
    mapped = {name for name, in_file in columns.items() if in_file in names}
    known = {
        column
        for column in POLICIES
        if any(own in names_for(column) or spelled(own) == column for own in names)
    }
    return set(policies_in([*(names - set(columns.values())), *mapped, *known]))


def name_of(source: Source) -> str:
    """Return the name of a source as messages print it."""
    if isinstance(source, Table):
        source = [file.name for file in source.sources]
    if isinstance(source, (str, Path)):
        return without_own_secrets(str(source))
    if name := name_in_memory(source):
        return name
    return listed([without_own_secrets(str(one)) for one in cast(Sequence[str | Path], source)])


def joined_tables(
    sources: Sequence[Source],
    *,
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    given: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> tuple[Table, JoinReport | None]:
    """Open one table, or several joined on `sample_id`.

    Returns the table, whose `made_from` is a table of all given files, and the report of the join,
    which is None for a single table.
    """
    check_remote([str(source) for source in sources if isinstance(source, (str, Path))], format)
    tables = [
        open_table(source, columns=columns, format=format, given=given, progress=progress)
        for source in sources
    ]
    if not tables:
        raise RcdiagError("no table to open", hint="give at least one parquet file")
    if len(tables) == 1:
        return tables[0], None
    scratch = Scratch()
    names = _short_names(tables, sources)
    joined, report = join_tables(tables, names, scratch.path / "joined.parquet")
    files = tuple(file for one in tables for file in one.files)
    kept = Scratch.together([one.scratch for one in tables])
    given_tables = replace(tables[0], files=files, scratch=kept)
    return replace(joined, scratch=scratch, made_from=given_tables), report


def _short_names(tables: Sequence[Table], sources: Sequence[Source]) -> list[str]:
    """Return a distinct short name for each table, which can be the suffix of a policy's name."""
    names: list[str] = []
    for table, source in zip(tables, sources, strict=True):
        path = source if isinstance(source, (str, Path)) else table.name
        stem = "".join(c if POLICY_NAME.fullmatch(c) else "_" for c in Path(path).stem) or "table"
        names.append(stem if stem not in names else f"{stem}_{len(names) + 1}")
    return names
