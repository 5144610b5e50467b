"""What is read off the sums of a family: a row per setting, with 95% intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.corrections.trainer_means import EPSILON
from rcdiag.results import MetricValue
from rcdiag.results.sweep import SweepRow
from rcdiag.statistics.intervals import t_quantile
from rcdiag.statistics.ratios import Array
from rcdiag.usecases.sweep.estimator_families import Bounds
from rcdiag.usecases.sweep.layout import UNKNOWN
from rcdiag.usecases.sweep.state import SweepState
from rcdiag.usecases.sweep.sums import LENGTHS

ROUNDING = 1e-12


class Estimates(Struct, frozen=True):
    """Values and the reach of their intervals, [settings]; NaN where there is none."""

    values: Array
    low: Array
    high: Array

    def as_share(self) -> Estimates:
        """Shares: the estimates with intervals that end at 0 and 1."""
        return Estimates(self.values, np.maximum(self.low, 0.0), np.minimum(self.high, 1.0))

    def metrics(self) -> list[MetricValue]:
        """The values with their intervals; None for what is not defined."""
        values, low, high = self.values, self.low, self.high
        known = np.isfinite(values)
        # All clusters agree, as where nothing is rejected: what was never seen has no error.
        reach = ROUNDING * np.maximum(1.0, np.abs(values))
        bounded = known & np.isfinite(low) & np.isfinite(high) & ~(high - low <= reach)
        of_all = zip(*(x.tolist() for x in (values, low, high, known, bounded)), strict=True)
        return [
            MetricValue(value=value, low=least, high=most)
            if has_interval
            else MetricValue(value=value if is_known else None)
            for value, least, most, is_known, has_interval in of_all
        ]


class Formulas:
    """One family's sums, and the formulas over them."""

    def __init__(self, state: SweepState, family: str) -> None:
        self.state, self.family = state, family
        self.settings = state.plan.settings[family]
        self.layout = state.plan.layouts[family]
        self.sums = state.families[state.plan.of_sums(family)]
        self.base = {
            name: state.cluster("", name)[:, None]
            for name in ("tokens", "sequences", "true", "mass", "seq_true")
        }
        self.clusters = state.num_clusters
        self._columns: dict[str, Array] = {}

    def column(self, name: str) -> Array:
        """Sums by cluster, [clusters, settings]; each is put together once."""
        if name not in self._columns:
            self._columns[name] = self.state.cluster(self.family, name)
        return self._columns[name]

    def total(self, name: str, *, rejected: bool = False) -> Array:
        """A sum over all sequences, or over those that a setting does not keep, [settings]."""
        return self.layout.read(name, self.sums.totals[name], rejected=rejected)

    def squares(self) -> Array:
        """Sum of the squared weights of tokens, [settings]."""
        if "squares" in self.sums.totals:
            return self.total("squares")
        return self.column("kept").sum(axis=0)

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
        squares = self.squares()
        return self.weights().sum(axis=0) ** 2 / (self.base["tokens"].sum() * squares)

    def ess_trainer(self) -> Array:
        """1 / E[(w / (E[w] + 1e-8))^2] before rejection, as verl 0.9 logs it; NaN without IS."""
        if self.settings.weighting is None:
            return np.full(self.settings.count, np.nan)
        tokens = self.base["tokens"].sum() + EPSILON
        mean, squares = self.total("logged") / tokens, self.total("logged_squares") / tokens
        return (mean + EPSILON) ** 2 / squares

    def weights(self) -> Array:
        return self.column("kept" if self.settings.weighting is None else "weights")

    def lost_mass(self) -> Estimates:
        """E[ratio 1(rejected)] / E[ratio], at the level of the rejection."""
        if not self.settings.rejects_tokens:
            lost = self.ratio(self.state.rejected(self.family, "mass"), self.base["mass"])
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
        gap = self.total("gap") + self.total("true", rejected=True)
        return gap / self.base["seq_true"].sum()

    def bias(self) -> Array:
        """E|ratio - weight| over whole sequences given E[ratio] = 1, as `scores.bias_bound`.

        Every family has it: where it is no bound (weights by token) it is a measure of distance.
        NaN where the ratio of a sequence is not known, be that sequence kept or not.
        """
        if np.isnan(self.base["seq_true"].sum()):
            return np.full(self.settings.count, np.nan)
        count = self.base["sequences"].sum()
        means = self.column("means").sum(axis=0) / count
        return np.maximum(1.0 - means, 0.0) + 2.0 * self.total("over") / count

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
        sums, counts = self.column(name), self.column("alive")
        if self.state.has(self.family, f"{name}{UNKNOWN}"):
            counts = counts - self.column(f"{name}{UNKNOWN}")
        all_sums = self.state.cluster("", name)[:, None]
        all_counts = self.state.cluster("", f"{name}_count")[:, None]
        kept, everyone = sums.sum(axis=0) / counts.sum(axis=0), all_sums.sum() / all_counts.sum()
        influence = (sums - kept * counts) / counts.sum(axis=0)
        influence = influence - (all_sums - everyone * all_counts) / all_counts.sum()
        return self.estimates(kept - everyone, influence)

    def keep_length_correlation(self) -> Array:
        """Pearson correlation over sequences of the share of tokens kept with the length."""
        count, tokens = self.base["sequences"].sum(), self.base["tokens"].sum()
        kept, alive = (self.column(name).sum(axis=0) for name in ("kept", "alive"))
        share = share_squared = alive
        if self.settings.rejects_tokens:
            share, share_squared = self.total("share"), self.total("share_squared")
        squares = self.state.cluster("", "length_squared").sum()
        covariance = kept - share * tokens / count
        of_share = share_squared - share**2 / count
        of_length = squares - tokens**2 / count
        correlation = covariance / np.sqrt(of_share * of_length)
        same_length = squares * count == tokens**2
        extremes = (np.atleast_2d(each) for each in (self.sums.least, self.sums.most))
        least, most = (self.layout.read("", each) for each in extremes)
        least, most = np.where(alive < count, 0.0, least), np.where(alive > 0.0, most, 0.0)
        defined = (most > least) & ~same_length
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


