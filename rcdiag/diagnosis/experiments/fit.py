"""How well a predicted column explains a recorded one; residual = recorded - predicted, nats.

Engine rounding perturbs logits; a perturbation with standard deviation s moves a token's log-prob
by s * `sensitivity`, sqrt((1 - p)^2 + sum of the other tokens' p^2). Residuals are therefore scaled
by width = scale * sensitivity + resolution, where `resolution` (nats) is the storage precision of
the column. The loss is the negative log-likelihood of Cauchy noise: a few outliers cannot decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from rcdiag.diagnosis.case import Array, Counts, rms
from rcdiag.diagnosis.experiments.thresholds import OUTLYING, SENSITIVE
from rcdiag.diagnosis.thresholds import LARGER, NEARLY_ALL
from rcdiag.diagnosis.validity import Interval
from rcdiag.statistics.metrics.tail import NORMAL_REACH

# Error of a float32 sum of a few hundred terms, nats: the smallest resolution of a column.
FLOAT32 = 2e-6
SCALES = np.geomspace(1e-5, 10.0, 13)  # grid on which the scale of logit noise is searched
LARGEST = 1e4  # nats, to which residuals are clipped


class Residual(Struct, frozen=True):
    """The residual of a predicted column, with the scale of logit noise that fits it best."""

    nats: float  # mean loss of a token, up to a constant: the lower the better
    scale: float  # fitted scale of the logit noise
    rms: float  # nats
    values: Array  # [tokens] recorded - predicted, nats
    sensitivity: Array  # [tokens]
    resolution: Array  # [tokens] nats

    @property
    def loss(self) -> Array:
        """Return the loss of every token, [tokens]."""
        return loss_at(self.values, self.sensitivity, self.scale, self.resolution)

    def outlying(self, noise: float, times: float = OUTLYING) -> float:
        """Return the share of tokens whose residual is beyond `times` an engine's noise."""
        if not len(self.values):
            return 0.0
        return float((np.abs(self.values) > self._bound(noise, times)).mean())

    def is_small(self, noise: float, times: float) -> bool:
        """Tell whether the rms is at most `times` that of an engine's noise.

        Outliers may be few, but then their size counts: one token off by 90 nats is no noise.
        """
        return not len(self.values) or self.rms <= rms(self._bound(noise, times))

    def _bound(self, noise: float, times: float) -> Array:
        """Return `times` the residual that an engine's noise gives each token, [tokens] nats."""
        return times * (noise * self.sensitivity + FLOAT32) + self.resolution

    @property
    def tail(self) -> float:
        """Return rms(residual / width) of uncertain tokens, which is large for a heavy tail.

        It is 2 to 5 where low precision changed all logits a little, and larger where a few
        contexts changed a lot, as with other weights.
        """
        unsure = self.sensitivity > SENSITIVE
        if not unsure.any():
            return 0.0
        width = self.scale * self.sensitivity[unsure] + self.resolution[unsure]
        return rms(self.values[unsure] / width)

    def within(self, noise: float) -> bool:
        """Tell whether the residual of nearly all tokens is engine noise.

        Its scale may be a little larger, since it is only estimated.
        """
        few = self.outlying(max(noise, self.scale)) <= 1.0 - NEARLY_ALL
        return few and self.scale <= LARGER * noise


def residuals(recorded: Array, predicted: Array) -> Array:
    """Return recorded - predicted, nats, clipped to +-LARGEST; NaN counts as LARGEST."""
    with np.errstate(invalid="ignore"):
        difference = recorded - predicted
    return np.clip(np.nan_to_num(difference, nan=LARGEST), -LARGEST, LARGEST)


def loss_at(residual: Array, sensitivity: Array, scale: float, resolution: Array) -> Array:
    """Return the Cauchy loss of residuals for logit noise of a scale, [tokens]."""
    width = scale * sensitivity + resolution
    values: Array = (
        np.log(width) + np.log1p((residual / width) ** 2) - np.log(sensitivity + FLOAT32)
    )
    return values


def fit_residual(
    recorded: Array, predicted: Array, sensitivity: Array, resolution: Array
) -> Residual:
    """Fit the scale of logit noise of a prediction's residuals by minimising the mean loss."""
    residual = residuals(recorded, predicted)
    if not len(residual):
        return Residual(0.0, 0.0, 0.0, np.zeros(0), np.zeros(0), np.zeros(0))
    size = float(np.log(sensitivity + FLOAT32).mean())  # the part that does not depend on the scale

    def loss(log_scale: float) -> float:
        width = np.exp(log_scale) * sensitivity + resolution
        return float(np.log(width + residual**2 / width).mean()) - size

    log_scale, nats = searched(loss, np.log(SCALES).tolist(), steps=5)
    return Residual(
        nats=nats,
        scale=float(np.exp(log_scale)),
        rms=rms(residual),
        values=residual,
        sensitivity=sensitivity,
        resolution=resolution,
    )


def margin(better: Array, worse: Array, owner: Counts) -> float:
    """Return the z score of sum(worse - better) over tokens, with rows as clusters."""
    gain = worse - better
    if not len(gain):
        return 0.0
    _, of_row = np.unique(owner, return_inverse=True)
    sums = np.bincount(of_row, weights=gain)
    if len(sums) < 2:
        return 0.0
    error = float(np.sqrt(np.sum((sums - sums.mean()) ** 2) * len(sums) / (len(sums) - 1)))
    return float(sums.sum() / error) if error > 0 else float(np.sign(sums.sum()) * 99.0)


def golden(
    loss: Callable[[float], float], low: float, high: float, *, steps: int = 14
) -> tuple[float, float]:
    """Return minimum point and value of a unimodal function between two ends (golden section)."""
    share = (np.sqrt(5.0) - 1.0) / 2.0
    one, other = high - share * (high - low), low + share * (high - low)
    at_one, at_other = loss(one), loss(other)
    for _ in range(steps):
        if at_one <= at_other:
            high, other, at_other = other, one, at_one
            one = high - share * (high - low)
            at_one = loss(one)
        else:
            low, one, at_one = one, other, at_other
            other = low + share * (high - low)
            at_other = loss(other)
    return (one, at_one) if at_one <= at_other else (other, at_other)


def searched(
    loss: Callable[[float], float], grid: Sequence[float], *, steps: int = 14
) -> tuple[float, float]:
    """Return minimum point and value: the best of an ascending grid, refined between neighbours."""
    losses = [loss(value) for value in grid]
    best = int(np.argmin(losses))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    value, least = golden(loss, low, high, steps=steps)
    return (value, least) if least < losses[best] else (grid[best], losses[best])


def interval(loss_by_row: Callable[[float], Array], value: float, width: float) -> Interval:
    """Return an estimate with a 95% interval from the curvature of a loss, rows as clusters.

    `loss_by_row` returns each row's summed loss; `width` is the step of the finite differences.
    """
    low, at, high = (loss_by_row(value + step) for step in (-width, 0.0, width))
    slope = (high - low) / (2.0 * width)
    curvature = float((high - 2.0 * at + low).sum()) / width**2
    if curvature <= 0:
        return Interval(value, value - width, value + width)
    error = float(np.sqrt(np.sum((slope - slope.mean()) ** 2))) / curvature
    half = max(NORMAL_REACH * error, 0.0)
    return Interval(value, value - half, value + half)
