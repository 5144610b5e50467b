"""One pass over a table: the next rows are read while the last are worked on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import TypeVar

from rcdiag.errors import RcdiagError
from rcdiag.table.observed import unobserved
from rcdiag.table.stream import read_trajectories
from rcdiag.table.table import Table
from rcdiag.table.tokens import TokenBatch, sampled_tokens
from rcdiag.usecases.case import CaseRows

T = TypeVar("T")


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
    prompts = prompts and "prompt_ids" in dump.columns

    def batches() -> Iterator[TokenBatch]:
        wide = origin or case is not None
        for rows in read_trajectories(dump, policies, prompts=prompts, origin=wide):
            if case is not None:
                case.add(replace(rows, prompt_ids=None))
            yield sampled_tokens(rows, policies, masked=masked)

    return read_ahead(batches(), executor)


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
