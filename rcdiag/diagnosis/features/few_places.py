"""A few tokens or rows that hold the mismatch of a table which agrees to rounding elsewhere."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rcdiag.diagnosis.case import Array, Counts
from rcdiag.diagnosis.features.log_ratios import LogRatios
from rcdiag.diagnosis.thresholds import (
    FEW,
    FEWEST_OF_PATTERN,
    HALF,
    LARGE,
    MANY_TIMES,
    MOST,
    MUCH_LARGER,
    PART,
)


class FewPlaces(NamedTuple):
    """A few tokens or rows that hold most squared log-ratios."""

    of_rows: bool
    places: Counts  # indices of the tokens, the largest first, or of the rows in the case
    prompts: int  # number of prompts whose rows these are; 0 where they are rows of many
    held: float  # share of the squared log-ratios
    rms_of_others: float  # nats
    effective: float  # places that hold that share, by its squares; rows of a prompt are one place

    @property
    def too_few(self) -> bool:
        """Tell whether the places are too few to show what the two sides do at others like them."""
        return not self.of_rows or self.effective < FEWEST_OF_PATTERN


def few_places(log_ratios: LogRatios, rounding: float, prompt: Counts) -> FewPlaces | None:
    """Return the fewest tokens, else rows, without which the rms is below `rounding` nats.

    Tokens hold MOST of the squared log-ratios, and each has a LARGE log-ratio, far above all
    others: other experts and weights move some tokens far and some less, and leave no such gap.
    Rows hold HALF of them, and they cluster there. Where the rows are few of a `prompt` [rows], all
    rows of that prompt are returned. None where there are no such tokens or rows, or the whole rms
    is below `rounding`.
    """
    squares = log_ratios.values**2
    total, count = float(squares.sum()), max(len(squares), 1)
    rest = count * rounding**2
    if total < rest:
        return None

    def found(places: Counts, sums: Array, prompts: int = 0) -> FewPlaces:
        each = np.bincount(prompt[places], sums[places]) if prompts else sums[places]
        held = float(each.sum())
        others = float(np.sqrt(max(total - held, 0.0) / count))
        effective = held**2 / float(each @ each)
        return FewPlaces(sums is not squares, places, prompts, held / total, others, effective)

    tokens = _fewest(squares, min(rest, (1.0 - MOST) * total), FEW, apart=True)
    if len(tokens):
        return found(tokens, squares)
    if log_ratios.clustering < MUCH_LARGER:
        return None
    of_rows, rest = log_ratios.tokens.row_sums(squares), min(rest, HALF * total)
    rows = _fewest(of_rows, rest, PART)
    prompts = _fewest(np.bincount(prompt, of_rows).astype(np.float64), rest, PART)
    if not 0 < 2 * len(prompts) <= len(rows):
        return found(rows, of_rows) if len(rows) else None
    return found(np.flatnonzero(np.isin(prompt, prompts)), of_rows, len(prompts))


def _fewest(sums: Array, rest: float, share: float, *, apart: bool = False) -> Counts:
    """Return the fewest places without which sums of squares add up to less than `rest`.

    They are at most one, or a share of all; none if these are not enough. With `apart` the square
    root of each is more than LARGE, and than MANY_TIMES that of every other place.
    """
    order = np.argsort(-sums, kind="stable")
    ordered = sums[order]
    enough = float(sums.sum()) - np.cumsum(ordered) < rest
    if apart:
        enough[:-1] &= ordered[:-1] > np.maximum(MANY_TIMES**2 * ordered[1:], LARGE**2)
    counts = np.flatnonzero(enough[: max(int(share * len(sums)), 1)]) + 1
    fewest: Counts = order[: counts[0]] if len(counts) else order[:0]
    return fewest
