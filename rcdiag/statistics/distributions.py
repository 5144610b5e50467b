"""Probabilities and quantiles of the normal distribution and of Student's t.

Every command that measures a table needs them for its intervals. They are not scipy's, because
`import scipy.special` takes 0.25 s of processor time, a fifth of `rcdiag score` of a small table.
The tests compare them with scipy's, to 13 digits.
"""

from __future__ import annotations

import functools
import math
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from rcdiag.statistics.ratios import Array

DEGREE = 48  # of the Chebyshev polynomial in 1 / n; 32 would do for a probability of .975
SHIFT = 16  # added to the argument of the gamma function: there its series has 16 digits
ROUNDS = 40  # maximum number of Newton steps; 6 are usual
# Step and ends of the trapezoidal sum in `_tail`, in its variable u.
STEP, END = 1.0 / 16.0, 5.0


def normal_cdf(value: float) -> float:
    """Return the probability that a standard normal number is below `value`."""
    return math.erfc(-value / math.sqrt(2.0)) / 2.0


def normal_quantile(probability: float) -> float:
    """Return the value below which a standard normal number is with `probability`, 0 to 1."""
    if probability in (0.0, 1.0):
        return math.copysign(math.inf, probability - 0.5)
    return NormalDist().inv_cdf(probability)


def student_quantile(freedom: ArrayLike, tail: float) -> Array:
    """Return the quantile of Student's t that is exceeded with probability `tail`, .1 or less.

    `student_quantile(4, 0.025)` is 2.776. `freedom` holds degrees of freedom, whole or not, in any
    shape; the result has that shape, and is NaN where they are below 1. The log of the quantile is
    a smooth function of 1 / freedom on [0, 1]: it is computed at the zeros of a Chebyshev
    polynomial, once for every `tail`, and interpolated between them (13 digits or more).
    """
    degrees = np.asarray(freedom, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        turn = np.arccos(2.0 / np.where(degrees >= 1.0, degrees, np.nan) - 1.0)
    terms = np.cos(np.multiply.outer(turn, np.arange(DEGREE)))
    # Not a matrix product, whose last digits depend on the number of rows: the interval of a number
    # must not depend on which others are computed with it.
    return np.exp((terms * _log_quantile_series(tail)).sum(axis=-1))


@functools.lru_cache(maxsize=64)
def _log_quantile_series(tail: float) -> Array:
    """Return the Chebyshev coefficients of log student_quantile as a function of 1 / freedom."""
    turns = np.pi * (np.arange(DEGREE) + 0.5) / DEGREE
    values = np.log(_solved(2.0 / (np.cos(turns) + 1.0), tail))
    series = 2.0 / DEGREE * np.cos(np.outer(np.arange(DEGREE), turns)) @ values
    series[0] /= 2.0
    return series


def _solved(freedom: Array, tail: float) -> Array:
    """Return the t [n] that Student's t exceeds with probability `tail`, by Newton's method.

    The log of the tail is a concave function of log t. Newton's method therefore converges from the
    normal quantile, which is below every t: it overshoots once and then decreases to the solution.
    """
    log_t = np.full(len(freedom), math.log(-normal_quantile(tail)))
    for _ in range(ROUNDS):
        t = np.exp(log_t)
        above = _tail(t, freedom)
        step = np.log(above / tail) * above / (t * _density(t, freedom))
        log_t += step
        if np.abs(step).max() < 1e-14:
            break
    return np.exp(log_t)


def _density(t: Array, freedom: Array) -> Array:
    """Return the density of Student's t: (1 + t^2 / n)^(-(n + 1) / 2) / (sqrt(n) B(n / 2, 1 / 2)).

    Source: Abramowitz & Stegun 1964, Handbook of Mathematical Functions, 26.7.1.
    """
    log_power = -(freedom + 1.0) / 2.0 * np.log1p(np.square(t) / freedom)
    return np.exp(log_power) / (np.sqrt(freedom) * _beta(freedom))


def _tail(t: Array, freedom: Array) -> Array:
    """Return the probability [n] that Student's t exceeds `t` [n], for positive t.

    With x = t (1 + exp(pi / 2 sinh u)) the density is summed over equal steps of u, to 14 digits.
    Source: Takahasi & Mori 1974, Double exponential formulas for numerical integration,
    Publ. RIMS 9(3).
    """
    u = np.arange(-END, END + STEP / 2.0, STEP)
    beyond = np.exp(np.pi / 2.0 * np.sinh(u))
    widths = STEP * np.pi / 2.0 * np.cosh(u) * beyond
    return t * (_density(np.outer(t, 1.0 + beyond), freedom[:, None]) @ widths)


def _beta(freedom: Array) -> Array:
    """Return B(n / 2, 1 / 2) = sqrt(pi) G(n / 2) / G((n + 1) / 2), with G the gamma function.

    G(x) / G(x + 1 / 2) is computed at x + SHIFT, where its log is
    -log(x) / 2 + 1 / (8 x) - 1 / (192 x^3) + 1 / (640 x^5) - ..., and brought back to x with
    G(x + 1) = x G(x). Source: Abramowitz & Stegun 1964, 6.1.40 and 6.1.15.
    """
    x = freedom / 2.0
    back = np.prod(1.0 + 0.5 / np.add.outer(x, np.arange(SHIFT)), axis=-1)
    above = x + SHIFT
    square = 1.0 / np.square(above)
    series = 17.0 / 14336.0 - square * 31.0 / 18432.0
    series = 1.0 / 8.0 - square * (1.0 / 192.0 - square * (1.0 / 640.0 - square * series))
    return np.sqrt(np.pi / above) * np.exp(series / above) * back
