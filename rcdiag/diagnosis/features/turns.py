"""The mismatch of each turn of multi-turn responses, and the turns that are outliers."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Array
from rcdiag.diagnosis.features.alignment import Alignment
from rcdiag.diagnosis.features.log_ratios import LARGE_MISMATCH
from rcdiag.diagnosis.thresholds import FEWEST_ROWS, MUCH_LARGER


class TurnMismatch(Struct, frozen=True):
    """The mismatch by turn: the first turn of a response has the number 1."""

    number: NDArray[np.int64]  # [turns] of those that enough rows have
    rms: Array  # [turns] median over rows of the rms log-ratio, nats

    @property
    def outliers(self) -> NDArray[np.int64]:
        """Return the numbers of turns with more than three times the rms of the median turn.

        It must also be larger than the noise of engines: where most turns are near-certain, all
        other turns have more than three times their rms.
        """
        if not len(self.number):
            return self.number
        least = max(MUCH_LARGER * float(np.median(self.rms)), LARGE_MISMATCH)
        return self.number[self.rms > least]


def mismatch_by_turn(alignment: Alignment, log_ratio: Array) -> TurnMismatch:
    """Return the rms log-ratio of each turn number in its median row; `log_ratio` is [tokens].

    The median keeps a single row from making a turn an outlier.
    """
    turn, row = alignment.turn, alignment.row_of_turn
    size = np.sqrt(
        np.bincount(turn, log_ratio**2, len(row)) / np.bincount(turn, minlength=len(row))
    )
    first = np.flatnonzero(np.diff(row, prepend=-1))
    number = np.arange(len(row)) - np.repeat(first, np.diff(first, append=len(row))) + 1
    enough = np.flatnonzero(np.bincount(number) >= FEWEST_ROWS)
    return TurnMismatch(enough, np.array([np.median(size[number == one]) for one in enough]))
