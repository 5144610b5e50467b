"""Profiles show the mismatch of tokens in bins along an axis, with cluster-robust intervals.

To add a profile: one entry in `PROFILES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rcdiag.results import MetricValue, Profile, ProfileBin
from rcdiag.statistics.clusters import MAX_CLUSTERS, ClusterSums, added_by_index
from rcdiag.statistics.intervals import ratio_interval
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.ratios import Array, k3
from rcdiag.table.segments import starts_of

PROBABILITIES = (1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9, 0.99)
ENTROPIES = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
POSITIONS = tuple(2**power for power in range(18))
TURNS = tuple(range(2, 11))


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis along which tokens are sorted into bins."""

    title: str
    unit: str
    edges: tuple[float, ...]  # bins are [edge, next edge), and what lies below and above
    # [tokens], or [sequences] where all tokens of a sequence share it; None where there is none
    values: Callable[[PolicyPair], NDArray | None]
    about: str  # how to read it
    needs: str = ""  # the column without which there is no such profile
    logarithmic: bool = False  # values are logs of what the edges say
    whole_from: int | None = None  # values are whole numbers, of which this is the least
    ascending: bool = False  # values of single tokens do not fall within a sequence

    def labels(self) -> list[str]:
        """Return the label of every bin, len(edges) + 1."""
        if self.whole_from is None:
            inner = [f"{a:g}-{b:g}" for a, b in pairwise(self.edges)]
            return [f"< {self.edges[0]:g}", *inner, f">= {self.edges[-1]:g}"]
        starts = [self.whole_from, *map(int, self.edges)]
        inner = [f"{a}" if a == b - 1 else f"{a}-{b - 1}" for a, b in pairwise(starts)]
        return [*inner, f"{starts[-1]}+"]

    def bins(self, values: NDArray) -> NDArray[np.int64]:
        """Return the bin of each value, in the shape of `values`; -1 where it is NaN."""
        edges = np.log(self.edges) if self.logarithmic else np.asarray(self.edges, np.float64)
        numbers = np.searchsorted(edges, values, side="right")
        return np.where(np.isnan(values), -1, numbers) if values.dtype.kind == "f" else numbers


def _mean_log_prob(pair: PolicyPair) -> Array:
    return 0.5 * (pair.values.behavior + pair.values.target)


def _turn(pair: PolicyPair) -> NDArray:
    return np.ones(len(pair.lengths), np.int64) if pair.tokens.turn is None else pair.tokens.turn


def _reward_sign(pair: PolicyPair) -> Array | None:
    return None if pair.tokens.reward is None else np.sign(pair.tokens.reward)


def _entropy(pair: PolicyPair) -> Array | None:
    """Return the entropy of the policy that is listed last, which trains, where it has any."""
    return list(pair.tokens.entropy.values())[-1] if pair.tokens.entropy else None


