"""One pass over a table, part by part: on this machine, or by the processes of a runner."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from itertools import groupby
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from rcdiag.errors import RcdiagError
from rcdiag.runners import Runner
from rcdiag.table.copies import marks_of, sees, without_what_stays
from rcdiag.table.free_memory import hand_back_freed_memory
from rcdiag.table.stream import columns_read, read_arrow, read_trajectories, trajectories_of
from rcdiag.table.survey import unobserved
from rcdiag.table.table import RowRange, Table
from rcdiag.table.token_batch import TokenBatch, sampled_tokens
from rcdiag.table.trajectories import Trajectories
from rcdiag.usecases.case_of_table import CaseRows

# Rows are read as many at a time as hold half a million tokens on average. Where long ones stand
# together, what is walked at once is cut after so many tokens.
MOST_TOKENS_OF_BATCH = 1_000_000

T = TypeVar("T")
S = TypeVar("S")


class Walk(Struct, Generic[S], frozen=True, kw_only=True):
    """What a pass makes of a table; it is sent to other processes with all that it holds."""

    policies: Sequence[str]  # whose log-probs are read
    prompts: bool = False  # read prompts too, for their width alone, where the table has them
    masked: bool = False  # take the tokens too that the mask leaves out
    origin: bool = False  # read engine and version of the rows
    # Batches of a part, the least that is done at one place: its state is made of their states in
    # the same order wherever that is. A power of two, so that sums of parts are those of batches.
    batches_in_part: int = 8

    def state_of(self, batches: Iterator[TokenBatch], executor: Executor) -> S | None:
        """Return the state of the batches of one part; None where they hold nothing to count.

        A batch may hold no token at all. Blocks of a batch are walked side by side by the executor.
        """
        raise NotImplementedError


Part = tuple[RowRange, ...]  # the batches of a part


class SentPart(Struct, frozen=True):
    """A part on its way to another process, with its rows where that cannot read the table."""

    ranges: Part
    rows: tuple[Any, ...] | None = None  # an Arrow table for each range


def states(
    dump: Table, walk: Walk[S], runner: Runner | None = None, case: CaseRows | None = None
) -> Iterator[S]:
    """Yield the state of every part of a table that holds something, in the order of the rows.

    The parts, and the order in which their batches add up, are the same wherever they are done.
    The rows go into `case` too, where there is one and they are read in this process.
    """
    ranges = dump.batch_ranges()
    size = walk.batches_in_part
    parts = [tuple(ranges[first : first + size]) for first in range(0, len(ranges), size)]
    if runner is None or reads_here(runner):
        return _here(dump, walk, parts, case)
    return _elsewhere(dump, walk, parts, runner)


def reads_here(runner: Runner | None) -> bool:
    """Tell whether this process reads the rows of a pass itself."""
    return runner is None or not runner.elsewhere


def _here(dump: Table, walk: Walk[S], parts: Sequence[Part], case: CaseRows | None) -> Iterator[S]:
    """Make the states of all parts in this process, of one stream of rows."""
    firsts = [part[0][0] for part in parts]
    with ThreadPoolExecutor(os.cpu_count()) as executor:
        rows = _rows(dump, walk.policies, prompts=walk.prompts, origin=walk.origin, case=case)
        cut = ((int(one.row[0]), batch) for one in rows for batch in _sampled(one, walk))
        batches = read_ahead(cut, executor)
        for _, of_part in groupby(batches, lambda batch: bisect_right(firsts, batch[0])):
            state = walk.state_of((batch for _, batch in of_part), executor)
            if state is not None:
                yield state
    hand_back_freed_memory()


def _elsewhere(dump: Table, walk: Walk[S], parts: Sequence[Part], runner: Runner) -> Iterator[S]:
    """Make the states of parts in other processes, which read the table if all of them see it."""
    dump.require(*(f"{policy}_log_probs" for policy in walk.policies))
    sent = without_what_stays(dump)
    if all(runner.everywhere(partial(sees, sent, marks_of(dump)))):
        due: Iterator[SentPart] = (SentPart(part) for part in parts)
    else:
        names = columns_read(dump, walk.policies, prompts=_prompts(dump, walk), origin=walk.origin)
        due = _with_rows(dump, parts, names)
    made = runner.map(partial(_state_of, sent, walk), due)
    return (state for state in made if state is not None)


def _with_rows(dump: Table, parts: Sequence[Part], names: Sequence[str]) -> Iterator[SentPart]:
    """Yield parts with their rows, which are read here when the part is due."""
    tables = read_arrow(dump, [one for part in parts for one in part], names)
    for part in parts:
        yield SentPart(part, tuple(next(tables) for _ in part))


def _state_of(dump: Table, walk: Walk[S], part: SentPart) -> S | None:
    """Make the state of one part, in whatever process this runs."""
    how: Any = {"prompts": _prompts(dump, walk), "origin": walk.origin}
    if part.rows is None:
        rows = read_trajectories(dump, walk.policies, ranges=part.ranges, **how)
    else:
        rows = trajectories_of(dump.batches_from(part.ranges, part.rows), walk.policies, **how)
    with ThreadPoolExecutor(2) as executor:
        batches = read_ahead((batch for one in rows for batch in _sampled(one, walk)), executor)
        return walk.state_of(batches, executor)


def _prompts(dump: Table, walk: Walk[Any]) -> bool:
    return walk.prompts and "prompt_ids" in dump.columns


def _sampled(rows: Trajectories, walk: Walk[Any]) -> list[TokenBatch]:
    """Return the tokens of a batch of rows, of far more than its share in several batches."""
    return sampled_tokens(rows, walk.policies, masked=walk.masked).blocks(MOST_TOKENS_OF_BATCH)


def token_batches(
    dump: Table,
    policies: Sequence[str],
    executor: Executor,
    *,
    prompts: bool = False,
    masked: bool = False,
    origin: bool = False,
    case: CaseRows | None = None,
) -> Iterator[TokenBatch]:
    """Yield the sampled tokens of all rows, batch by batch; a batch may hold no token at all.

    `prompts` reads prompts too, for their width alone, where the table has them; `masked` takes
    the tokens too that the mask leaves out; `origin` reads engine and version of the rows.
    The rows that are read go into `case` too, where there is one.
    """
    rows = _rows(dump, policies, prompts=prompts, origin=origin, case=case)
    walk: Walk[Any] = Walk(policies=policies, masked=masked)
    return read_ahead((batch for some in rows for batch in _sampled(some, walk)), executor)


def _rows(
    dump: Table, policies: Sequence[str], *, prompts: bool, origin: bool, case: CaseRows | None
) -> Iterator[Trajectories]:
    """Yield all rows; those of a case are also put there, with more than the others need."""
    read = "prompt_ids" in dump.columns and (prompts or case is not None)
    wide = origin or case is not None
    for rows in read_trajectories(dump, policies, prompts=read, origin=wide):
        if case is not None:
            case.add(rows)
        yield rows if prompts else replace(rows, prompt_ids=None)


def read_ahead(items: Iterator[T], executor: Executor) -> Iterator[T]:
    """The items in their order, each made while the one before it is used."""
    end = object()
    following = executor.submit(next, items, end)
    while (item := following.result()) is not end:
        following = executor.submit(next, items, end)
        yield item  # type: ignore[misc]


def no_tokens(dump: Table, policies: Sequence[str]) -> RcdiagError:
    """The error for a table in which no row has a sampled token."""
    lacking = unobserved(dump, policies).by_policy
    if lacking:
        counts = ", ".join(f"{rows:,} lack `{name}_log_probs`" for name, rows in lacking.items())
        return RcdiagError(
            f"{dump.name}: no row with a sampled token has log-probs of all of "
            f"{', '.join(policies)} (of {dump.num_rows:,} rows {counts})",
            hint="were the two recorded on different rows? Compare those of one run",
        )
    return RcdiagError(
        f"{dump.name}: no unmasked response token in the whole table",
        hint="response_mask is 1 for tokens that the policy sampled; is it inverted?",
    )
