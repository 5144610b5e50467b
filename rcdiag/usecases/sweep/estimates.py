"""Estimates of a family from its sums: one row per setting, with 95% intervals over clusters."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.corrections.sequences import EPSILON
from rcdiag.results import MetricValue
from rcdiag.results.sweep import SweepRow
from rcdiag.statistics.intervals import t_quantile
from rcdiag.usecases.sweep.bins import Array
from rcdiag.usecases.sweep.sums import LENGTHS, SweepState

# If an interval is narrower than this share of its value, all clusters agree up to rounding; and if
# a variance is below this share of the mean square, all sequences do.
ROUNDING = 1e-12


class Estimates(Struct, frozen=True):
    """Values and the ends of their intervals, [settings]; NaN if undefined."""

    values: Array
    low: Array
    high: Array

    def as_share(self) -> Estimates:
        """Return the estimates with intervals cut to 0 and 1."""
        return Estimates(self.values, np.maximum(self.low, 0.0), np.minimum(self.high, 1.0))

    def metrics(self) -> list[MetricValue]:
        """Return the values with their intervals; None for undefined ones."""
        values, low, high = self.values, self.low, self.high
        known = np.isfinite(values)
        # If all clusters agree, as where nothing is rejected, no interval can be estimated.
        reach = ROUNDING * np.maximum(1.0, np.abs(values))
        bounded = known & np.isfinite(low) & np.isfinite(high) & ~(high - low <= reach)
        of_all = zip(*(x.tolist() for x in (values, low, high, known, bounded)), strict=True)
        return [
            MetricValue(value=value, low=least, high=most)
            if has_interval
            else MetricValue(value=value if is_known else None)
            for value, least, most, is_known, has_interval in of_all
        ]


class FamilyEstimates:
    """The formulas over one family's sums; each returns numbers of all settings, [settings]."""

    def __init__(self, state: SweepState, family: str) -> None:
        self.state, self.family = state, family
        self.settings = state.plan.layouts[family].settings
        self._sums: dict[str, Array] = {}

    def sums(self, quantity: str) -> Array:
        """Return sums by cluster, [clusters, settings], or over all sequences, [1, settings]."""
        if quantity not in self._sums:
            self._sums[quantity] = self.state.of_settings(self.family, quantity)
        return self._sums[quantity]

    def total(self, quantity: str) -> Array:
        """Return a sum over all sequences, [settings]."""
        result: Array = self.sums(quantity).sum(axis=0)
        return result

    def base(self, quantity: str) -> Array:
        """Return sums by cluster of a quantity that no setting changes, [clusters, 1]."""
        return self.state.base(quantity)[:, None]

    def unknown(self) -> Array:
        """Return NaN for each setting."""
        return np.full(self.settings.count, np.nan)

    def ratio(self, numerators: Array, denominators: Array) -> Estimates:
        """Return sum / sum with the linearised error of Cochran 1977, Sampling Techniques, 6.4."""
        total = denominators.sum(axis=0)
        values = numerators.sum(axis=0) / total
        reach = self.reach((numerators - values * denominators) / total)
        return Estimates(values, values - reach, values + reach)

    def reach(self, influence: Array) -> Array:
        """Return the half width of intervals from each cluster's influence, [clusters, settings].

        The standard error is sqrt(G / (G - 1) sum influence^2), which is the jackknife over G
        clusters to first order; NaN with one cluster.
        """
        clusters = self.state.num_clusters
        if clusters < 2:
            return np.full(influence.shape[1], np.nan)
        widened = clusters / (clusters - 1.0)
        result: Array = t_quantile(clusters) * np.sqrt(widened * np.square(influence).sum(axis=0))
        return result

    def ess_seq(self) -> Estimates:
        """Return (sum m)^2 / (n sum m^2), m a sequence's mean weight; delta method on its log."""
        means, squares = self.sums("means"), self.sums("squared_means")
        sequences = self.base("sequences")
        sums = [column.sum(axis=0) for column in (means, squares, sequences)]
        values = sums[0] ** 2 / (sums[2] * sums[1])
        influence = 2.0 * means / sums[0] - squares / sums[1] - sequences / sums[2]
        factor = np.exp(self.reach(influence))
        return Estimates(values, values / factor, np.minimum(values * factor, 1.0))

    def weights(self) -> Array:
        """Return the weights of tokens in the loss, [clusters, settings]; 1 without weights."""
        return self.sums("kept" if self.settings.weighting is None else "weights")

    def ess_token(self) -> Array:
        """Return (sum w)^2 / (N sum w^2) over all tokens."""
        squares = self.total("kept" if self.settings.weighting is None else "squares")
        result: Array = self.weights().sum(axis=0) ** 2 / (self.base("tokens").sum() * squares)
        return result

    def ess_trainer(self) -> Array:
        """Return 1 / E[(w / (E[w] + 1e-8))^2] before rejection, as verl 0.9; NaN without IS."""
        if self.settings.weighting is None:
            return self.unknown()
        tokens = self.base("tokens").sum() + EPSILON
        mean, squares = self.total("logged") / tokens, self.total("logged_squares") / tokens
        result: Array = (mean + EPSILON) ** 2 / squares
        return result

    def lost_mass(self) -> Estimates:
        """Return E[ratio 1(rejected or weight 0)] / E[ratio], at the level of the bounds."""
        if self.settings.discards_tokens:
            kept = self.ratio(self.sums("kept_mass"), self.base("true_ratios"))
            return Estimates(1.0 - kept.values, 1.0 - kept.high, 1.0 - kept.low)
        if not np.isfinite(self.state.shift):
            return Estimates(*[self.unknown()] * 3)
        rejected = self.state.of_settings(self.family, "mass", outside=True)
        return self.ratio(rejected, self.base("mass"))

    def truncation_loss(self) -> Estimates:
        """Return E[(ratio - C)+] / E[ratio], at the level of the weights."""
        if not self.settings.truncates:
            return Estimates(*[self.unknown()] * 3)
        name = "true_ratios" if self.settings.weighs_tokens else "seq_true"
        return self.ratio(self.sums("excess"), self.base(name))

    def bias_bound(self) -> Array:
        """Return E|ratio - weight| / E[ratio] over sequences; NaN without sequence weights."""
        weighting = self.settings.weighting
        if weighting is None or weighting.level != "sequence":
            return self.unknown()
        rejected = self.state.of_settings(self.family, "true", outside=True).sum(axis=0)
        result: Array = (self.total("gap") + rejected) / self.base("seq_true").sum()
        return result

    def weight_distance(self) -> Array:
        """Return E|ratio - weight| over whole sequences, given E[ratio] = 1; from 0 to 2.

        It is computed as 1 - E[w] + 2 E[(w - ratio)+], w the mean weight of a sequence's tokens, 0
        if rejected. In this form no ratio beyond the bounds occurs, so that it can be estimated
        even if the tail cannot. With token weights it is a distance, but no bound of the bias. NaN
        if the ratio of any sequence, kept or not, is NaN.
        """
        if np.isnan(self.base("seq_true").sum()):
            return self.unknown()
        count = self.base("sequences").sum()
        result: Array = (
            np.maximum(1.0 - self.total("means") / count, 0.0) + 2.0 * self.total("over") / count
        )
        return result

    def variance(self) -> Array:
        """Return the variance over sequences of their mean weight."""
        count = self.base("sequences").sum()
        mean = self.total("means") / count
        result: Array = np.maximum(self.total("squared_means") / count - mean**2, 0.0)
        return result

    def mean_shift(self, signal: str) -> Estimates:
        """Return the mean over kept sequences minus that over all, where the value is known."""
        if (self.family, signal) not in self.state:
            return Estimates(*[self.unknown()] * 3)
        sums, counts = self.sums(signal), self.sums(f"{signal}_count")
        all_sums, all_counts = self.base(signal), self.base(f"{signal}_count")
        kept, everyone = sums.sum(axis=0) / counts.sum(axis=0), all_sums.sum() / all_counts.sum()
        influence = (sums - kept * counts) / counts.sum(axis=0)
        influence = influence - (all_sums - everyone * all_counts) / all_counts.sum()
        shift, reach = kept - everyone, self.reach(influence)
        return Estimates(shift, shift - reach, shift + reach)

    def keep_length_correlation(self) -> Array:
        """Return the Pearson correlation over sequences of the share of kept tokens and length.

        NaN if one of the two is the same for all sequences, up to rounding.
        """
        count, tokens = self.base("sequences").sum(), self.base("tokens").sum()
        alive = self.total("alive")
        share = share_squared = alive
        if self.settings.rejects_tokens:
            share, share_squared = self.total("share"), self.total("share_squared")
        squares = self.base("length_squared").sum()
        covariance = self.total("kept") - share * tokens / count
        of_share = share_squared - share**2 / count
        of_length = squares - tokens**2 / count
        correlation = covariance / np.sqrt(of_share * of_length)
        same_length = squares * count == tokens**2
        defined = (of_share > ROUNDING * share_squared) & ~same_length
        return np.where(defined, np.clip(correlation, -1.0, 1.0), np.nan)

    def kept_by_length(self) -> Array:
        """Return the share of kept tokens by quarter of lengths, [4, settings]; NaN if empty."""
        sequences = self.state.base("sequences_by_length")
        quartile = np.searchsorted(_quartiles(sequences), np.append(LENGTHS, LENGTHS[-1] + 1))
        kept = self.state["", "tokens_by_length"], self.state[self.family, "kept_by_length"]
        of_all, sums = (
            np.stack([of[quartile == each].sum(axis=0) for each in range(4)]) for of in kept
        )
        layout = self.state.plan.layouts[self.family]
        result: Array = layout.read("kept_by_length", sums) / of_all[:, 0]
        return result

    def clamped_share(self) -> float:
        """Return the share of log-ratios at or beyond the safety bound.

        It is over tokens if weights or rejection are by token, else over sequences.
        """
        settings = self.settings
        by_token = settings.rejects_tokens or settings.weighs_tokens
        if settings.weighting is None and not settings.rejections:
            return 0.0  # without weights and rejection nothing is clamped
        name, of = ("unsafe", "tokens") if by_token else ("unsafe_seq", "sequences")
        return float(self.base(name).sum() / self.base(of).sum())


