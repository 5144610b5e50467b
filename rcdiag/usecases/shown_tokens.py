"""Which tokens of long sequences a result shows: the first ones and the worst ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MASKED_KEPT = 100  # masked tokens of a sequence that are shown at most
# Of a long sequence: tokens that are shown from its start, and on each side of a bad token.
FIRST_KEPT = 40
AROUND = 12


def shares(lengths: Sequence[int], whole: int) -> list[int]:
    """Divide `whole` tokens among sequences; what short ones do not need goes to the long ones."""
    given = [0] * len(lengths)
    by_length = sorted(range(len(lengths)), key=lengths.__getitem__)
    for place, index in enumerate(by_length):
        given[index] = min(lengths[index], whole // (len(lengths) - place))
        whole -= given[index]
    return given


def shown_tokens(log_ratio: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """Return the indices of the tokens to show, ascending, at most `most` of them.

    They are all tokens, or the first ones and those around the largest |log-ratio|.
    """
    if len(log_ratio) <= most:
        return np.arange(len(log_ratio))
    keep = np.zeros(len(log_ratio), np.bool_)
    keep[: min(FIRST_KEPT, most // 4)] = True
    size = np.abs(np.nan_to_num(log_ratio, nan=0.0))
    # Each candidate that is visited is kept, so the `most` largest are enough.
    among = np.flatnonzero(size >= np.partition(size, -most)[-most]) if most else np.empty(0, int)
    for place in among[np.argsort(-size[among], kind="stable")[:most]]:
        near = slice(max(int(place) - AROUND, 0), int(place) + AROUND + 1)
        if keep.sum() + (~keep[near]).sum() > most:
            break
        keep[near] = True
    return np.flatnonzero(keep)


def gaps(log_ratio: NDArray[np.float64], shown: NDArray[np.int64]) -> list[list[float]]:
    """Return the gaps between shown tokens: [index, number of tokens, summed log-ratio in nats].

    The index is that of the next shown token, among the shown ones.
    """
    starts = np.concatenate([[0], shown + 1])
    ends = np.concatenate([shown, [len(log_ratio)]])
    return [
        [
            int(place),
            int(ends[place] - starts[place]),
            float(log_ratio[starts[place] : ends[place]].sum()),
        ]
        for place in np.flatnonzero(ends > starts)
    ]


def masked_beside(
    mask: NDArray[np.bool_], positions: NDArray[np.int64], shown: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the positions of tokens outside the mask that are neighbours of shown ones.

    Args:
        mask: of all response tokens, True for sampled ones, [response].
        positions: positions of the sampled tokens in the response, [sampled].
        shown: indices of the shown tokens among the sampled ones, [shown].
    """
    masked = np.flatnonzero(~mask)
    keep = np.zeros(len(positions) + 2, np.bool_)
    keep[shown + 1] = True
    keep[0], keep[-1] = keep[1], keep[-2]  # before the first and behind the last sampled token
    after = np.searchsorted(positions, masked)
    return masked[keep[after] & keep[after + 1]][:MASKED_KEPT]
