"""A guide: the bounds from which on a number is a warning or an error, and their source.

Guides are data only; numbers are judged elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import Struct

PROPOSAL = "rcdiag's proposal"


class Guide(Struct, frozen=True, kw_only=True):
    """A guide holds the limits of one number, in its own unit, with their source.

    If `error` is above `warning`, larger values are worse, otherwise smaller ones. A value equal
    to `warning` is a warning, one equal to `error` an error.
    """

    warning: float
    error: float
    source: str
    around: float | None = None  # if given, the bounds are distances from this value
    by_interval: bool = False  # judge by the value in the interval that is nearest to `around`

    @property
    def bounds(self) -> str:
        """Write the bounds and their source: `warning from 0.001, error from 0.01 (source)`."""
        return f"{self.limits()} ({self.source})"

    def limits(
        self, written: Callable[[float], str] = "{:g}".format, least: float = -math.inf
    ) -> str:
        """Write the bounds from which on a number is a warning and an error.

        `written` formats a bound. Bounds that are infinite or below `least`, the smallest value
        that the number can have, are left out.
        """
        bounds = [("warning", self.warning), ("error", self.error)]
        known = [(name, at) for name, at in bounds if math.isfinite(at) and at >= least]
        if self.around is not None:
            distances = ", ".join(f"{name} {written(at)}" for name, at in known)
            return f"{distances} or more away from {self.around:g}"
        side = "at or below" if self.error < self.warning else "from"
        return ", ".join(f"{name} {side} {written(at)}" for name, at in known)