def _quartiles(sequences: Array) -> NDArray[np.int64]:
    """Return the quartiles of sequence lengths, in tokens.

    `sequences` are counts by the bins of LENGTHS, so quartiles are ends of these bins.
    """
    shares = np.cumsum(sequences) / sequences.sum()
    at = np.searchsorted(shares, (0.25, 0.5, 0.75))
    result: NDArray[np.int64] = LENGTHS[np.minimum(at, len(LENGTHS) - 1)]
    return result


def length_quartiles(state: SweepState) -> list[float]:
    """Return the three quartiles of the sequence lengths, in tokens."""
    return [float(cut) for cut in _quartiles(state.base("sequences_by_length"))]


def sweep_rows(state: SweepState, family: str) -> list[SweepRow]:
    """Return the row of every setting of a family, in the order of its grid."""
    of = FamilyEstimates(state, family)
    with np.errstate(all="ignore"):
        tokens, sequences = of.base("tokens"), of.base("sequences")
        estimates = {
            "kept_token_share": of.ratio(of.sums("kept"), tokens).as_share(),
            "kept_sequence_share": of.ratio(of.sums("alive"), sequences).as_share(),
            "ess_seq_applied": of.ess_seq(),
            "mean_weight": of.ratio(of.weights(), tokens),
            "lost_mass": of.lost_mass().as_share(),
            "truncation_loss": of.truncation_loss().as_share(),
            "reward_shift": of.mean_shift("reward"),
            "advantage_shift": of.mean_shift("advantage"),
        }
        plain = {
            "ess_token_applied": of.ess_token(),
            "ess_trainer": of.ess_trainer(),
            "weight_variance": of.variance(),
            "weight_distance": of.weight_distance(),
            "bias_bound": of.bias_bound(),
            "keep_length_correlation": of.keep_length_correlation(),
        }
        quartiles = of.kept_by_length()
    columns: dict[str, list[Any]] = {name: value.metrics() for name, value in estimates.items()}
    for name, values in plain.items():
        columns[name] = [value if np.isfinite(value) else None for value in values.tolist()]
    columns |= {
        "bounds": list(state.plan.grids[family]),
        "kept_by_length": quartiles.T.tolist(),
        "kept_tokens": of.total("kept").astype(np.int64).tolist(),
        "kept_sequences": of.total("alive").astype(np.int64).tolist(),
        "kept_groups": state.groups_with_two(family).tolist(),
        "clamped_share": [of.clamped_share()] * len(quartiles.T),
    }
    return [
        SweepRow(**dict(zip(columns, row, strict=True)))
        for row in zip(*columns.values(), strict=True)
    ]
