"""Squared errors of the candidates' batch gradients, with their standard errors.

A candidate's error is |m - r|^2 + V: m is its mean gradient, r that of the reference, V the
variance of a batch's mean, all of sketches. |m - r|^2 is estimated over pairs of different
clusters, whose noise is independent (a U-statistic: Hoeffding 1948, "A class of statistics with
asymptotically normal distribution"); V is estimated from the remaining squares of single clusters.
Weights are first scaled to a mean of 1, since a common factor only changes the learning rate.
Without a reference the error is V alone. Choosing by these errors is rcdiag's proposal.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rcdiag.results import MetricValue
from rcdiag.results.sweep import WORTH
from rcdiag.statistics.intervals import t_quantile
from rcdiag.usecases.sweep.sketched_gradients import REFERENCE, Array, centred
from rcdiag.usecases.sweep.sums import SweepState


class SampleSizes(Struct, frozen=True):
    """The number of sequences in each cluster, and of batches in the table."""

    of_clusters: Array  # [clusters] sequences with a known reward or advantage
    batches: int

    @property
    def total(self) -> float:
        return float(self.of_clusters.sum())

    @property
    def pairs(self) -> float:
        """Return the number of ordered pairs of sequences in different clusters."""
        return self.total**2 - float(np.square(self.of_clusters).sum())


class GradientError(Struct, frozen=True):
    """The squared error of one candidate's batch gradient, estimated from clusters."""

    sizes: SampleSizes
    distances: Array  # [clusters, clusters] products of (gradient - reference), diagonal 0
    own: Array  # [clusters] squared gradients of the clusters
    mean_square: float  # |m|^2, by pairs of different clusters

    @classmethod
    def of(cls, sizes: SampleSizes, gradient: Array, reference: Array | None) -> GradientError:
        """Measure gradients [clusters, dimensions], whose weights are scaled to a mean of 1."""
        away = np.zeros_like(gradient) if reference is None else gradient - reference
        own = np.square(gradient).sum(axis=1)
        total = gradient.sum(axis=0)
        mean_square = (float(total @ total) - float(own.sum())) / sizes.pairs
        distances = away @ away.T
        np.fill_diagonal(distances, 0.0)
        return cls(sizes, distances, own, mean_square)

    @property
    def bias(self) -> float:
        """Return |gradient - reference|^2 by products of different clusters, at least 0."""
        return max(float(self.distances.sum()) / self.sizes.pairs, 0.0)

    @property
    def error_of_bias(self) -> float:
        """Return the standard error of the squared bias.

        Without bias the products of different pairs of clusters are uncorrelated, so that the
        variance of their sum is twice the sum of their squares.
        """
        return float(np.sqrt(2.0 * float(np.square(self.distances).sum()))) / self.sizes.pairs

    @property
    def most_bias(self) -> float:
        """Return the upper end of the 95% interval of the squared bias."""
        return self.bias + t_quantile(len(self.own)) * self.error_of_bias

    @property
    def noise(self) -> float:
        """Return the variance of the mean gradient of one batch."""
        shared = float(np.square(self.sizes.of_clusters).sum()) * self.mean_square
        beyond = max(float(self.own.sum()) - shared, 0.0)
        return beyond / self.sizes.total**2 * self.sizes.batches

    @property
    def total(self) -> float:
        """Return squared bias plus noise."""
        return self.bias + self.noise

    def standard_error(self, other: GradientError | None = None) -> float:
        """Return the standard error of the total, or of its difference from another candidate's.

        That of the noise is the error of a sum over clusters.
        """
        if other is not None:
            distances, own = self.distances - other.distances, self.own - other.own
            return replace(self, distances=distances, own=own).standard_error()
        return float(np.hypot(self.error_of_bias, self._error_of_noise(self.own)))

    def _error_of_noise(self, own: Array) -> float:
        """Return the standard error of the noise; `own` are squared gradients of the clusters."""
        spread = float(np.square(own - own.mean()).sum())
        return float(np.sqrt(spread)) * self.sizes.batches / self.sizes.total**2

    def interval(self) -> tuple[float, float]:
        """Return both ends of the 95% interval of the total, with a squared bias of at least 0."""
        times = t_quantile(len(self.own))
        reach = times * self.standard_error()
        least = self.noise / (1.0 + times * self._error_of_noise(self.own) / (self.noise or 1.0))
        return max(self.total - reach, least), self.total + reach


