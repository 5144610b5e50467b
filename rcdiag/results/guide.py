"""A guide: the bounds beyond which a number is a warning or an error, and their source.

Guides are data: nothing is judged here.
"""

from __future__ import annotations

import math

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
        """Write the bounds: `warning at or above 0.001, error at or above 0.01 (source)`.

        Infinite bounds are left out.
        """
        side = "below" if self.error < self.warning else "above"
        place = "at or {} {:g}" if self.around is None else "{1:g} or more away from {2:g}"
        bounds = [
            f"{level} {place.format(side, bound, self.around)}"
            for level, bound in (("warning", self.warning), ("error", self.error))
            if math.isfinite(bound)
        ]
        return f"{', '.join(bounds)} ({self.source})"
