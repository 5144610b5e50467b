"""Tokens that show what a bin is made of: a few of every bin of a figure, found in the one pass.

A bin keeps the tokens with the largest |log_ratio|, one of a row at most, and their neighbours.
States add up by `+`: the examples of two shards are those of their union.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from rcdiag.results import BinExamples
from rcdiag.statistics.categories import labels_by_sequence
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.profiles import LABELS, PROFILES
from rcdiag.table.tokens import Array

PER_BIN = 6
BEFORE, AFTER = 6, 3  # neighbours among the sampled tokens of the row
# Bins by size of the log-ratio, nats, of tokens that are likelier under the one and the other.
SIZES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
LIKELIER = {"likelier_target": 1.0, "likelier_behavior": -1.0}
# Profiles that no figure shows, so that nobody can ask for examples of their bins.
WITHOUT = ("behavior_probability", "target_probability")
# Above so many tokens a sample of about this size says first how large an example must be.
SAMPLE = 1 << 14

Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True, order=True)
class Example:
    """A token of a bin; examples are ordered by falling |log_ratio|, then by row and position."""

    falling: float  # -|log_ratio|, nats
    row: int
    position: int
    token_id: int
    behavior: float  # log-prob, nats
    log_ratio: float
    before: tuple[int, ...]  # token ids
    after: tuple[int, ...]


Bins = Mapping[str, Mapping[str, tuple[Example, ...]]]  # figure -> label of the bin -> examples


@dataclass(frozen=True, slots=True)
class Examples:
    """Examples of every bin of every axis."""

    bins: Bins = field(default_factory=dict)

    @classmethod
    def of(cls, pair: PolicyPair) -> Examples:
        """Take the examples of one batch."""
        size = np.abs(pair.log_ratio)
        owner = pair.tokens.owner
        made: dict[int, Example] = {}
        bins: dict[str, dict[str, tuple[Example, ...]]] = {}
        for name, labels, numbers in _axes(pair, owner):
            places = largest(numbers, size, owner)
            for place in places:
                if place not in made:
                    made[place] = _example(pair, int(place), int(owner[place]))
            of_axis: dict[str, list[Example]] = {}
            for place in places:
                of_axis.setdefault(labels[numbers[place]], []).append(made[place])
            bins[name] = {label: tuple(sorted(some)) for label, some in of_axis.items()}
        return cls(bins)

    def __add__(self, other: Examples) -> Examples:
        names = dict.fromkeys([*self.bins, *other.bins])
        return Examples(
            {name: _joined(self.bins.get(name, {}), other.bins.get(name, {})) for name in names}
        )

    def finished(self, profiles: Collection[str]) -> BinExamples:
        """Return the examples as a result holds them: every token once, bins by their places.

        Of profiles only those that the result has are kept.
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


def _joined(
    one: Mapping[str, tuple[Example, ...]], other: Mapping[str, tuple[Example, ...]]
) -> dict[str, tuple[Example, ...]]:
    """Join the examples of two shards, which have no row in common."""
    return {
        label: tuple(sorted([*one.get(label, ()), *other.get(label, ())])[:PER_BIN])
        for label in dict.fromkeys([*one, *other])
    }


def labels_of_sizes() -> list[str]:
    """Return the label of every bin by |log_ratio|, len(SIZES) + 1."""
    inner = [f"{low:g}-{high:g}" for low, high in pairwise(SIZES)]
    return [f"< {SIZES[0]:g}", *inner, f">= {SIZES[-1]:g}"]


def _axes(
    pair: PolicyPair, owner: Places
) -> Iterator[tuple[str, Sequence[str], NDArray[np.integer]]]:
    """Yield the axes of a batch: name, label of every bin, and each token's bin, -1 for none."""
    size_labels = labels_of_sizes()
    with np.errstate(invalid="ignore"):
        size = np.searchsorted(SIZES, np.abs(pair.log_ratio), side="right").astype(np.int16)
        for name, sign in LIKELIER.items():
            yield name, size_labels, np.where(pair.log_ratio * sign > 0.0, size, np.int16(-1))
    for name, axis in PROFILES.items():
        values = None if name in WITHOUT else axis.values(pair)
        if values is None:
            continue
        numbers = axis.bins(values).astype(np.int16)
        if len(values) == len(pair.lengths):
            numbers = numbers[owner]
        yield name, LABELS.get(name) or axis.labels(), numbers
    for name, (labels, codes) in labels_by_sequence(pair).items():
        yield name, labels, codes[owner] if len(codes) == len(pair.lengths) else codes


def largest(bins: NDArray[np.integer], size: Array, owner: Places) -> Places:
    """Return the places of the largest sizes of every bin, at most one of each owner; [examples].

    All arguments are [tokens]; a negative bin is none, and NaN is no size.
    """
    step = len(bins) // SAMPLE
    if step < 2:
        return _largest(np.flatnonzero((bins >= 0) & ~np.isnan(size)), bins, size, owner)
    # No example can be smaller than the last that a sample of the tokens would give.
    sampled = _largest(np.arange(0, len(bins), step), bins, size, owner)
    sampled = sampled[bins[sampled] >= 0]
    least = np.full(int(bins.max(initial=0)) + 2, -np.inf)  # the last is that of no bin
    least[-1] = np.inf
    counts = np.bincount(bins[sampled], minlength=len(least))
    for number in np.flatnonzero(counts >= PER_BIN):
        least[number] = size[sampled[bins[sampled] == number]].min()
    return _largest(np.flatnonzero((size >= least[bins]) & (bins >= 0)), bins, size, owner)


def _largest(among: Places, bins: NDArray[np.integer], size: Array, owner: Places) -> Places:
    """Return of some places the largest sizes of every bin, one of each owner."""
    order = among[np.lexsort((-size[among], bins[among]))]
    if not len(order):
        return order
    keys = bins[order].astype(np.int64) * (int(owner.max()) + 1) + owner[order]
    _, first = np.unique(keys, return_index=True)
    order = order[np.sort(first)]
    numbers = bins[order]
    starts = np.flatnonzero(np.concatenate([[True], numbers[1:] != numbers[:-1]]))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    return order[rank < PER_BIN]


def _example(pair: PolicyPair, place: int, index: int) -> Example:
    """Write the token at a place of the batch, with its neighbours in the row."""
    tokens = pair.tokens
    end = int(tokens.lengths[: index + 1].sum())
    start = end - int(tokens.lengths[index])
    log_ratio = float(pair.log_ratio[place])
    return Example(
        falling=-abs(log_ratio),
        row=int(tokens.row[index]),
        position=int(tokens.position[place]),
        token_id=int(tokens.token_id[place]),
        behavior=float(pair.values.behavior[place]),
        log_ratio=log_ratio,
        before=tuple(tokens.token_id[max(start, place - BEFORE) : place].tolist()),
        after=tuple(tokens.token_id[place + 1 : min(end, place + 1 + AFTER)].tolist()),
    )
