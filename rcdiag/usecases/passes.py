"""One pass over a table, part by part: in this process, in worker processes, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct

from rcdiag.errors import RcdiagError
from rcdiag.runners import Runner
from rcdiag.statistics.merging import merged
from rcdiag.statistics.quantiles import VALUES_HELD, in_short
from rcdiag.table.stream import read_trajectories
from rcdiag.table.table import RowRange, Table
from rcdiag.table.token_batch import TokenBatch, sampled_tokens
from rcdiag.usecases.case_of_table import CaseSample

# Tokens whose state is computed at a time: 2 MB per array of numbers, so that a hundred arrays take
# little memory. Larger batches are no faster, smaller ones take longer to merge.
TOKENS_OF_BATCH = 1 << 18
# With small row groups a part has at least this many tokens, a quarter of a second's work; merging
# its state takes a few milliseconds in the first process. Parts of a very large table are larger.
TOKENS_OF_PART = 1_000_000
MOST_PARTS = 256
# Each worker gets at least this many parts, if row groups allow it, so that all end together.
PARTS_OF_WORKER = 4

S = TypeVar("S")


class Walk(Struct, Generic[S], frozen=True, kw_only=True):
    """A pass over a table: the columns it reads, and the state it computes of a part.

    It is pickled for worker processes.
    """

    policies: Sequence[str]  # whose log-probs are read
    masked: bool = False  # include tokens that the mask leaves out
    origin: bool = False  # also read engine and weights version of the rows

    @property
    def tokens_of_part(self) -> int:
        """Return the least number of tokens of a part; larger for walks with a larger state."""
        return TOKENS_OF_PART

    def of_batch(self, batch: TokenBatch) -> S:
        """Return the state of one batch, which may be without any token."""
        raise NotImplementedError

    def state_of(self, batches: Iterator[TokenBatch]) -> S | None:
        """Return the state of the batches of one part; None if there are none."""
        return merged(map(self.of_batch, batches))

    def in_short(self, state: S) -> S:
        """Return a smaller state, for a part of a table that has too many tokens to keep values.

        Values are replaced by counts where these take less memory, so that workers send less data.
        """
        return in_short(state)

    def merged(self, parts: Iterator[S]) -> S | None:
        """Merge the states of parts in the order of the rows, as they arrive; None without any."""
        return merged(parts)


class FileMark(NamedTuple):
    """Size and modification time of a file, by which a replaced file is detected."""

    size: int
    changed: int  # time in nanoseconds since 1970


def read_table(
    dump: Table, walk: Walk[S], runner: Runner | None = None, sample: CaseSample | None = None
) -> S | None:
    """Read a table in one pass and return the state of all its rows; None if it has none.

    The same table, options and number of workers give the same parts, and so the same result bit
    by bit; with other numbers of workers, sums may differ in their last digits.

    During the pass the rows for the diagnosis are drawn into `sample`.

    Raises:
        RcdiagError: a row that cannot be read, with its file and number; a worker was killed.
    """
    with closing(_states(dump, walk, runner, sample)) as parts:  # ends the workers
        return walk.merged(parts)


def _states(
    dump: Table, walk: Walk[S], runner: Runner | None, sample: CaseSample | None
) -> Generator[S]:
    """Yield the state of every part of a table that is not empty, in the order of the rows."""
    workers = 0 if runner is None else runner.workers(dump.response_tokens)
    parts = parts_of(dump, walk.tokens_of_part, workers)
    begun = None if sample is None else sample.of_part()
    marks = {file: _mark(file) for file in dump.parquets if isinstance(file, Path)}
    function: Callable[[RowRange], tuple[S | None, CaseSample | None]]
    many = dump.response_tokens > 2 * VALUES_HELD  # even if half of them are masked or left out
    function = partial(_walk_part, dump.for_workers(), marks, walk, begun, many)
    if runner is None or not workers or len(parts) == 1:
        made = (function(part) for part in parts)
    else:
        made = runner.map(function, parts)
    with closing(made):
        for state, drawn in made:
            if sample is not None and drawn is not None:
                sample.merge(drawn)
            if state is not None:
                yield state


def parts_of(dump: Table, tokens: int, workers: int) -> list[RowRange]:
    """Cut a table into parts of about `tokens` tokens or more, at the ends of row groups.

    A row group is cut only if it is larger than a worker's share: to read a part of a row group,
    the rows before it must be decoded too.
    """
    groups = dump.row_groups()
    total = sum(group.tokens for group in groups)
    least = max(tokens, total // max(MOST_PARTS, PARTS_OF_WORKER * workers))
    share = max(tokens, total // (PARTS_OF_WORKER * max(workers, 1)))
    parts: list[RowRange] = []
    first = held = 0
    for group in groups:
        held += group.tokens
        if held < least:
            continue
        pieces = min(max(workers, 1), max(1, held // share), group.end - first)
        edges = [first + (group.end - first) * piece // pieces for piece in range(pieces + 1)]
        parts += pairwise(edges)
        first, held = group.end, 0
    if groups and first < groups[-1].end:
        parts.append((first, groups[-1].end))
    return parts


def _walk_part(
    dump: Table,
    marks: dict[Path, FileMark],
    walk: Walk[S],
    begun: CaseSample | None,
    many: bool,
    part: RowRange,
) -> tuple[S | None, CaseSample | None]:
    """Walk one part, in this or a worker process; return its state and rows for the diagnosis.

    `marks` are of the table's files when the pass began; with `many` the table has too many tokens
    to keep single values.
    """
    for file in dump.files:
        path = file.parquet
        inside = file.first_row < part[1] and part[0] < file.first_row + file.num_rows
        if inside and isinstance(path, Path) and path in marks:
            _check_same(path, marks[path])
    drawn = None if begun is None else begun.of_part()
    state = walk.state_of(token_batches(dump, walk, drawn, part))
    return walk.in_short(state) if many and state is not None else state, drawn


def _mark(path: Path) -> FileMark:
    about = path.stat()
    return FileMark(about.st_size, about.st_mtime_ns)


def _check_same(path: Path, mark: FileMark) -> None:
    """Refuse a file that is gone or has changed since the pass began."""
    try:
        there: FileMark | None = _mark(path)
    except OSError:
        there = None
    if there != mark:
        what = "is missing" if there is None else "is another file"
        raise RcdiagError(
            f"{path}: {what} on the node that reads a part of the table",
            hint="on a cluster every node reads the table: put it on storage that all of them see, "
            "as parquet (rcdiag convert) if it has another format; or omit --on ray",
        )


def token_batches(
    dump: Table,
    walk: Walk[Any],
    sample: CaseSample | None = None,
    between: RowRange | None = None,
) -> Iterator[TokenBatch]:
    """Yield the tokens that a walk reads, batch by batch; a batch may be without any token.

    Rows for the diagnosis are drawn into `sample`, if given. `between` is the range of rows: the
    first row and the one after the last.
    """
    prompts = "prompt_ids" in dump.columns and sample is not None
    origin = walk.origin or sample is not None
    for rows in read_trajectories(
        dump, walk.policies, prompts=prompts, origin=origin, between=between
    ):
        if sample is not None:
            sample.add(rows)
        tokens = sampled_tokens(rows, walk.policies, masked=walk.masked)
        yield from tokens.blocks(TOKENS_OF_BATCH)


def no_tokens(dump: Table, policies: Sequence[str]) -> RcdiagError:
    """Return the error for a table in which no row has a sampled token with log-probs."""
    lacking = [name for name in policies if name in dump.null_rows]
    if lacking:
        counts = ", ".join(
            f"{len(dump.null_rows[name]):,} lack `{name}_log_probs`" for name in lacking
        )
        return RcdiagError(
            f"{dump.name}: no row with a sampled token has log-probs of all of "
            f"{', '.join(policies)} (of {dump.num_rows:,} rows {counts})",
            hint="were the two recorded on different rows? Compare those of one run",
        )
    return RcdiagError(
        f"{dump.name}: no unmasked response token in the whole table",
        hint="response_mask is 1 for tokens that the policy sampled; is it inverted?",
    )
