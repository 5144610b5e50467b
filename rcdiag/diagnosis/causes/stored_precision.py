"""A column was stored with few digits, or clipped from below."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.case import Flags
from rcdiag.diagnosis.causes.cause import EXACT, Suspicion, fact, shipped
from rcdiag.diagnosis.causes.columns import (
    GAP,
    by_column,
    columns_of_pair,
    share_of_rows,
    without_values,
)
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.features.log_ratios import ENGINE_NOISE
from rcdiag.diagnosis.features.storage import StoredColumn
from rcdiag.diagnosis.thresholds import (
    FEWEST_OF_PATTERN,
    FEWEST_ROWS,
    HALF,
    LARGER,
    MOST,
    MUCH_LARGER,
    SLIGHT,
    SURE,
)


@by_column
def _floor(features: Features, policy: str, column: StoredColumn) -> Suspicion | None:
    value, count = column.least
    here = column.values == value
    # Equal values of both sides are one context that was sampled again, unless both are the floor.
    others = column.other[here]
    contexts = np.count_nonzero(others == value) + len(np.unique(others[others != value]))
    if contexts < FEWEST_OF_PATTERN or value > SURE or column.constant_rows > HALF:
        return None
    if value < column.values[~here].min(initial=0.0, where=column.finite[~here]) - GAP:
        return None  # a clipped column has values just above its floor
    if not np.isfinite(column.other).any():
        return None
    # Where a column is clipped, the other side's log-probs are below the floor. At another
    # temperature they may be above it, but they are the lowest of that side.
    below = float(np.mean(others < value + SLIGHT))
    if below <= HALF and _rarest(column, here) <= MOST:
        return None
    # In a rounded column a few values may be equal to the lowest one by chance; else hardly ever.
    if contexts < FEWEST_ROWS and (below < 1.0 or column.repeats_rare_values):
        return None
    # If only the tokens that are rare on this side were dropped, the remaining ones would be
    # selected by one side's log-prob, which looks like another distribution.
    cut_off_too = (column.other <= value) & (column.values - column.other < GAP)
    return Suspicion(
        confidence=EXACT,
        message=f"No value of `{policy}` is below {value:g}, and {count:,}{features.case.drawn} "
        "are exactly that: clipped.",
        evidence=[
            fact(
                "lowest value, and tokens that have it",
                "a floor",
                value=value,
                **{policy: count},
                share_lower_on_the_other_side=below,
            )
        ],
        share_of_rows=share_of_rows(column, here),
        also_possible=[],
        repaired=replace(without_values(features.case, here | cut_off_too), without_rare=True),
    )


def _rarest(column: StoredColumn, here: Flags) -> float:
    """Return the share of flagged tokens that are among the rarest on the other side.

    A sentinel occurs at any token, a floor at the least likely ones, whatever the temperature of
    the other side. Three times as many tokens count as the rarest, since noise changes the order.
    """
    known = np.isfinite(column.other)
    edge = np.quantile(column.other[known], min(MUCH_LARGER * float(np.mean(here)), 0.5))
    return float(np.mean(column.other[here] < edge))


def _stored(slug: str) -> Callable[[Features], Suspicion | None]:
    """Make the function that weighs whether a column was stored in the format `slug`."""

    def weigh(features: Features) -> Suspicion | None:
        grids = {
            policy: column.grid
            for policy, column in columns_of_pair(features)
            if column.grid is not None and column.grid.slug == slug
        }
        if not grids:
            return None
        name, what = next(iter(grids.values())).name, " and ".join(f"`{one}`" for one in grids)
        error = max(
            grid.rounding_error(features.columns[policy].values) for policy, grid in grids.items()
        )
        differs = features.case.trainer is not None and len(features.case.tokens) > 0
        return Suspicion(
            confidence=EXACT,
            message=f"All values of {what} are rounded to {name}, which moves a log-prob by "
            f"{error:.2g} nats rms.",
            evidence=[
                fact(
                    "share of values that are rounded",
                    f"to {name}",
                    **dict.fromkeys(grids, 1.0),
                    rounding_rms=error,
                )
            ],
            also_possible=[],
            verdict="healthy" if error < ENGINE_NOISE else "broken",
            # The two sides differ by more than this rounding: later stages judge the same table.
            repaired=features.case
            if differs and features.log_ratios.rms > LARGER * error
            else None,
        )

    return weigh


FLOOR_CLIP = shipped("floor-clip", "storage", _floor)
STORED_PRECISION = tuple(
    shipped(slug, "storage", _stored(slug), needs_two=False)
    for slug in ("stored-bfloat16", "stored-float16", "stored-rounded")
)
