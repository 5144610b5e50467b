"""What is read off the sums of a family: a row per setting, with 95% intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.trainer_means import EPSILON
from rcdiag.results import MetricValue
from rcdiag.results.sweep import SweepRow
from rcdiag.statistics.intervals import t_quantile
from rcdiag.statistics.ratios import Array
from rcdiag.usecases.sweep.families import Bounds
from rcdiag.usecases.sweep.state import SweepState
from rcdiag.usecases.sweep.sums import LENGTHS

ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Estimates:
    """Values and the reach of their intervals, [settings]; NaN where there is none."""

    values: Array
    low: Array
    high: Array

    def as_share(self) -> Estimates:
        """Shares: the estimates with intervals that end at 0 and 1."""
        return Estimates(self.values, np.maximum(self.low, 0.0), np.minimum(self.high, 1.0))

    def metric(self, at: int) -> MetricValue:
        value, low, high = (float(x[at]) for x in (self.values, self.low, self.high))
        if not np.isfinite(value):
            return MetricValue(value=None)
        if not (np.isfinite(low) and np.isfinite(high)):
            return MetricValue(value=value)
        # All clusters agree, as where nothing is rejected: what was never seen has no error.
        if high - low <= ROUNDING * max(1.0, abs(value)):
            return MetricValue(value=value)
        return MetricValue(value=value, low=low, high=high)


class Formulas:
    """One family's sums, and the formulas over them."""

    def __init__(self, state: SweepState, family: str) -> None:
        self.state, self.family = state, family
        self.settings = state.plan.settings[family]
        self.sums = state.families[family]
        self.base = {
            name: state.cluster("", name)[:, None]
            for name in ("tokens", "sequences", "true", "mass", "seq_true")
        }
        self.clusters = state.num_clusters

    def column(self, name: str) -> Array:
        return self.state.cluster(self.family, name)

    def ratio(self, numerators: Array, denominators: Array) -> Estimates:
        """Sum over sum, with the linearised error of Cochran 1977, Sampling Techniques, 6.4."""
        total = denominators.sum(axis=0)
        values = numerators.sum(axis=0) / total
        return self.estimates(values, (numerators - values * denominators) / total)

    def estimates(self, values: Array, influence: Array) -> Estimates:
        """Intervals from each cluster's influence, sqrt(G / (G - 1) sum influence^2)."""
        reach = self.reach(influence)
        return Estimates(values, values - reach, values + reach)

    def reach(self, influence: Array) -> Array:
        if self.clusters < 2:
            return np.full(influence.shape[1], np.nan)
        widened = self.clusters / (self.clusters - 1.0)
        return t_quantile(self.clusters) * np.sqrt(widened * np.square(influence).sum(axis=0))

    def ess_seq(self) -> Estimates:
        """(sum m)^2 / (n sum m^2), m the mean weight of a sequence; delta method on its log."""
        means, squares = self.column("means"), self.column("squared_means")
        sequences = self.base["sequences"]
        sums = [column.sum(axis=0) for column in (means, squares, sequences)]
        values = sums[0] ** 2 / (sums[2] * sums[1])
        influence = 2.0 * means / sums[0] - squares / sums[1] - sequences / sums[2]
        factor = np.exp(self.reach(influence))
        return Estimates(values, values / factor, np.minimum(values * factor, 1.0))

    def ess_token(self) -> Array:
        """(sum w)^2 / (N sum w^2) over all tokens."""
        squares = self.sums.totals["squares"]
        return self.weights().sum(axis=0) ** 2 / (self.base["tokens"].sum() * squares)

    def ess_trainer(self) -> Array:
        """1 / E[(w / (E[w] + 1e-8))^2] before rejection, as verl 0.9 logs it; NaN without IS."""
        if self.settings.weighting is None:
            return np.full(self.settings.count, np.nan)
        totals, tokens = self.sums.totals, self.base["tokens"].sum() + EPSILON
        mean, squares = totals["logged"] / tokens, totals["logged_squares"] / tokens
        return (mean + EPSILON) ** 2 / squares

    def weights(self) -> Array:
        return self.column("kept" if self.settings.weighting is None else "weights")

    def lost_mass(self) -> Estimates:
        """E[ratio 1(rejected)] / E[ratio], at the level of the rejection."""
        if not self.settings.rejects_tokens:
            lost = self.ratio(self.column("lost_mass"), self.base["mass"])
            return lost if np.isfinite(self.state.shift) else _undefined(lost)
        kept = self.ratio(self.column("kept_mass"), self.base["true"])
        return Estimates(1.0 - kept.values, 1.0 - kept.high, 1.0 - kept.low)

    def truncation_loss(self) -> Estimates:
        """E[(ratio - C)+] / E[ratio], at the level of the weights."""
        if not self.settings.truncates:
            return _undefined(self.ratio(self.column("kept"), self.base["tokens"]))
        name = "true" if self.settings.weighs_tokens else "seq_true"
        return self.ratio(self.column("excess"), self.base[name])

    def bias_bound(self) -> Array:
        """E|ratio - weight| / E[ratio] over sequences; NaN without weights by sequence."""
        weighting = self.settings.weighting
        if weighting is None or weighting.level != "sequence":
            return np.full(self.settings.count, np.nan)
        return self.sums.totals["gap"] / self.base["seq_true"].sum()

    def bias(self) -> Array:
        """E|ratio - weight| over whole sequences given E[ratio] = 1, as `scores.bias_bound`.

        Every family has it: where it is no bound (weights by token) it is a measure of distance.
        """
        count = self.base["sequences"].sum()
        means = self.column("means").sum(axis=0) / count
        return np.maximum(1.0 - means, 0.0) + 2.0 * self.sums.totals["over"] / count

    def variance(self) -> Array:
        """Var over sequences of their mean weight."""
        count = self.base["sequences"].sum()
        mean = self.column("means").sum(axis=0) / count
        return np.maximum(self.column("squared_means").sum(axis=0) / count - mean**2, 0.0)

    def shift(self, name: str) -> Estimates:
        """Mean over kept sequences less that over all, of those whose value is known."""
        if not self.state.has(self.family, name):
            nothing = np.full(self.settings.count, np.nan)
            return Estimates(nothing, nothing, nothing)
        counted = f"{name}_count"
        sums, counts = self.column(name), self.column(counted)
        all_sums = self.state.cluster("", name)[:, None]
        all_counts = self.state.cluster("", counted)[:, None]
        kept, everyone = sums.sum(axis=0) / counts.sum(axis=0), all_sums.sum() / all_counts.sum()
        influence = (sums - kept * counts) / counts.sum(axis=0)
        influence = influence - (all_sums - everyone * all_counts) / all_counts.sum()
        return self.estimates(kept - everyone, influence)

    def keep_length_correlation(self) -> Array:
        """Pearson correlation over sequences of the share of tokens kept with the length."""
        totals, count = self.sums.totals, self.base["sequences"].sum()
        tokens = self.base["tokens"].sum()
        squares = self.state.cluster("", "length_squared").sum()
        covariance = totals["share_length"] - totals["share"] * tokens / count
        of_share = totals["share_squared"] - totals["share"] ** 2 / count
        of_length = squares - tokens**2 / count
        correlation = covariance / np.sqrt(of_share * of_length)
        same_length = squares * count == tokens**2
        defined = (self.sums.most > self.sums.least) & ~same_length
        return np.where(defined, np.clip(correlation, -1.0, 1.0), np.nan)

    def clamped_share(self) -> float:
        """Share of tokens, or of sequences, as the weights are, at the safety bound or beyond."""
        settings = self.settings
        by_token = settings.rejects_tokens or settings.weighs_tokens
        if settings.weighting is None and not settings.rejections:
            return 0.0  # nothing is clamped where nothing is weighted or compared
        name, of = ("unsafe", "tokens") if by_token else ("unsafe_seq", "sequences")
        return float(self.state.cluster("", name).sum() / self.base[of].sum())


