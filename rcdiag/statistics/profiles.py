"""Profiles: the mismatch of tokens in bins along an axis, with cluster-robust intervals.

To add a profile, add an entry to `PROFILES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from rcdiag.entry import LOG_RATIO, Entry
from rcdiag.results import MetricValue, Profile, ProfileBin
from rcdiag.statistics.binned import SUMS, BinnedTokens, BinNumbers, binned_tokens
from rcdiag.statistics.clusters import ClusterSums, content_order
from rcdiag.statistics.intervals import ratio_interval
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.ratios import Array

PROBABILITIES = (1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9, 0.99)
ENTROPIES = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
POSITIONS = tuple(2**power for power in range(18))
TURNS = tuple(range(2, 11))


class ProfileAxis(Struct, frozen=True):
    """An axis along which tokens are sorted into bins."""

    title: str
    unit: str
    edges: tuple[float, ...]  # bins are [edge, next edge), plus one below and one above all edges
    # [tokens], or [sequences] if all tokens of a sequence share it; None if the table has none.
    values: Callable[[PolicyPair], NDArray[Any] | None]
    about: str  # how to read the profile
    needs: str = ""  # the column that the profile needs
    logarithmic: bool = False  # values are logs of the quantity whose bins are at `edges`
    whole_from: int | None = None  # if values are integers, the smallest of them

    def labels(self) -> list[str]:
        """Return the labels of all bins, len(edges) + 1."""
        if self.whole_from is None:
            inner = [f"{a:g}-{b:g}" for a, b in pairwise(self.edges)]
            return [f"< {self.edges[0]:g}", *inner, f">= {self.edges[-1]:g}"]
        starts = [self.whole_from, *map(int, self.edges)]
        inner = [f"{a}" if a == b - 1 else f"{a}-{b - 1}" for a, b in pairwise(starts)]
        return [*inner, f"{starts[-1]}+"]

    def entry(self, name: str) -> Entry:
        """Describe the profile of this name, and its bins."""
        labels = LABELS.get(name) or self.labels()
        bins = labels if len(labels) <= 4 else [*labels[:2], "...", labels[-1]]
        needs = f" Needs {self.needs}." if self.needs else ""
        return Entry(
            what=f"Mismatch by {self.title}. {self.about}{needs}",
            formula="per bin: mean and rms of log_ratio, k3, share of sum log_ratio^2; bins "
            + ", ".join(bins),
            direction=LOG_RATIO,
            units=f"{self.unit or 'none'}; nats for the mismatch of a bin",
            example="rcdiag score rollouts.parquet --html mismatch.html",
        )

    def bins(self, values: NDArray[Any]) -> BinNumbers:
        """Return the bin of each value, in the shape of `values`; NaN is in no bin."""
        wide = values.astype(np.float64, copy=False)
        numbers = np.zeros(len(wide), np.uint8)
        for edge in self.sorted_edges:  # faster than a search, as long as edges are few
            numbers += (wide >= edge).view(np.uint8)
        count = len(self.edges) + 1
        undefined = np.isnan(wide)
        if undefined.any():
            numbers[undefined] = count
        return BinNumbers(numbers, count)

    @property
    def sorted_edges(self) -> Array:
        """Return the edges on the scale of the values, ascending."""
        return np.log(self.edges) if self.logarithmic else np.asarray(self.edges, np.float64)


PROFILES: dict[str, ProfileAxis] = {
    "position": ProfileAxis(
        "position in the response",
        "tokens before",
        POSITIONS,
        lambda pair: pair.tokens.position,
        "Noise is flat. Growth may be of harder tokens, which come later: see the profile by "
        "probability before attention, position encoding or cache are suspected.",
        whole_from=0,
    ),
    "length": ProfileAxis(
        "sampled tokens of the sequence",
        "tokens",
        tuple(2**power for power in range(4, 18)),
        lambda pair: pair.lengths,
        "Longer sequences collect more log-ratio; per token it should not depend on the length.",
        whole_from=1,
    ),
    "behavior_probability": ProfileAxis(
        "probability under the behavior policy",
        "",
        PROBABILITIES,
        lambda pair: pair.values.behavior,
        "Rounding shows at low probabilities. A bin of low behavior probabilities holds more than "
        "its share of tokens that this policy underrates, which lifts the mean log-ratio there.",
        logarithmic=True,
    ),
    "target_probability": ProfileAxis(
        "probability under the target policy",
        "",
        PROBABILITIES,
        lambda pair: pair.values.target,
        "A bin of low target probabilities holds more than its share of tokens that the target "
        "underrates, which lowers the mean log-ratio there.",
        logarithmic=True,
    ),
    "mean_probability": ProfileAxis(
        "geometric mean of both probabilities",
        "",
        PROBABILITIES,
        lambda pair: 0.5 * (pair.values.behavior + pair.values.target),
        "Binned by the mean of both policies' log-probs. Bins of one policy's probability select "
        "tokens on which that policy is high, and show a difference that is not there.",
        logarithmic=True,
    ),
    "entropy": ProfileAxis(
        "entropy of the next-token distribution",
        "nats",
        ENTROPIES,
        # Of the last listed policy (the trainer's) that has one.
        lambda pair: next(reversed([*pair.tokens.entropy.values()]), None),
        "Where the model hesitates numerical noise shows, where it is sure it does not.",
        needs="a `{policy}_entropy` column",
    ),
    "turn": ProfileAxis(
        "turn",
        "",
        TURNS,
        lambda pair: np.ones(len(pair.lengths)) if pair.tokens.turn is None else pair.tokens.turn,
        "Turns after a tool's answer see text that the policy did not write.",
        whole_from=1,
    ),
    "reward": ProfileAxis(
        "sign of the reward",
        "",
        (0.0, 1.0),
        lambda pair: None if pair.tokens.reward is None else np.sign(pair.tokens.reward),
        "Rewarded responses are often surer: signs may differ in size without a fault.",
        needs="a `reward` column",
    ),
}
LABELS = {"reward": ["negative", "zero", "positive"]}


class Profiles(Struct, frozen=True):
    """Sums by cluster and bin, along every axis for which the table has values."""

    sums: dict[str, ClusterSums] = field(default_factory=dict)

    @classmethod
    def of(cls, pair: PolicyPair, names: Sequence[str] = tuple(PROFILES)) -> Profiles:
        return cls.of_bins(binned_tokens(pair, sort(pair, names), added=names))

    @classmethod
    def of_bins(cls, bins: BinnedTokens) -> Profiles:
        """Take the sums of a batch from its bins."""
        return cls(
            {
                name: bins.clusters.of_clusters(
                    some.swapaxes(1, 2).reshape(len(some), len(SUMS) * some.shape[1])
                )
                for name, some in bins.cells.items()
                if name in PROFILES
            }
        )


def sort(pair: PolicyPair, names: Sequence[str] = tuple(PROFILES)) -> dict[str, BinNumbers]:
    """Sort the tokens of a batch into bins along some axes; skip axes without values."""
    values = {name: PROFILES[name].values(pair) for name in names}
    return {name: PROFILES[name].bins(of) for name, of in values.items() if of is not None}


def finished(profiles: Profiles) -> dict[str, Profile]:
    """Return every profile with its non-empty bins; `turn` only if a row has several turns."""
    made: dict[str, Profile] = {}
    for name, axis in PROFILES.items():
        if name in profiles.sums:
            labels = LABELS.get(name) or axis.labels()
            made[name] = profile_of(profiles.sums[name], labels, axis.title, axis.unit, axis.about)
    return {
        name: profile for name, profile in made.items() if name != "turn" or len(profile.bins) > 1
    }


def profile_of(
    sums: ClusterSums, labels: Sequence[str], title: str, unit: str, about: str
) -> Profile:
    """Compute a profile from sums [clusters, len(SUMS) * bins]; empty bins are left out."""
    parts = np.split(sums.sums[content_order(sums.sums)], len(SUMS), axis=1)
    of = dict(zip(SUMS, parts, strict=True))  # each [clusters, bins]
    tokens, squares = of["tokens"], 2.0 * of["k2"]
    mean = _estimates(of["log_ratio"], tokens)
    rms = _estimates(squares, tokens, floor=0.0, root=True)
    kl = _estimates(of["k3"], tokens, floor=0.0)
    with np.errstate(over="ignore"):
        all_squares = float(squares.sum())
    bins = [
        ProfileBin(
            label=labels[index],
            tokens=int(count),
            log_ratio_mean=mean[index],
            log_ratio_rms=rms[index],
            k3_kl=kl[index],
            share_of_squares=float(squares[:, index].sum()) / all_squares if all_squares else 0.0,
        )
        for index, count in enumerate(tokens.sum(axis=0))
        if count
    ]
    return Profile(title=title, unit=unit, about=about, bins=bins)


def _estimates(
    sums: Array, tokens: Array, floor: float = -np.inf, *, root: bool = False
) -> list[MetricValue]:
    """Return the mean per token in each bin, or with `root` its square root, with intervals."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = sums.sum(axis=0) / tokens.sum(axis=0)
        low, high = ratio_interval(sums, tokens)
        low = np.maximum(low, floor)
        if root:
            value, low, high = np.sqrt(value), np.sqrt(low), np.sqrt(high)
    return [
        MetricValue(value=float(v), low=float(a), high=float(b))
        if np.isfinite(a) and np.isfinite(b)
        else MetricValue(value=float(v))
        for v, a, b in zip(value, low, high, strict=True)
    ]