PROFILES: dict[str, Axis] = {
    "position": Axis(
        "position in the response",
        "tokens before",
        POSITIONS,
        lambda pair: pair.tokens.position,
        "Growth with the position points at attention, position encoding or cache; noise is flat.",
        whole_from=0,
        ascending=True,
    ),
    "length": Axis(
        "sampled tokens of the sequence",
        "tokens",
        tuple(2**power for power in range(4, 18)),
        lambda pair: pair.lengths,
        "Longer sequences collect more log-ratio; per token it should not depend on the length.",
        whole_from=1,
    ),
    "behavior_probability": Axis(
        "probability under the behavior policy",
        "",
        PROBABILITIES,
        lambda pair: pair.values.behavior,
        "Rounding shows at low probabilities. A bin of low behavior probabilities holds more than "
        "its share of tokens that this policy underrates, which lifts the mean log-ratio there.",
        logarithmic=True,
    ),
    "target_probability": Axis(
        "probability under the target policy",
        "",
        PROBABILITIES,
        lambda pair: pair.values.target,
        "A bin of low target probabilities holds more than its share of tokens that the target "
        "underrates, which lowers the mean log-ratio there.",
        logarithmic=True,
    ),
    "mean_probability": Axis(
        "geometric mean of both probabilities",
        "",
        PROBABILITIES,
        _mean_log_prob,
        "Symmetric in both policies, so free of the selection that a bin by one policy's "
        "probability makes: believe this one.",
        logarithmic=True,
    ),
    "entropy": Axis(
        "entropy of the next-token distribution",
        "nats",
        ENTROPIES,
        _entropy,
        "Where the model hesitates numerical noise shows, where it is sure it does not.",
        needs="a `{policy}_entropy` column",
    ),
    "turn": Axis(
        "turn",
        "",
        TURNS,
        _turn,
        "Turns after a tool's answer see text that the policy did not write.",
        whole_from=1,
        ascending=True,
    ),
    "reward": Axis(
        "sign of the reward",
        "",
        (0.0, 1.0),
        _reward_sign,
        "A difference between signs biases the gradient even where the mean mismatch is small.",
        needs="a `reward` column",
    ),
}
LABELS = {"reward": ["negative", "zero", "positive"]}


# Tokens, log_ratio, log_ratio^2 and k3 of each bin.
SUMS = 4
# Up to so many edges it is faster to compare each value with all of them than to search.
_FEW_EDGES = 16


@dataclass(frozen=True, slots=True)
class Profiles:
    """Sums by cluster and bin, along every axis that the table has values for."""

    sums: dict[str, ClusterSums] = field(default_factory=dict)

    @classmethod
    def of(cls, pair: PolicyPair, names: Sequence[str] = tuple(PROFILES)) -> Profiles:
        return cls.joined(pair, [block_sums(block, names) for block in pair.blocks])

    @classmethod
    def joined(cls, pair: PolicyPair, blocks: Sequence[BlockSums]) -> Profiles:
        """Make the sums of a batch; `blocks` are the `block_sums` of its blocks, in order."""
        keys = np.unique(pair.tokens.cluster)
        sums = {}
        for name in blocks[0].sums:
            rows = np.zeros((len(keys), blocks[0].sums[name].shape[1]))
            with np.errstate(invalid="ignore"):
                for block in blocks:
                    rows[np.searchsorted(keys, block.keys)] += block.sums[name]
            sums[name] = ClusterSums(keys, rows, MAX_CLUSTERS).bounded()
        return cls(sums)

    def __add__(self, other: Profiles) -> Profiles:
        """Return the sums of both; an axis that one lacks has no tokens there."""
        one, two = self.sums, other.sums
        return Profiles(
            {
                name: one[name] + two[name] if name in one and name in two else (one | two)[name]
                for name in PROFILES
                if name in one or name in two
            }
        )


@dataclass(frozen=True, slots=True)
class BlockSums:
    """Sums of the tokens of a block, by cluster and by bin of every axis."""

    keys: NDArray[np.uint64]  # [clusters] ascending
    sums: dict[str, Array]  # name of an axis -> [clusters, SUMS * bins]


