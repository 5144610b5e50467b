"""Tables whose tokens depend on each other as those of rollouts do, with the truth about them.

Prompts and sequences differ (theory.md 2.6), in three ways. The spread of a sequence's log-ratios
is 0.1 exp(0.4 a + 0.3 b), a of its prompt and b its own; its offset is 0.03 c + 0.02 d, c of its
prompt and d its own. All have variance 1; a and b are uniform (were they normal, exp(s^2) would
have no mean), c and d normal. Prompts with a larger spread have longer sequences, so a mean over
tokens is a ratio of two random sums. Given spread s and offset o, the log-ratios of the tokens are
N(o - s^2 / 2, s^2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from rcdiag.statistics.block import Block
from tests.builders import make_block

SEQUENCES = 4  # of a prompt
SPREAD = 0.1
OF_PROMPT, OF_SEQUENCE = 0.4, 0.3
OFFSET = float(np.hypot(0.03, 0.02))
REACH = np.sqrt(3.0)  # of a uniform number with variance 1


def mean_length(a: np.ndarray) -> np.ndarray:
    return 8.0 + 20.0 * np.exp(0.3 * a)


def _uniform(random: np.random.Generator, size: int) -> np.ndarray:
    return random.uniform(-REACH, REACH, size)


def clustered_block(seed: int, prompts: int) -> Block:
    random = np.random.default_rng(seed)
    a, c = _uniform(random, prompts), random.normal(size=prompts)
    a, c = a.repeat(SEQUENCES), c.repeat(SEQUENCES)
    b, d = _uniform(random, len(a)), random.normal(size=len(c))
    lengths = 1 + random.poisson(mean_length(a) - 1)
    spread = np.repeat(SPREAD * np.exp(OF_PROMPT * a + OF_SEQUENCE * b), lengths)
    offset = np.repeat(0.03 * c + 0.02 * d, lengths)
    log_ratio = random.normal(offset - spread**2 / 2, spread)
    behavior = -1.0 - random.exponential(size=len(log_ratio))
    ends = np.cumsum(lengths)[:-1]
    return make_block(
        np.split(behavior, ends),
        np.split(behavior + log_ratio, ends),
        np.arange(prompts).repeat(SEQUENCES),
    )


@dataclass(frozen=True)
class Truth:
    """Expectations over tokens, by Gauss's quadrature over a, b and the offset."""

    spread: np.ndarray
    offset: np.ndarray
    weight: np.ndarray

    @classmethod
    def make(cls, nodes: int = 40) -> Truth:
        uniform, share = np.polynomial.legendre.leggauss(nodes)
        normal, mass = np.polynomial.hermite_e.hermegauss(nodes)
        axes = np.meshgrid(REACH * uniform, REACH * uniform, normal)
        a, b, o = (axis.ravel() for axis in axes)
        weights = np.prod([axis.ravel() for axis in np.meshgrid(share, share, mass)], axis=0)
        weights = weights * mean_length(a)
        spread = SPREAD * np.exp(OF_PROMPT * a + OF_SEQUENCE * b)
        return cls(spread, OFFSET * o, weights / weights.sum())

    def mean(self, values: np.ndarray) -> float:
        return float(values @ self.weight)

    def share_within(self, size: float) -> float:
        """Of the tokens with |log_ratio| up to a size."""
        m = self.offset - self.spread**2 / 2
        return self.mean(norm.cdf((size - m) / self.spread) - norm.cdf((-size - m) / self.spread))

    def quantile(self, share: float) -> float:
        return brentq(lambda size: self.share_within(size) - share, 1e-9, 10.0)

    def of_metrics(self) -> dict[str, float]:
        s, o = self.spread, self.offset
        m = o - s**2 / 2
        short = norm.cdf(-m / s) - np.exp(o) * norm.cdf(-m / s - s)
        absolute = s * np.sqrt(2 / np.pi) * np.exp(-((m / s) ** 2) / 2)
        absolute = absolute + m * (1 - 2 * norm.cdf(-m / s))
        # Behavior probabilities are e^-1 times a uniform number, whatever the log-ratio.
        probability = np.exp(-1) / 2
        return {
            "k1_kl": -self.mean(m),
            "k2_kl": self.mean(m**2 + s**2) / 2,
            "k3_kl": self.mean(np.exp(o) - 1 - m),
            "k3_kl_reverse": self.mean(np.exp(o) * (o + s**2 / 2) - np.exp(o) + 1),
            "log_ratio_abs_mean": self.mean(absolute),
            "log_ratio_std": np.sqrt(self.mean(m**2 + s**2) - self.mean(m) ** 2),
            "tv_token": self.mean(short),
            "ratio_deviation_mean": self.mean(2 * short + np.exp(o) - 1),
            "prob_diff_mean": probability * self.mean(2 * short + np.exp(o) - 1),
            "ess_token": self.mean(np.exp(o)) ** 2 / self.mean(np.exp(2 * o + s**2)),
            "chi2_token": self.mean(np.exp(2 * o + s**2)) - 1,
            "ratio_mean": self.mean(np.exp(o)),
            "ratio_outside_1.1": 1 - self.share_within(np.log(1.1)),
            "log_ratio_abs_p50": self.quantile(0.5),
            "log_ratio_abs_p90": self.quantile(0.9),
            "log_ratio_abs_p99": self.quantile(0.99),
        }
