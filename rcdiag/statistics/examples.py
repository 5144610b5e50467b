"""Example tokens of every bin of a figure, collected in the same pass as the statistics.

A bin keeps the tokens with the largest |log_ratio|, at most one per row, with their neighbours.
Examples of several parts are combined into those of all their rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, pairwise

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from rcdiag.results import BinExamples
from rcdiag.statistics.binned import PER_BIN, BinnedTokens, BinNumbers, Places
from rcdiag.statistics.categories import NamedBins
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.profiles import LABELS, PROFILES

BEFORE, AFTER = 6, 3  # neighbouring sampled tokens of the row that are kept with an example
# Edges of bins by |log_ratio|, nats, for tokens likelier under the target and under the behavior.
SIZES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
LIKELIER = {"likelier_target": 0, "likelier_behavior": 1}  # figure -> its half of the size bins
BY_SIZE = "size"
# Profiles that no figure shows, so that examples of their bins are not needed.
WITHOUT = ("behavior_probability", "target_probability")
SHOWN = tuple(name for name in PROFILES if name not in WITHOUT)


class Example(Struct, frozen=True, order=True):
    """An example token; examples are sorted by descending |log_ratio|, then by row and position."""

    falling: float  # -|log_ratio|, nats
    row: int
    position: int
    token_id: int
    behavior: float  # log-prob, nats
    log_ratio: float
    before: tuple[int, ...]  # token ids
    after: tuple[int, ...]


Bins = Mapping[str, Mapping[str, list[Example]]]  # figure -> label of the bin -> examples


class Examples(Struct, frozen=True):
    """Examples for every bin of every axis."""

    bins: Bins = field(default_factory=dict)

    @classmethod
    def of(
        cls, pair: PolicyPair, bins: BinnedTokens, named: Mapping[str, NamedBins | None]
    ) -> Examples:
        """Take the largest tokens of every bin of a batch."""
        chosen = list(_axes(bins, named))
        places = np.unique(np.concatenate([some for _, _, some, _ in chosen]))
        made = dict(zip(places.tolist(), _examples(pair, places), strict=True))
        bins_by_axis: dict[str, dict[str, list[Example]]] = {}
        for name, labels, places, numbers in chosen:
            of_axis = bins_by_axis.setdefault(name, {})
            for place, number in zip(places.tolist(), numbers.tolist(), strict=True):
                of_axis.setdefault(labels[number], []).append(made[place])
        return cls(bins_by_axis).bounded()

    def bounded(self) -> Examples:
        """Keep the largest of every bin; each bin has at most one per row."""
        return Examples(
            {
                name: {label: sorted(some)[:PER_BIN] for label, some in of_axis.items()}
                for name, of_axis in self.bins.items()
            }
        )

    def finished(self, profiles: Collection[str]) -> BinExamples:
        """Return the examples in the form of a result: each token once, and bins as indices.

        Only those of `profiles` that the result has are kept.
        """
        kept = {name: bins for name, bins in self.bins.items() if name in {*LIKELIER, *profiles}}
        tokens = sorted(set(chain.from_iterable(chain(*(bins.values() for bins in kept.values())))))
        place = {one: index for index, one in enumerate(tokens)}
        return BinExamples(
            row=[one.row for one in tokens],
            position=[one.position for one in tokens],
            token_id=[one.token_id for one in tokens],
            behavior_log_prob=[float(f"{one.behavior:.5g}") for one in tokens],
            log_ratio=[float(f"{one.log_ratio:.5g}") for one in tokens],
            before=[list(one.before) for one in tokens],
            after=[list(one.after) for one in tokens],
            by_bin={
                name: {label: [place[one] for one in some] for label, some in bins.items()}
                for name, bins in kept.items()
            },
        )


def labels_of_sizes() -> list[str]:
    """Return the labels of all bins by |log_ratio|, len(SIZES) + 1."""
    inner = [f"{low:g}-{high:g}" for low, high in pairwise(SIZES)]
    return [f"< {SIZES[0]:g}", *inner, f">= {SIZES[-1]:g}"]


def size_bins(pair: PolicyPair) -> BinNumbers:
    """Sort tokens by |log_ratio|; bins of tokens likelier under the target come first."""
    log_ratio, size = pair.log_ratio, pair.values.ratios.size
    count = len(SIZES) + 1
    numbers = np.zeros(len(size), np.uint8)
    with np.errstate(invalid="ignore"):
        for edge in SIZES:
            numbers += (size >= edge).view(np.uint8)
        numbers += (log_ratio < 0.0).view(np.uint8) * np.uint8(count)
        numbers[~(size > 0.0)] = 2 * count
    return BinNumbers(numbers, 2 * count)


def _examples(pair: PolicyPair, places: Places) -> list[Example]:
    """Return the tokens at the given indices as examples, with their neighbours in the row."""
    tokens = pair.tokens
    ends = np.cumsum(tokens.lengths)
    sequence = np.searchsorted(ends, places, side="right")
    log_ratio = pair.log_ratio_at(places)
    from_place = np.maximum(places - BEFORE, (ends - tokens.lengths)[sequence])
    behind = np.minimum(places + AFTER + 1, ends[sequence])
    columns = (
        np.abs(log_ratio),
        tokens.row[sequence],
        tokens.position[places],
        tokens.token_id[places],
        tokens.log_probs[pair.behavior][places],
        log_ratio,
    )
    around = zip(*(column.tolist() for column in (from_place, places, behind)), strict=True)
    return [
        Example(
            falling=-size,
            row=row,
            position=position,
            token_id=token,
            behavior=behavior,
            log_ratio=ratio,
            before=tuple(tokens.token_id[first:place].tolist()),
            after=tuple(tokens.token_id[place + 1 : last].tolist()),
        )
        for size, row, position, token, behavior, ratio, (first, place, last) in zip(
            *(column.tolist() for column in columns), around, strict=True
        )
    ]


Axis = tuple[str, Sequence[str], Places, NDArray[np.integer]]


def _axes(bins: BinnedTokens, named: Mapping[str, NamedBins | None]) -> Iterator[Axis]:
    """Yield the axes of a batch: name, bin labels, indices of examples, and their bins."""
    places, numbers = bins.largest[BY_SIZE]
    count = len(SIZES) + 1
    for name, first in LIKELIER.items():
        here = (numbers >= first * count) & (numbers < (first + 1) * count)
        yield name, labels_of_sizes(), places[here], numbers[here] - first * count
    labels = {name: LABELS.get(name) or PROFILES[name].labels() for name in SHOWN}
    labels |= {name: one.labels for name, one in named.items() if one is not None}
    for name, of_axis in labels.items():
        if name in bins.largest:
            yield name, of_axis, *bins.largest[name]