def block_sums(block: PolicyPair, names: Sequence[str] = tuple(PROFILES)) -> BlockSums:
    """Add up the tokens of a block along some axes; one that the table has no values for is out."""
    log_ratio = block.log_ratio
    starts = starts_of(block.lengths)
    with np.errstate(invalid="ignore"):
        columns = (log_ratio, np.square(log_ratio), k3(block.values.ratios))
        of_tokens = _side_by_side(np.ones(len(log_ratio)), *columns)
        of_sequences = _runs(columns, starts, len(log_ratio))
    keys, cluster = np.unique(block.tokens.cluster, return_inverse=True)
    sums, single = {}, []
    for name in names:
        axis = PROFILES[name]
        values = axis.values(block)
        if values is None:
            continue
        edges = np.log(axis.edges) if axis.logarithmic else np.asarray(axis.edges, np.float64)
        place = _Place(len(keys), len(edges) + 1)
        if len(values) == len(cluster):
            cells = place.cells(cluster, _bins(values, edges), values)
            (sums[name],) = _added([place], of_sequences, [cells])
        elif axis.ascending:
            first, sequence, bins = _first_tokens(values, starts, edges)
            cells = place.cells(cluster[sequence], bins)
            (sums[name],) = _added([place], _runs(columns, first, len(log_ratio)), [cells])
        else:
            owner = np.repeat(cluster, block.lengths)
            single.append((name, place, place.cells(owner, _bins(values, edges), values)))
    if single:
        of_single, places, cells_of_tokens = zip(*single, strict=True)
        sums |= zip(of_single, _added(places, of_tokens, cells_of_tokens), strict=True)
    return BlockSums(keys, {name: sums[name] for name in names if name in sums})


@dataclass(frozen=True, slots=True)
class _Place:
    """The cells of one axis, one for each cluster and bin, and one for what has no value."""

    clusters: int
    bins: int

    @property
    def size(self) -> int:
        return self.clusters * self.bins + 1

    def cells(
        self,
        cluster: NDArray[np.int64],
        bins: NDArray[np.integer],
        values: NDArray | None = None,
    ) -> NDArray[np.int32]:
        """Return the cell of each of some `values`, the last one for NaN."""
        cells = cluster.astype(np.int32)
        cells *= self.bins
        cells += bins.astype(np.int32, copy=False)
        if values is not None and values.dtype.kind == "f":
            missing = np.isnan(values)
            if missing.any():
                cells[missing] = self.size - 1
        return cells

    def by_cluster(self, by_cell: Array) -> Array:
        """Return sums of cells [cells, SUMS] as [clusters, SUMS * bins]."""
        cells = by_cell[:-1].reshape(self.clusters, self.bins, SUMS)
        return cells.swapaxes(1, 2).reshape(self.clusters, SUMS * self.bins)


def _added(
    places: Sequence[_Place], rows: Array, cells: Sequence[NDArray[np.int32]]
) -> Iterator[Array]:
    """Yield for each axis the sums of `rows` [rows, SUMS] by its `cells` [rows]."""
    edges = np.cumsum([0, *(place.size for place in places)])
    index = np.empty((len(rows), len(places)), np.int32)
    for column, (first, of_axis) in enumerate(zip(edges, cells, strict=False)):
        np.add(of_axis, np.int32(first), out=index[:, column])
    by_cell = added_by_index(index, rows, int(edges[-1]))
    for place, (first, last) in zip(places, pairwise(edges), strict=True):
        yield place.by_cluster(by_cell[first:last])


def _side_by_side(*columns: Array) -> Array:
    """Return columns [rows] as one matrix [rows, columns], the numbers of a row together."""
    matrix = np.empty((len(columns[0]), len(columns)))
    for index, column in enumerate(columns):
        matrix[:, index] = column
    return matrix


def _runs(columns: Sequence[Array], first: NDArray[np.int64], tokens: int) -> Array:
    """Add up runs of tokens that begin at `first` [runs]: counts and columns, [runs, SUMS]."""
    counts = np.diff(first, append=tokens).astype(np.float64)
    return _side_by_side(counts, *(np.add.reduceat(column, first) for column in columns))


def _bins(values: NDArray, edges: Array) -> NDArray[np.integer]:
    """Return how many edges are not above each value: its bin. That of NaN means nothing."""
    if len(edges) > _FEW_EDGES:
        return np.searchsorted(edges, values, side="right")
    bins = np.zeros(len(values), np.uint8)
    for edge in edges:
        bins += (values >= edge).view(np.uint8)
    return bins


