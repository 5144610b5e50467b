"""Squared errors of the candidates' batch gradients, with their standard errors.

A candidate's error is |m - r|^2 + V: m is its mean gradient, r that of the reference, V the
variance of a batch's mean, all in sketches. |m - r|^2 is taken over pairs of different clusters,
where noise does not add up (a U-statistic: Hoeffding 1948, "A class of statistics with
asymptotically normal distribution"); V is what clusters have beyond it. Weights are scaled to a
mean of 1 first: a factor that all tokens share is the learning rate's. Without a reference errors
are the noise alone. Choosing by them is rcdiag's proposal.
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


class Sizes(Struct, frozen=True):
    """How many sequences the clusters have, and how many batches the table is."""

    of_clusters: Array  # [clusters] sequences with a known reward or advantage
    batches: int

    @property
    def total(self) -> float:
        return float(self.of_clusters.sum())

    @property
    def pairs(self) -> float:
        """Count the ordered pairs of sequences of different clusters."""
        return self.total**2 - float(np.square(self.of_clusters).sum())


class GradientError(Struct, frozen=True):
    """The squared error of one candidate's batch gradient, as the clusters have it."""

    sizes: Sizes
    distances: Array  # [clusters, clusters] inner products of gradient less reference, diagonal 0
    own: Array  # [clusters] squared gradients of the clusters
    mean_square: float  # |m|^2, by pairs of different clusters

    @classmethod
    def of(cls, sizes: Sizes, gradient: Array, reference: Array | None) -> GradientError:
        """Measure gradients [clusters, dimensions], both with weights scaled to a mean of 1."""
        away = np.zeros_like(gradient) if reference is None else gradient - reference
        own = np.square(gradient).sum(axis=1)
        total = gradient.sum(axis=0)
        mean_square = (float(total @ total) - float(own.sum())) / sizes.pairs
        distances = away @ away.T
        np.fill_diagonal(distances, 0.0)
        return cls(sizes, distances, own, mean_square)

    @property
    def bias(self) -> float:
        """|m - r|^2, not below 0."""
        return max(float(self.distances.sum()) / self.sizes.pairs, 0.0)

    @property
    def error_of_bias(self) -> float:
        """Standard error of the squared bias.

        Pairs of clusters are uncorrelated where there is no bias, so that the variance of their sum
        is twice the sum of their squares.
        """
        return float(np.sqrt(2.0 * float(np.square(self.distances).sum()))) / self.sizes.pairs

    @property
    def most_bias(self) -> float:
        """Upper end of the 95% interval of the squared bias."""
        return self.bias + t_quantile(len(self.own)) * self.error_of_bias

    @property
    def noise(self) -> float:
        """Variance of the mean gradient of one batch."""
        shared = float(np.square(self.sizes.of_clusters).sum()) * self.mean_square
        beyond = max(float(self.own.sum()) - shared, 0.0)
        return beyond / self.sizes.total**2 * self.sizes.batches

    @property
    def total(self) -> float:
        """Squared bias and noise."""
        return self.bias + self.noise

    def standard_error(self, other: GradientError | None = None) -> float:
        """Standard error of the total, or of its difference from another candidate's.

        The noise is a sum over clusters.
        """
        if other is not None:
            distances, own = self.distances - other.distances, self.own - other.own
            return replace(self, distances=distances, own=own).standard_error()
        return float(np.hypot(self.error_of_bias, self._error_of_noise(self.own)))

    def _error_of_noise(self, own: Array) -> float:
        """Standard error of the noise, `own` being the squared gradients of the clusters."""
        spread = float(np.square(own - own.mean()).sum())
        return float(np.sqrt(spread)) * self.sizes.batches / self.sizes.total**2

    def interval(self) -> tuple[float, float]:
        """Both ends of the 95% interval of the total; the squared bias in it is not below 0."""
        times = t_quantile(len(self.own))
        reach = times * self.standard_error()
        least = self.noise / (1.0 + times * self._error_of_noise(self.own) / (self.noise or 1.0))
        return max(self.total - reach, least), self.total + reach


# Rounding aside, equal errors are equal.
ROUNDING = 1e-9
DIGITS = 9
# A squared bias that is not known to within the noise of one batch may be most of the error: where
# the reference is so noisy, an estimate of 0 says nothing. In 8 simulated tables of independent
# noise (.4 nats, 20 tokens, 4,096 sequences) it was 0, plus or minus 3, where .1 to 99 is true.
RESOLVED = 1.0


class GradientScores(Struct, frozen=True):
    """The errors of all candidates that keep anything, relative to the noise without correction."""

    errors: dict[str, GradientError]
    scale: float  # noise of the gradient without correction
    referred: bool = True  # whether there is a reference, so that biases are known

    def value(self, name: str) -> float:
        """Give the efficiency of a candidate, higher is better; 0 where it keeps nothing."""
        error = self.errors.get(name)
        return 0.0 if error is None else self._efficiency(error.total)

    def place(self, name: str) -> float:
        """Give the efficiency to rank by: candidates that do the same are equal, rounding aside."""
        return round(self.value(name), DIGITS)

    def bias(self, name: str) -> float | None:
        """Give the squared bias of a candidate in units of the noise without correction."""
        known = self.referred and name in self.errors
        return self.errors[name].bias / self.scale if known else None

    def most_bias(self, name: str) -> float | None:
        """Give the upper end of the 95% interval of the squared bias, in the same units."""
        known = self.referred and name in self.errors
        return self.errors[name].most_bias / self.scale if known else None

    @property
    def resolved(self) -> bool:
        """Tell whether the bias without correction is known to less than a batch's noise."""
        return self.referred and self.errors["none"].error_of_bias <= RESOLVED * self.scale

    def surely_better(self, name: str, other: str) -> bool:
        """Tell whether the error of a candidate is smaller than that of `other` at 95%."""
        one, two = self.errors[name], self.errors[other]
        reach = t_quantile(len(one.own)) * two.standard_error(one)
        return two.total - one.total > reach

    def noise(self, name: str) -> float | None:
        """Give the noise of a candidate in units of that without correction."""
        return self.errors[name].noise / self.scale if name in self.errors else None

    def metric(self, name: str) -> MetricValue:
        """Give the efficiency with its 95% interval; none without a reference."""
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
        """Tell whether `other` is within one standard error of `best`, and WORTH."""
        if best not in self.errors or other not in self.errors:
            return best == other
        one, two = self.errors[best], self.errors[other]
        return two.total - one.total <= two.standard_error(one) + WORTH * self.scale

    def _efficiency(self, error: float) -> float:
        return self.scale / error if error > 0.0 else 1.0


def gradient_scores(state: SweepState, referred: bool) -> GradientScores | None:
    """Measure the error of every candidate; None where no advantage is known or none differs.

    The reference has the untruncated ratios of whole sequences; without it (`referred` is false)
    there is no bias.
    """
    sizes = Sizes(state.base("signals"), len(state.steps))
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
