"""Seven distributions of tables with known true metrics, to measure the coverage of intervals.

Sequences have 32 to 96 tokens, groups 8 sequences (but for `unequal`). With s the spread of a
token's log-ratio x, nats:

    gaussian   x independent, N(-s^2 / 2, s^2)
    student    x independent, t with 3 degrees of freedom, scaled to the standard deviation s, cut
               at 1 nat, beyond which e^x would have no mean; its square has next to no variance
    correlated x N(-s^2 / 2, s^2), an AR(1) of coefficient 0.9 along each sequence
    unequal    as gaussian, with 8 exp(N(-1/2, 1)) sequences in a group, 1 to 64
    effects    spreads s exp(0.3 a + 0.2 b), offsets s (0.2 c + 0.1 d): a and c of the group, b and
               d of the sequence, all normal, cut at 4 (as in `clustered`)
    both       as effects, with the group sizes of unequal
    giants     as effects; every tenth group, one at least, has 40 sequences and the others 2

In `student` and `correlated` the mean ratio is not 1: no pair of policies with
correctly recorded log-probs gives such tables, but the statistics are still defined on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.signal import lfilter
from scipy.stats import norm, t

from rcdiag.diagnosis.guides import judged_metric
from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.suite import Suite, SuiteState
from tests.statistics.clustered import REACH, cut_normal, pair_of_arrays

SHORTEST, LONGEST = 32, 96  # tokens of a sequence
LENGTHS = np.arange(SHORTEST, LONGEST + 1)
SEQUENCES = 8  # of a group
CUT = 1.0  # nats
COEFFICIENT = 0.9  # of the AR(1)
WITH_EFFECTS = ("effects", "both", "giants")
Array = np.ndarray


def _tokens(distribution: str, spread: float, cut: float) -> tuple[Array, Array]:
    """Return quantiles of x at the midpoints of equal probabilities, and their weights."""
    shares = (np.arange(1_000_000) + 0.5) / 1_000_000
    if distribution == "student":
        x = np.clip(t.ppf(shares, 3) * spread / np.sqrt(3.0), -cut, cut)
    else:
        x = norm.ppf(shares) * spread - spread**2 / 2.0
    return x, np.full(len(x), 1.0 / len(x))


@dataclass(frozen=True)
class Generator:
    """A distribution of tables with a spread of log-ratios."""

    distribution: str
    spread: float
    cut: float = CUT  # of `student`

    def pair(self, seed: int, groups: int) -> PolicyPair:
        """Draw a table of some groups."""
        random = np.random.default_rng([seed, groups])
        sizes = np.full(groups, SEQUENCES)
        if self.distribution in ("unequal", "both"):
            sizes = np.round(SEQUENCES * np.exp(random.normal(-0.5, 1.0, groups)))
            sizes = np.clip(sizes, 1, 64).astype(int)
        if self.distribution == "giants":
            sizes = np.where(np.arange(groups) % 10 == 0, 40, 2)
        group = np.repeat(np.arange(groups), sizes)
        lengths = random.integers(SHORTEST, LONGEST, len(group), endpoint=True)
        log_ratio = self._log_ratio(random, lengths, group)
        behavior = -1.0 - random.standard_exponential(len(log_ratio))
        return pair_of_arrays(behavior, behavior + log_ratio, lengths, group.astype(np.uint64))

    def _log_ratio(self, random: np.random.Generator, lengths: Array, group: Array) -> Array:
        spread, tokens = self.spread, int(lengths.sum())
        if self.distribution == "student":
            return np.clip(
                random.standard_t(3, tokens) * spread / np.sqrt(3.0), -self.cut, self.cut
            )
        if self.distribution in WITH_EFFECTS:
            a, c = (cut_normal(random, int(group.max()) + 1)[group] for _ in range(2))
            b, d = (cut_normal(random, len(group)) for _ in range(2))
            own = spread * np.exp(0.3 * a + 0.2 * b)
            mean = spread * (0.2 * c + 0.1 * d) - own**2 / 2.0
            noise = random.standard_normal(tokens) * np.repeat(own, lengths)
            return noise + np.repeat(mean, lengths)
        noise = random.standard_normal(tokens)
        if self.distribution == "correlated":
            noise = _autoregressive(noise, lengths)
        return spread * noise - spread**2 / 2.0

    @cached_property
    def truth(self) -> dict[str, float]:
        """Return the true values of metrics by name."""
        return _of_effects(self.spread) if self.distribution in WITH_EFFECTS else self._of_tokens()

    def _of_tokens(self) -> dict[str, float]:
        x, weights = _tokens(self.distribution, self.spread, self.cut)

        def mean(values: Array) -> float:
            return float(values @ weights)

        ratio, first, second = np.exp(x), mean(x), mean(x**2)
        sums = LENGTHS * (second - first**2)
        if self.distribution == "correlated":
            lags = np.arange(1, LONGEST)
            pairs = np.clip(LENGTHS[:, None] - lags, 0, None) @ COEFFICIENT**lags
            sums = self.spread**2 * (LENGTHS + 2.0 * pairs)
            ratios = [np.exp(power * LENGTHS * first + power**2 * sums / 2.0) for power in (1, 2)]
        else:
            ratios = [mean(ratio**power) ** LENGTHS for power in (1, 2)]
        return {
            "k1_kl": -first,
            "k2_kl": second / 2.0,
            "k3_kl": mean(ratio - 1.0 - x),
            "prob_diff_mean": _PROBABILITY * mean(np.abs(ratio - 1.0)),
            "log_ratio_std": np.sqrt(second - first**2),
            "tv_token": mean(np.maximum(1.0 - ratio, 0.0)),
            "ratio_outside_1.1": mean(np.abs(x) > np.log(1.1)),
            **_of_ratios("token", mean(ratio), mean(ratio**2)),
            **_of_ratios("seq", ratios[0].mean(), ratios[1].mean()),
            "k1_kl_seq": -LENGTHS.mean() * first,
            "k2_kl_seq": float((sums + np.square(LENGTHS * first)).mean()) / 2.0,
        }


# Behavior probabilities are e^-1 times a uniform number, independent of the log-ratio.
_PROBABILITY = np.exp(-1.0) / 2.0


def _of_ratios(level: str, mean: float, square: float) -> dict[str, float]:
    return {
        f"ess_{level}": mean**2 / square,
        f"chi2_{level}": square - 1.0,
        f"chi2_{level}_self_normalised": square / mean**2 - 1.0,
        "ratio_mean" if level == "token" else "ratio_mean_seq": mean,
    }


def _autoregressive(noise: Array, lengths: Array) -> Array:
    """Make stationary AR(1) series of variance 1 from independent normal numbers."""
    inside = np.arange(LONGEST) < lengths[:, None]
    table = np.zeros(inside.shape)
    table[inside] = noise * np.sqrt(1.0 - COEFFICIENT**2)
    table[:, 0] /= np.sqrt(1.0 - COEFFICIENT**2)
    return lfilter([1.0], [1.0, -COEFFICIENT], table, axis=1)[inside]


def _of_effects(spread: float, nodes: int = 60) -> dict[str, float]:
    """Return true values of `effects`, by Gaussian quadrature over a, b and the offset."""
    x, share = np.polynomial.legendre.leggauss(nodes)
    x, share = REACH * x, share * norm.pdf(REACH * x)
    a, b, o = (axis.ravel() for axis in np.meshgrid(x, x, x))
    weights = np.prod([axis.ravel() for axis in np.meshgrid(share, share, share)], axis=0)
    weights /= weights.sum()
    s, o = spread * np.exp(0.3 * a + 0.2 * b), spread * np.hypot(0.2, 0.1) * o
    m = o - s**2 / 2.0

    def mean(values: Array) -> float:
        return float(values @ weights)

    def by_length(power: int) -> float:
        # A sequence's log-ratio is N(T m, T s^2) given the effects.
        logs = power * m + power**2 * s**2 / 2.0
        return float(np.mean([mean(np.exp(length * logs)) for length in LENGTHS]))

    short = norm.cdf(-m / s) - np.exp(o) * norm.cdf(-m / s - s)
    inside = norm.cdf((np.log(1.1) - m) / s) - norm.cdf((-np.log(1.1) - m) / s)
    first, second = mean(m), mean(m**2 + s**2)
    return {
        "k1_kl": -first,
        "k2_kl": second / 2.0,
        "k3_kl": mean(np.exp(o) - 1.0 - m),
        "prob_diff_mean": _PROBABILITY * mean(2.0 * short + np.exp(o) - 1.0),
        "log_ratio_std": np.sqrt(second - first**2),
        "tv_token": mean(short),
        "ratio_outside_1.1": 1.0 - mean(inside),
        **_of_ratios("token", mean(np.exp(o)), mean(np.exp(2.0 * o + s**2))),
        **_of_ratios("seq", by_length(1), by_length(2)),
        "k1_kl_seq": -LENGTHS.mean() * first,
        "k2_kl_seq": sum(mean(n * s**2 + np.square(n * m)) for n in LENGTHS) / len(LENGTHS) / 2.0,
    }


GENERATORS = {
    "gaussian": Generator("gaussian", 0.04),
    "student": Generator("student", 0.04),
    "correlated": Generator("correlated", 0.04),
    "unequal": Generator("unequal", 0.04),
    "effects": Generator("effects", 0.03),
    "both": Generator("both", 0.03),
    "giants": Generator("giants", 0.03),
}
# A larger mismatch, with almost no overlap of sequences, which a sample cannot show.
FAR_APART = {
    "gaussian, far apart": Generator("gaussian", 0.1),
    "correlated, far apart": Generator("correlated", 0.1),
    "effects, far apart": Generator("effects", 0.1),
}
# Tokens expected less than once per table hold a fifth of E[(ratio - 1)^2].
RARE = {"student, cut at 3 nats": Generator("student", 0.04, cut=3.0)}


def coverage(
    distribution: Generator, groups: int, runs: int, names: Iterable[str] | None = None
) -> dict[str, dict[str, float]]:
    """Return by metric the shares of intervals that cover the true value, miss it, lack an end.

    `names` are the metrics to compute, all of known truth unless given.

    An end that is not given holds whatever is true. A number of which neither is given has the
    level unknown; `given` is the share of the others, and all that is said of intervals is of them.
    """
    counts = {name: Counter[str]() for name in names or distribution.truth}
    for seed in range(runs):
        suite = Suite(SuiteState.of(distribution.pair(seed, groups)))
        for name in counts:
            truth = distribution.truth[name]
            value = judged_metric(METRICS[name], suite)
            low, high = value.low, value.high
            if low is None and high is None:
                # A share of 0 is not judged.
                assert value.level == "unknown" or value.value == 0.0, (name, value)
                continue
            counts[name].update(
                given=1,
                truth_below=int(low is not None and truth < low),
                truth_above=int(high is not None and truth > high),
                without_both_ends=int(low is None or high is None),
            )
    return {
        name: {
            "given": round(count["given"] / runs, 4),
            "holds": round(1.0 - (below + above) / max(count["given"], 1), 4),
            "truth_above": round(above / max(count["given"], 1), 4),
            "truth_below": round(below / max(count["given"], 1), 4),
            "without_both_ends": round(count["without_both_ends"] / max(count["given"], 1), 4),
        }
        for name, count in counts.items()
        for below, above in [(count["truth_below"], count["truth_above"])]
    }