def _undefined(estimates: Estimates) -> Estimates:
    """Give as many estimates, none of which has a value."""
    nothing = np.full_like(estimates.values, np.nan)
    return Estimates(nothing, nothing, nothing)


def cuts(sequences: Array) -> NDArray[np.int64]:
    """The lengths up to which a quarter, half and three quarters of the sequences go.

    `sequences` are counts by the bins of LENGTHS, so cuts are among these.
    """
    shares = np.cumsum(sequences) / sequences.sum()
    at = np.searchsorted(shares, (0.25, 0.5, 0.75))
    return LENGTHS[np.minimum(at, len(LENGTHS) - 1)]


def length_quartiles(state: SweepState) -> list[float]:
    """Give the three lengths that part the quarters of the sequences, in tokens."""
    return [float(cut) for cut in cuts(state.lengths[0])]


def by_quartile(state: SweepState, kept: Array) -> Array:
    """Share of tokens kept, [4, settings]; NaN where a quartile has no sequence.

    `kept` are tokens by the bins of LENGTHS, [LENGTHS + 1, settings].
    """
    sequences, tokens = state.lengths
    quartile = np.searchsorted(cuts(sequences), np.append(LENGTHS, LENGTHS[-1] + 1))
    of_all = np.bincount(quartile, tokens, 4)[:, None]
    sums = np.stack([kept[quartile == number].sum(axis=0) for number in range(4)])
    return sums / of_all


