"""One family's sums, and the formulas over them: values of every setting, with 95% intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rcdiag.corrections.reductions import EPSILON
from rcdiag.results import MetricValue
from rcdiag.statistics.intervals import t_quantile
from rcdiag.sweeping.keyed import Array
from rcdiag.sweeping.state import SweepState

ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Estimates:
    """Values and the reach of their intervals, [settings]; NaN where there is none."""

    values: Array
    low: Array
    high: Array

    def as_share(self) -> Estimates:
        """The same with intervals that end at 0 and 1."""
        return Estimates(self.values, np.maximum(self.low, 0.0), np.minimum(self.high, 1.0))

    def metric(self, at: int) -> MetricValue:
        value, low, high = (float(each[at]) for each in (self.values, self.low, self.high))
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
        self.settings = state.settings[family]
        self.sums = state.sums[family]
        self.base = {
            name: state.cluster("", name)[:, None]
            for name in ("tokens", "sequences", "true", "mass", "seq_true")
        }
        self.clusters = len(state.keyed.keys)

    def column(self, name: str) -> Array:
        return self.state.cluster(self.family, name)

    def ratio(self, numerators: Array, denominators: Array) -> Estimates:
        """Sum over sum. Linearised error: reference/theory.md 2.6, Cochran 1977, 6.4."""
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
        sums = [each.sum(axis=0) for each in (means, squares, sequences)]
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
            found = self.ratio(self.column("lost_mass"), self.base["mass"])
            return found if np.isfinite(self.state.shift) else _nowhere(found)
        kept = self.ratio(self.column("kept_mass"), self.base["true"])
        return Estimates(1.0 - kept.values, 1.0 - kept.high, 1.0 - kept.low)

    def truncation_loss(self) -> Estimates:
        """E[(ratio - C)+] / E[ratio], at the level of the weights."""
        if not self.settings.truncates:
            return _nowhere(self.ratio(self.column("kept"), self.base["tokens"]))
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

        Of every family: where it is no bound (weights by token) it is a measure of distance.
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
        known = f"{name}_known"
        sums, counts = self.column(name), self.column(known)
        all_sums = self.state.cluster("", name)[:, None]
        all_counts = self.state.cluster("", known)[:, None]
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
        found = covariance / np.sqrt(of_share * of_length)
        same_length = squares * count == tokens**2
        defined = (self.sums.most > self.sums.least) & ~same_length
        return np.where(defined, np.clip(found, -1.0, 1.0), np.nan)

    def clamped_share(self) -> float:
        """At the safety bound or beyond: of tokens, or of sequences, as the weights are."""
        weighting, rejection = self.settings.weighting, self.settings.rejection
        by_token = self.settings.rejects_tokens or self.settings.weighs_tokens
        if weighting is None and rejection is None:
            return 0.0  # nothing is clamped where nothing is weighted or compared
        name, of = ("unsafe", "tokens") if by_token else ("unsafe_seq", "sequences")
        return float(self.state.cluster("", name).sum() / self.base[of].sum())


def _nowhere(found: Estimates) -> Estimates:
    """The same size, and no value."""
    nothing = np.full_like(found.values, np.nan)
    return Estimates(nothing, nothing, nothing)
