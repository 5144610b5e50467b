"""Helpers for causes that affect one column: the columns of a pair, and repairs of their values."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.case import Array, Case, Flags
from rcdiag.diagnosis.causes.cause import Suspicion
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.features.storage import StoredColumn
from rcdiag.diagnosis.thresholds import FEWEST

# Numbers that programs write where there is no log-prob.
SENTINELS = (1.0, -9999.0, -1000.0, -999.0, -100.0, -1e4, -1e6, -1e9, -1e10)
# Nats between a sentinel and all other values; the log-probs of a column have no such gap.
GAP = 5.0


def columns_of_pair(features: Features) -> Iterator[tuple[str, StoredColumn]]:
    """Yield the columns of the pair that hold a value, with their policies."""
    for policy, column in features.columns.items():
        if len(column.values) >= FEWEST:
            yield policy, column


def by_column(
    weigh: Callable[[Features, str, StoredColumn], Suspicion | None],
) -> Callable[[Features], Suspicion | None]:
    """Weigh a cause of one column on each column of the pair, and return the first suspicion.

    Where the suspicion names no side at fault, it is the side of that column.
    """

    def weigh_pair(features: Features) -> Suspicion | None:
        for policy, column in columns_of_pair(features):
            found = weigh(features, policy, column)
            if found is not None:
                return replace(found, side=found.side or side_of(features, policy))
        return None

    return weigh_pair


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