GroupCounts = dict[str, NDArray[np.int64]]


def sweep_rows(
    state: SweepState, family: str, settings: list[Bounds], groups: GroupCounts
) -> list[SweepRow]:
    """The rows of a family, in the order of its settings; `groups` are its `kept_groups`."""
    with np.errstate(all="ignore"):
        return _rows(Formulas(state, family), settings, groups[family])


def kept_groups(state: SweepState) -> GroupCounts:
    """Groups with two kept sequences, by family; under "" those that have two."""
    width = state.plan.width
    counts = np.zeros(width, np.int64) if state.groups is None else state.groups.kept(width)
    by_family, start = {"": counts[:1]}, 1
    for family, settings in state.plan.settings.items():
        by_family[family] = counts[start : start + settings.count]
        start += settings.count
    return by_family


def _rows(of: Formulas, settings: list[Bounds], groups: NDArray[np.int64]) -> list[SweepRow]:
    """Make the row of every setting."""
    tokens, sequences = of.base["tokens"], of.base["sequences"]
    kept, lives = of.column("kept"), of.column("alive")
    values = {
        "kept_token_share": of.ratio(kept, tokens).as_share(),
        "kept_sequence_share": of.ratio(lives, sequences).as_share(),
        "ess_seq_applied": of.ess_seq(),
        "mean_weight": of.ratio(of.weights(), tokens),
        "lost_mass": of.lost_mass().as_share(),
        "truncation_loss": of.truncation_loss().as_share(),
        "reward_shift": of.shift("reward"),
        "advantage_shift": of.shift("advantage"),
    }
    plain = {
        "ess_token_applied": of.ess_token(),
        "ess_trainer": of.ess_trainer(),
        "weight_variance": of.variance(),
        "weight_distance": of.bias(),
        "bias_bound": of.bias_bound(),
        "keep_length_correlation": of.keep_length_correlation(),
    }
    quartiles = by_quartile(of.state, of.sums.lengths)
    clamped = of.clamped_share()
    return [
        SweepRow(
            bounds=bounds,
            kept_tokens=int(kept[:, at].sum()),
            kept_sequences=int(lives[:, at].sum()),
            kept_groups=int(groups[at]),
            kept_by_length=[float(share) for share in quartiles[:, at]],
            clamped_share=clamped,
            **_at(values, plain, at),
        )
        for at, bounds in enumerate(settings)
    ]


def _at(values: dict[str, Estimates], plain: dict[str, Array], at: int) -> dict[str, Any]:
    """Give the numbers of one setting."""
    estimates: dict[str, Any] = {name: value.metric(at) for name, value in values.items()}
    return estimates | {name: _number(numbers[at]) for name, numbers in plain.items()}


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