def by_quartile(state: SweepState, family: str) -> Array:
    """Share of tokens kept, [4, settings]; NaN where a quartile has no sequence."""
    kept = state.families[state.plan.of_sums(family)].lengths  # by the bins of LENGTHS
    assert kept is not None
    sequences, tokens = state.lengths
    quartile = np.searchsorted(cuts(sequences), np.append(LENGTHS, LENGTHS[-1] + 1))
    of_all = np.bincount(quartile, tokens, 4)[:, None]
    sums = np.stack([kept[quartile == each].sum(axis=0, dtype=np.float64) for each in range(4)])
    return state.plan.layouts[family].read("kept", sums) / of_all


GroupCounts = dict[str, NDArray[np.int64]]


def sweep_rows(
    state: SweepState, family: str, settings: list[Bounds], groups: GroupCounts
) -> list[SweepRow]:
    """The rows of a family, in the order of its settings; `groups` are its `kept_groups`."""
    with np.errstate(all="ignore"):
        return _rows(Formulas(state, family), settings, groups[family])


def kept_groups(state: SweepState) -> GroupCounts:
    """Groups with two kept sequences, by family; under "" those that have two."""
    plan, groups = state.plan, state.groups
    counts = np.zeros(plan.width, np.int64) if groups is None else groups.kept(plan.width)
    by_family = {
        family: np.broadcast_to(counts[plan.rejections[family]], (settings.count,))
        for family, settings in plan.settings.items()
    }
    return {"": counts[:1], **by_family}


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
    quartiles = by_quartile(of.state, of.family).T.tolist()
    clamped = of.clamped_share()
    numbers: dict[str, list[Any]] = {name: value.metrics() for name, value in values.items()}
    numbers |= {name: _numbers(of_settings) for name, of_settings in plain.items()}
    numbers["kept_tokens"] = kept.sum(axis=0).astype(np.int64).tolist()
    numbers["kept_sequences"] = lives.sum(axis=0).astype(np.int64).tolist()
    numbers["kept_groups"] = groups.tolist()
    of_rows = zip(settings, quartiles, zip(*numbers.values(), strict=True), strict=True)
    return [
        SweepRow(
            bounds=bounds,
            kept_by_length=of_quartiles,
            clamped_share=clamped,
            **dict(zip(numbers, row, strict=True)),
        )
        for bounds, of_quartiles, row in of_rows
    ]


def _numbers(values: Array) -> list[float | None]:
    """Give the numbers of all settings; None for what is not defined."""
    finite = np.isfinite(values).tolist()
    return [value if known else None for value, known in zip(values.tolist(), finite, strict=True)]
