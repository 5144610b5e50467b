"""Tables with dependent tokens, as in rollouts, and their true expectations.

An earlier simulation, of which only the results are known, says how often intervals of the mean k3
held the truth (in parentheses below). Normal 95% intervals that do so in a share C are
z(C) / z(0.95) times as wide as they should be, which makes design effects of about 270 for tokens
and 5 for sequences, without prompt effects 18 and 1.

Here prompts and sequences differ in the spread of their log-ratios,
s = 0.1 exp(0.3 a + 0.2 b), and a little in their offset, o = 0.02 c + 0.01 d (nats): a and c of the
prompt, b and d of the sequence, all normal. Given both, the tokens' log-ratios are
N(o - s^2 / 2, s^2). 60 prompts have 8 sequences each, of 128 to 384 tokens, so a mean over tokens
is a ratio of random sums. Coverage in %, of 1,000 runs here, in parentheses of that simulation:

    prompt effects    token error    sequence error    percentile bootstrap of prompts
    with              10.8 (9.5)     60.6 (61)         92.7 (93.5)
    without           33.6 (35.5)    94.9 (95.5)       94.0 (93)

Others come near, as exp(0.4 a + 0.3 b) of 75 to 225 tokens: 11, 65; 34, 96.
Normal numbers are cut at 4 standard deviations, since exp(s^2) has no mean otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import norm

from rcdiag.statistics.pair import PolicyPair, pair_of
from rcdiag.table.trajectories import Ragged, Trajectories

PROMPTS = 60
SEQUENCES = 8  # of a prompt
SHORTEST, LONGEST = 128, 384  # tokens of a sequence
SPREAD = 0.1
OF_PROMPT, OF_SEQUENCE = 0.3, 0.2
OFFSET_OF_PROMPT, OFFSET_OF_SEQUENCE = 0.02, 0.01
REACH = 4.0  # of a normal number, in standard deviations


def cut_normal(random: np.random.Generator, size: int) -> np.ndarray:
    return ndtri(random.uniform(ndtr(-REACH), ndtr(REACH), size))


def clustered_pair(seed: int, prompts: int = PROMPTS, prompt_effects: bool = True) -> PolicyPair:
    random = np.random.default_rng(seed)
    a, c = (cut_normal(random, prompts).repeat(SEQUENCES) * prompt_effects for _ in range(2))
    b, d = (cut_normal(random, len(a)) for _ in range(2))
    lengths = random.integers(SHORTEST, LONGEST, len(a), endpoint=True)
    spread = SPREAD * np.exp(OF_PROMPT * a + OF_SEQUENCE * b)
    offset = OFFSET_OF_PROMPT * c + OFFSET_OF_SEQUENCE * d
    log_ratio = random.standard_normal(lengths.sum())
    log_ratio *= np.repeat(spread, lengths)
    log_ratio += np.repeat(offset - spread**2 / 2, lengths)
    behavior = -1.0 - random.standard_exponential(len(log_ratio))
    group = np.arange(prompts, dtype=np.uint64).repeat(SEQUENCES)
    return pair_of_arrays(behavior, behavior + log_ratio, lengths, group)


def pair_of_arrays(
    behavior: np.ndarray, target: np.ndarray, lengths: np.ndarray, group: np.ndarray
) -> PolicyPair:
    """Make a pair from arrays: lists would be too slow for many millions of tokens."""
    rows = Trajectories(
        first_row=0,
        response_ids=Ragged(
            np.zeros(len(behavior), np.int32), np.concatenate([[0], np.cumsum(lengths)])
        ),
        mask=np.ones(len(behavior), bool),
        log_probs={"rollout": behavior, "old": target},
        group=group,
    )
    return pair_of(rows, "rollout", "old")


@dataclass(frozen=True)
class Truth:
    """Exact expectations over tokens, by Gaussian quadrature over a, b and the offset."""

    spread: np.ndarray
    offset: np.ndarray
    weight: np.ndarray

    @classmethod
    def make(cls, prompt_effects: bool = True, nodes: int = 40) -> Truth:
        x, share = np.polynomial.legendre.leggauss(nodes)
        x, share = REACH * x, share * norm.pdf(REACH * x)
        a, b, o = (axis.ravel() for axis in np.meshgrid(x, x, x))
        weights = np.prod([axis.ravel() for axis in np.meshgrid(share, share, share)], axis=0)
        spread = SPREAD * np.exp(OF_PROMPT * prompt_effects * a + OF_SEQUENCE * b)
        reach = np.hypot(OFFSET_OF_PROMPT * prompt_effects, OFFSET_OF_SEQUENCE)
        return cls(spread, reach * o, weights / weights.sum())

    def mean(self, values: np.ndarray) -> float:
        return float(values @ self.weight)

    def share_within(self, size: float) -> float:
        """Return the share of tokens with |log_ratio| up to a size."""
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
        # Behavior probabilities are e^-1 times a uniform number, independent of the log-ratio.
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