# Errors that differ by less than rounding are equal.
ROUNDING = 1e-9
DIGITS = 9
# If the standard error of the squared bias exceeds the noise of one batch, an estimate of 0 says
# nothing: the bias may be most of the error. In 8 simulated tables of independent noise (.4 nats,
# 20 tokens, 4,096 sequences) the estimate was 0, plus or minus 3, while the truth was .1 to 99.
RESOLVED = 1.0


class GradientScores(Struct, frozen=True):
    """The errors of all candidates that keep any token, and their scale."""

    errors: dict[str, GradientError]
    scale: float  # noise of the gradient without correction
    referred: bool = True  # whether there is a reference; without one biases are unknown

    def value(self, name: str) -> float:
        """Return the efficiency of a candidate, higher is better; 0 if it keeps nothing."""
        error = self.errors.get(name)
        return 0.0 if error is None else self._efficiency(error.total)

    def place(self, name: str) -> float:
        """Return the efficiency for ranking, rounded so that equivalent candidates are equal."""
        return round(self.value(name), DIGITS)

    def bias(self, name: str) -> float | None:
        """Return the squared bias of a candidate in units of the noise without correction."""
        known = self.referred and name in self.errors
        return self.errors[name].bias / self.scale if known else None

    def most_bias(self, name: str) -> float | None:
        """Return the upper end of the 95% interval of the squared bias, in the same units."""
        known = self.referred and name in self.errors
        return self.errors[name].most_bias / self.scale if known else None

    @property
    def resolved(self) -> bool:
        """Tell whether the standard error of the bias without correction is within the noise."""
        return self.referred and self.errors["none"].error_of_bias <= RESOLVED * self.scale

    def surely_better(self, name: str) -> bool:
        """Tell whether a candidate's error is significantly below that without correction (95%)."""
        one, none = self.errors[name], self.errors["none"]
        reach = t_quantile(len(one.own)) * none.standard_error(one)
        return none.total - one.total > reach

    def noise(self, name: str) -> float | None:
        """Return the noise of a candidate in units of the noise without correction."""
        return self.errors[name].noise / self.scale if name in self.errors else None

    def metric(self, name: str) -> MetricValue:
        """Return the efficiency with its 95% interval; None without a reference."""
        error = self.errors.get(name)
        if not self.referred:
            return MetricValue(value=None)
        if error is None:
            return MetricValue(value=0.0)
        least, most = error.interval()
        if not most - least > ROUNDING * self.scale:
            return MetricValue(value=self.value(name))
        low, high = self._efficiency(most), self._efficiency(least)
        return MetricValue(value=self.value(name), low=low, high=high)

    def within(self, best: str, other: str) -> bool:
        """Tell whether the error of `other` exceeds that of `best` by at most one standard error.

        A difference of WORTH times the noise without correction is allowed in addition.
        """
        if best not in self.errors or other not in self.errors:
            return best == other
        one, two = self.errors[best], self.errors[other]
        return two.total - one.total <= two.standard_error(one) + WORTH * self.scale

    def _efficiency(self, error: float) -> float:
        return self.scale / error if error > 0.0 else 1.0


def gradient_scores(state: SweepState, referred: bool) -> GradientScores | None:
    """Measure the error of every candidate; None if no advantage is known or no gradient varies.

    The reference is weighted by untruncated ratios of whole sequences; if `referred` is false there
    is no reference, and no bias is measured.
    """
    sizes = SampleSizes(state.base("signals"), len(state.steps))
    if not sizes.pairs > 0.0:
        return None
    tokens = state.base("tokens").sum()
    of_target = state[REFERENCE, "scores"][:, 0]

    def scaled(name: str, weights: Array) -> Array:
        """Return centred gradients with weights scaled to a mean of 1, [clusters, dimensions]."""
        with np.errstate(divide="ignore", invalid="ignore"):  # all rejected: no gradient
            result: Array = centred(state[name, "gradient"][:, 0], of_target) / (
                weights.sum() / tokens
            )
            return result

    reference = None
    if referred:
        reference = scaled(REFERENCE, state[REFERENCE, "weights"])
    errors = {}
    for name in state.plan.candidates:
        family, at = state.plan.place(name)
        weighted = state.plan.layouts[family].settings.weighting is not None
        weights = state.of_settings(family, "weights" if weighted else "kept")[:, at]
        gradient = scaled(name, weights)
        if np.isfinite(gradient).all():
            errors[name] = GradientError.of(sizes, gradient, reference)
    scale = errors["none"].noise if "none" in errors else 0.0
    return GradientScores(errors, scale, referred) if scale > 0.0 else None
