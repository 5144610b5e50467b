"""A guide: the bounds beyond which a number is a warning or an error, and their source.

Guides are data: nothing is judged here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import Struct

PROPOSAL = "rcdiag's proposal"


class Guide(Struct, frozen=True, kw_only=True):
    """A guide holds the limits of one number, in its own unit, with their source.

    Larger is worse where `error` is above `warning`, smaller is worse where it is below. A bound
    belongs to the worse side: a value equal to `warning` is a warning.
    """

    warning: float
    error: float
    source: str
    around: float | None = None  # the bounds are distances from this value, in either direction
    by_interval: bool = False  # judge by the value in the interval that is nearest to `around`

    @property
    def bounds(self) -> str:
        """Write the bounds and whose they are: `warning from 0.001, error from 0.01 (source)`."""
        return f"{self.limits()} ({self.source})"

    def limits(
        self, written: Callable[[float], str] = "{:g}".format, least: float = -math.inf
    ) -> str:
        """Write from where on a number is a warning and an error.

        `written` writes a bound. Those that are infinite or below `least`, the smallest value that
        the number can have, are left out.
        """
        bounds = [("warning", self.warning), ("error", self.error)]
        known = [(name, at) for name, at in bounds if math.isfinite(at) and at >= least]
        if self.around is not None:
            distances = ", ".join(f"{name} {written(at)}" for name, at in known)
            return f"{distances} or more away from {self.around:g}"
        side = "at or below" if self.error < self.warning else "from"
        return ", ".join(f"{name} {side} {written(at)}" for name, at in known)
