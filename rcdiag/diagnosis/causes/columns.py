"""Helpers for causes that affect one column: the columns of a pair, and repairs of their values."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.case import Array, Case, Flags
from rcdiag.diagnosis.causes.cause import Suspicion
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.features.storage import StoredColumn
from rcdiag.diagnosis.thresholds import BY_CHANCE, FEWEST, HARDLY_EVER, LARGEST_VOCABULARY

# Numbers that programs write where there is no log-prob.
SENTINELS = (1.0, -9999.0, -1000.0, -999.0, -100.0, -1e4, -1e6, -1e9, -1e10)
# Nats between a sentinel and all other values; the log-probs of a column have no such gap.
GAP = -HARDLY_EVER


def lowest_drawn(count: int) -> float:
    """Return the log-prob, nats, below which none of `count` sampled tokens is expected to be.

    Of n tokens at most n * (size of the vocabulary) * p are expected to have a probability of p or
    less.
    """
    return float(np.log(BY_CHANCE / (count * LARGEST_VOCABULARY)))


def columns_of_pair(features: Features) -> Iterator[tuple[str, StoredColumn]]:
    """Yield the columns of the pair that hold a value, with their policies."""
    for policy, column in features.columns.items():
        if len(column.values) >= FEWEST:
            yield policy, column


def by_column(
    weigh: Callable[[Features, str, StoredColumn], Suspicion | None],
) -> Callable[[Features], Suspicion | None]:
    """Weigh a cause of one column on each column of the pair; a suspicion names all that have it.

    Where a repair changes a column's values, the first column alone is returned: the judge weighs
    the other one on the repaired table, since one column is often judged by its ratio to the other.
    Where the suspicion names no side at fault, it is the side of that column.
    """

    def weigh_pair(features: Features) -> Suspicion | None:
        joined = None
        for policy, column in columns_of_pair(features):
            found = weigh(features, policy, column)
            if found is None:
                continue
            found = replace(found, side=found.side or side_of(features, policy), policy=policy)
            if found.repaired is None or found.repaired.log_probs is not features.case.log_probs:
                return joined or found
            if joined is not None and joined.repaired is not None:
                # The repair masks out the tokens of both columns.
                of_found = features.case.mask & ~found.repaired.mask
                found = of_both_columns(joined, found, joined.repaired.without_values(of_found))
            joined = found
        return joined

    return weigh_pair


def of_both_columns(first: Suspicion, second: Suspicion, repaired: Case | None) -> Suspicion:
    """Join the suspicions of one cause in two columns; a reason that both give is said once."""
    said, colon, reason = first.message.rpartition(": ")
    text = second.message
    same = bool(colon) and text.endswith(colon + reason)
    return replace(
        first,
        message=f"{said}; {text[0].lower()}{text[1:]}" if same else f"{first.message} {text}",
        evidence=[*first.evidence, *second.evidence],
        side=first.side if first.side == second.side else None,
        share_of_rows=max(first.share_of_rows, second.share_of_rows),
        policy=None,
        repaired=repaired,
    )


def side_of(features: Features, policy: str) -> str:
    return "recorder" if policy == features.case.sampler else "trainer"


def repaired(case: Case, policy: str, change: Callable[[Array], Array]) -> Case:
    """Return the case with one policy's log-probs replaced by change(log-probs)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return case.with_log_probs(policy, change(case.log_probs[policy]))


def without_values(case: Case, tokens: Flags) -> Case:
    """Return the case with some sampled tokens' values taken as missing; [sampled tokens]."""
    return case.without_values(case.of_sampled(tokens))


def share_of_rows(column: StoredColumn, tokens: Flags) -> float:
    """Return the share of rows with at least one of the flagged tokens."""
    return len(np.unique(column.row_of[tokens])) / max(len(column.row_starts), 1)