def _first_tokens(
    values: NDArray, starts: NDArray[np.int64], edges: Array
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return where in each sequence a bin begins: token, sequence and bin, each [runs].

    `values` [tokens], whole numbers, do not fall within a sequence. `starts` [sequences] are the
    first tokens of sequences.
    """
    ends = np.append(starts[1:], len(values))
    lowest, highest = (
        np.searchsorted(edges, values[places], side="right") for places in (starts, ends - 1)
    )
    later = highest - lowest  # bins of each sequence after its first
    sequence = np.repeat(np.arange(len(starts)), later)
    edge = np.arange(len(sequence)) - np.repeat(np.cumsum(later) - later - lowest, later)
    # Keys that ascend over the whole block, a span for each sequence.
    span = int(max(values.max(), edges[-1])) + 1
    keys = values + np.repeat(np.arange(len(starts)) * span, ends - starts)
    low = np.searchsorted(keys, sequence * span + edges[edge].astype(np.int64))
    first = np.concatenate([starts, low])
    bins = np.concatenate([lowest, edge + 1])
    sequence = np.concatenate([np.arange(len(starts)), sequence])
    order = np.lexsort((bins, first))
    first, sequence, bins = first[order], sequence[order], bins[order]
    # Where several bins begin at one token, all but the last are empty.
    last = np.append(first[1:] != first[:-1], True)
    return first[last], sequence[last], bins[last]


def token_weights(pair: PolicyPair) -> list[Array]:
    """Return what a profile sums over the tokens of a bin, beside their number; each [tokens]."""
    with np.errstate(invalid="ignore"):
        return [pair.log_ratio, np.square(pair.log_ratio), k3(pair.values.ratios)]


def finished(profiles: Profiles) -> dict[str, Profile]:
    """Return every profile with its filled bins; that of turns only where a row has several."""
    made = {name: _profile(name, sums) for name, sums in profiles.sums.items()}
    return {
        name: profile for name, profile in made.items() if name != "turn" or len(profile.bins) > 1
    }


def _profile(name: str, sums: ClusterSums) -> Profile:
    axis = PROFILES[name]
    labels = LABELS.get(name) or axis.labels()
    return profile_of(sums, labels, axis.title, axis.unit, axis.about)


def profile_of(
    sums: ClusterSums, labels: Sequence[str], title: str, unit: str, about: str
) -> Profile:
    """Read a profile off sums by cluster and bin, [clusters, SUMS * bins]; empty bins are none."""
    tokens, log_ratio, squares, k3_sum = np.split(sums.sums, SUMS, axis=1)
    mean = _estimates(log_ratio, tokens)
    square = _estimates(squares, tokens, floor=0.0)
    kl = _estimates(k3_sum, tokens, floor=0.0)
    all_squares = float(squares.sum())
    bins = [
        ProfileBin(
            label=labels[index],
            tokens=int(count),
            log_ratio_mean=mean[index],
            log_ratio_rms=_root(square[index]),
            k3_kl=kl[index],
            share_of_squares=float(squares[:, index].sum()) / all_squares if all_squares else 0.0,
        )
        for index, count in enumerate(tokens.sum(axis=0))
        if count
    ]
    return Profile(title=title, unit=unit, about=about, bins=bins)


def _estimates(sums: Array, tokens: Array, floor: float = -np.inf) -> list[MetricValue]:
    """Return the mean per token of each bin, with its interval."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = sums.sum(axis=0) / tokens.sum(axis=0)
        low, high = ratio_interval(sums, tokens)
    return [
        MetricValue(value=float(v), low=max(float(a), floor), high=float(b))
        if np.isfinite(a) and np.isfinite(b)
        else MetricValue(value=float(v))
        for v, a, b in zip(value, low, high, strict=True)
    ]


def _root(square: MetricValue) -> MetricValue:
    def root(value: float | None) -> float | None:
        return None if value is None else float(np.sqrt(value))

    return MetricValue(value=root(square.value), low=root(square.low), high=root(square.high))
