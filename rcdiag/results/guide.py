"""A guide: the bounds beyond which a number is a warning or an error, and their source.

Guides are data: nothing is judged here.
"""

from __future__ import annotations

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
