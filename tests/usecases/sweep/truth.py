"""Tables of two policies for which the error of every candidate's gradient is known.

A token has one of CONTEXTS contexts, drawn anew for every token, and one of WORDS words, drawn from
the behavior policy, a softmax for each context. The target's logits differ by noise, and by a step
of its parameters. The gradient of a token is that of its log-prob with respect to the parameters of
the target, (e_word - target probabilities) x features of the context. The reward goes with the sum
of the gradients along one direction, and with chance. All that happens to a sequence is decided by
how often each kind of token (context and word) occurs in it, so that means and variances of
gradients come from counts: fast, for any length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.correction import Correction
from rcdiag.results.sweep import Recommendation
from rcdiag.statistics.pair import pair_of
from rcdiag.table.trajectories import Ragged, Trajectories
from rcdiag.usecases.sweep.candidates import CANDIDATES
from rcdiag.usecases.sweep.sketched_gradients import Baseline
from tests.usecases.sweep.policies import advice_of, state_of_candidates

Array = NDArray[np.float64]

CONTEXTS, WORDS, FEATURES = 24, 8, 1
KINDS = CONTEXTS * WORDS
IDS_OF_A_WORD = 4  # token ids that one word has, by context
GROUP = 8
AT_A_TIME = 8192


@dataclass(frozen=True)
class Case:
    """One kind of table: noise, size, and correlation of the reward with the tokens."""

    noise: float  # standard deviation of the log-ratio of a token, nats
    length: int  # median tokens of a sequence
    sequences: int
    heavy: bool  # tails of the noise: Student's t with 2.5 degrees of freedom, or normal
    drift: float  # share of the variance of the noise that a step of the parameters makes
    signal: float  # correlation of a sequence's reward with its gradient, before thresholding at 0
    product: bool = False  # whether the reward depends on a product of two sums, or on one sum
    rewarded: bool = True  # whether the table has the rewards
    seed: int = 0

    @property
    def name(self) -> str:
        """Name the case by its parameters."""
        tails = "heavy" if self.heavy else "dense"
        kind = " product" if self.product else ""
        known = "" if self.rewarded else " no rewards"
        return (
            f"{tails} noise {self.noise:g} length {self.length} x {self.sequences} drift "
            f"{self.drift:g} signal {self.signal:g}{kind}{known}"
        )


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


class World:
    """The two policies of a case, the gradients of its tokens and its reward."""

    def __init__(self, case: Case) -> None:
        self.case = case
        random = np.random.default_rng(case.seed)
        logits = random.normal(0.0, 1.5, (CONTEXTS, WORDS))
        features = random.normal(0.0, 1.0, (CONTEXTS, FEATURES))
        step = random.normal(0.0, 1.0, (WORDS, FEATURES))
        noise = random.normal(0.0, 1.0, (CONTEXTS, WORDS))
        if case.heavy:
            noise = random.standard_t(2.5, (CONTEXTS, WORDS))
        self.behavior = _log_softmax(logits)
        self.target = self._at(logits, features @ step.T, noise)
        excess = np.eye(WORDS) - np.exp(self.target)[:, None, :]
        scores = (excess[..., None] * features[:, None, None, :]).reshape(KINDS, -1)
        self.scores = scores / np.sqrt(self.target_distribution @ np.square(scores).sum(axis=1))
        self.rewarding = self._rewarding(step, random)

    def _at(self, logits: Array, drift: Array, noise: Array) -> Array:
        """Shift the logits until the log-ratio of a token has the standard deviation wanted."""
        distribution = np.exp(self.behavior)
        parts = [part / self._spread(part) for part in (drift, noise)]
        move = np.sqrt(self.case.drift) * parts[0] + np.sqrt(1.0 - self.case.drift) * parts[1]
        size = self.case.noise
        for _ in range(20):
            target = _log_softmax(logits + size * move)
            ratios = target - self.behavior
            mean = (distribution * ratios).sum() / CONTEXTS
            spread = np.sqrt((distribution * np.square(ratios - mean)).sum() / CONTEXTS)
            size *= self.case.noise / spread
        return target

    def _spread(self, values: Array) -> float:
        """Return the standard deviation within contexts of values per word, under the behavior."""
        distribution = np.exp(self.behavior)
        means = (distribution * values).sum(axis=1, keepdims=True)
        return float(np.sqrt((distribution * np.square(values - means)).sum() / CONTEXTS))

    def _rewarding(self, step: Array, random: np.random.Generator) -> Array:
        """Return a token's contributions to the two sums in the reward, [KINDS, 2].

        One direction is half the parameter step and half random; the other is random.
        """
        along = self._unit(self.scores @ np.ravel(step))
        across = self._unit(self.scores @ random.normal(0.0, 1.0, self.scores.shape[1]))
        other = self._unit(self.scores @ random.normal(0.0, 1.0, self.scores.shape[1]))
        return np.stack([self._unit(along + across), other], axis=1)

    def _unit(self, values: Array) -> Array:
        """Scale values of kinds to a mean square of 1 under the target."""
        return values / np.sqrt(self.target_distribution @ np.square(values))

    @cached_property
    def behavior_distribution(self) -> Array:
        """Return the probability of each kind of token under the behavior policy."""
        return np.exp(self.behavior).ravel() / CONTEXTS

    @cached_property
    def target_distribution(self) -> Array:
        """Return the probability of each kind of token under the target."""
        return np.exp(self.target).ravel() / CONTEXTS

    @cached_property
    def log_ratio(self) -> Array:
        """Return target minus behavior log-prob of each kind of token, nats."""
        return (self.target - self.behavior).ravel()

    def lengths(self, sequences: int, random: np.random.Generator) -> NDArray[np.int64]:
        """Draw lengths of sequences."""
        drawn = self.case.length * np.exp(0.2 * random.normal(0.0, 1.0, sequences))
        return np.maximum(np.round(drawn), 1.0).astype(np.int64)

    def advantages(
        self, sums: Array, lengths: Array, random: np.random.Generator
    ) -> tuple[Array, Array]:
        """Draw rewards of sequences in groups of GROUP; returns rewards and advantages."""
        chance = random.normal(0.0, 1.0, len(sums))
        prompts = np.repeat(random.normal(0.0, 0.5, len(sums) // GROUP), GROUP)
        signal = self.case.signal
        one, other = (sums / np.sqrt(lengths)[:, None]).T
        merit = (one + 0.7) * other / np.sqrt(1.49) if self.case.product else one
        score = signal * merit + np.sqrt(1.0 - signal**2) * chance + prompts
        reward = (score > 0.0).astype(np.float64)
        return reward, reward - np.repeat(reward.reshape(-1, GROUP).mean(axis=1), GROUP)

    def batches(self, batch: int = 512) -> Iterator[Trajectories]:
        """Sample the table of the case, in batches of sequences."""
        random = np.random.default_rng(self.case.seed + 1)
        limits = np.cumsum(np.exp(self.behavior), axis=1)
        limits[:, -1] = 1.0
        flat = (limits + np.arange(CONTEXTS)[:, None]).ravel()
        for start in range(0, self.case.sequences, batch):
            count = min(batch, self.case.sequences - start)
            lengths = self.lengths(count, random)
            kinds = np.searchsorted(flat, random.random(lengths.sum()) * CONTEXTS)
            owner = np.repeat(np.arange(count), lengths)
            sums = np.stack(
                [np.bincount(owner, of[kinds], count) for of in self.rewarding.T], axis=1
            )
            reward, _ = self.advantages(sums, lengths, random)
            context, word = np.divmod(kinds, WORDS)
            yield Trajectories(
                first_row=start,
                response_ids=Ragged(
                    (word * IDS_OF_A_WORD + context % IDS_OF_A_WORD).astype(np.int32),
                    np.concatenate([[0], np.cumsum(lengths)]),
                ),
                mask=np.ones(len(kinds), np.bool_),
                log_probs={
                    "rollout": self.behavior.ravel()[kinds],
                    "old": self.target.ravel()[kinds],
                },
                group=((start + np.arange(count)) // GROUP).astype(np.uint64),
                reward=reward if self.case.rewarded else None,
                advantage=None,
            )


def sequence_statistic(
    name: str, log_ratio: Array, counts: Array, sums: Array, lengths: Array
) -> Array:
    """Return the statistic of a rejection by sequence, [sequences]."""
    if name == "sequence":
        return np.exp(sums)
    if name == "geometric":
        return np.exp(sums / lengths)
    assert name == "seq_mean_k3"
    return counts @ (np.expm1(log_ratio) - log_ratio) / lengths


@dataclass(frozen=True)
class Weights:
    """Weights of a correction: a factor per sequence, and a weight per kind of token."""

    factor: Array  # [sequences] 0 for those that are rejected
    of_kinds: Array  # [KINDS] 0 for those that are rejected


def weights_of(correction: Correction, log_ratio: Array, counts: Array) -> Weights:
    """Apply a correction to sequences given by counts of each kind of token."""
    sums, lengths = counts @ log_ratio, counts.sum(axis=1)
    factor, stays = np.ones(len(counts)), np.ones(len(counts))
    of_kinds, keeps = np.ones(len(log_ratio)), np.ones(len(log_ratio))
    ratio = np.exp(log_ratio)
    if (weighting := correction.weighting) is not None:
        lower, upper = weighting.lower_or_reciprocal, weighting.upper
        raw = ratio if weighting.level == "token" else np.exp(np.minimum(sums, 20.0))
        inside = (raw >= lower) & (raw <= upper)
        bounded = {"truncate": np.minimum(raw, upper), "zero": raw * inside, "mask": raw}
        if weighting.level == "token":
            of_kinds = bounded[weighting.outside]
        else:
            factor = bounded[weighting.outside]
    for rejection in correction.rejections:
        lower = -np.inf if rejection.lower is None else rejection.lower
        if rejection.of_tokens:
            assert rejection.statistic == "token"
            keeps = keeps * ((ratio >= lower) & (ratio <= rejection.upper))
        else:
            values = sequence_statistic(rejection.statistic, log_ratio, counts, sums, lengths)
            stays = stays * ((values >= lower) & (values <= rejection.upper))
    return Weights(factor * stays, of_kinds * keeps)


@dataclass
class Moments:
    """Sums over prompt groups for mean and variance of a gradient."""

    groups: int
    gradient: Array  # [dimensions]
    square: float  # of the gradients of groups
    weight: float  # sum over tokens
    tokens: float

    @classmethod
    def of(cls, gradients: Array, weight: float, tokens: float) -> Moments:
        """Sum gradients of sequences, [sequences, dimensions]."""
        of_groups = gradients.reshape(-1, GROUP, gradients.shape[1]).sum(axis=1)
        return cls(
            len(of_groups),
            of_groups.sum(axis=0),
            float(np.square(of_groups).sum()),
            weight,
            tokens,
        )

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.groups + other.groups,
            self.gradient + other.gradient,
            self.square + other.square,
            self.weight + other.weight,
            self.tokens + other.tokens,
        )

    def mean(self, scale: float) -> Array:
        """Return the mean gradient per token, with weights divided by `scale`."""
        return self.gradient / self.tokens / scale

    def variance(self, scale: float) -> float:
        """Return the trace of the covariance of a group's gradient, weights divided by `scale`."""
        own = self.square / self.groups - np.square(self.gradient / self.groups).sum()
        return float(own) * (self.groups / self.tokens / scale) ** 2


@dataclass(frozen=True)
class Truth:
    """True error and efficiency of a candidate, in batches of the table's size."""

    error: float  # E|G - g|^2, weights scaled to a mean of 1
    efficiency: float  # (m . g)^2 / (|g|^2 E|G|^2)


def truths(case: Case, sequences: int = 64 * 1024) -> dict[str, Truth]:
    """Estimate the truth of every candidate, from many sequences of each policy."""
    world, random = World(case), np.random.default_rng(case.seed + 2)
    sums: dict[str, Moments] = {}
    aim: Moments | None = None
    for start in range(0, sequences, AT_A_TIME):
        size = min(AT_A_TIME, sequences - start)
        for distribution, names in (
            (world.behavior_distribution, list(CANDIDATES)),
            (world.target_distribution, [""]),
        ):
            lengths = world.lengths(size, random)
            counts = random.multinomial(lengths, distribution).astype(np.float64)
            _, advantage = world.advantages(counts @ world.rewarding, lengths, random)
            for name in names:
                correction = CANDIDATES[name].correction if name else Correction()
                it = weights_of(correction, world.log_ratio, counts)
                gradients = counts @ (it.of_kinds[:, None] * world.scores)
                gradients *= (it.factor * advantage)[:, None]
                moments = Moments.of(
                    gradients,
                    float(it.factor @ (counts @ it.of_kinds)),
                    float(lengths.sum()),
                )
                if not name:
                    aim = moments if aim is None else aim + moments
                else:
                    sums[name] = sums[name] + moments if name in sums else moments
    assert aim is not None
    groups = case.sequences // GROUP
    return {name: _truth(moments, aim, groups) for name, moments in sums.items()}


def _truth(it: Moments, aim: Moments, groups: int) -> Truth:
    """Compute the truth for batches of a number of prompt groups from the sums."""
    scale = it.weight / it.tokens
    if not scale > 0.0:
        return Truth(np.inf, 0.0)
    exact, of_exact = aim.mean(1.0), aim.variance(1.0) / aim.groups
    mean, noise = it.mean(scale), it.variance(scale)
    away = mean - exact
    bias = max(float(away @ away) - noise / it.groups - of_exact, 0.0)
    square = max(float(mean @ mean) - noise / it.groups, 0.0) + noise / groups
    length = max(float(exact @ exact) - of_exact, 0.0)
    aligned = float(mean @ exact) ** 2
    return Truth(bias + noise / groups, aligned / (length * square) if length * square else 0.0)


def cases() -> list[Case]:
    """Return the benchmark's cases: every noise, length, size and tail, the rest at random."""
    random = np.random.default_rng(5)
    drawn = []
    for noise, length, large, heavy in product(
        (0.01, 0.05, 0.1, 0.2), (40, 400, 4000), (False, True), (False, True)
    ):
        many = 1024 if length == 4000 else 4096
        drawn.append(
            Case(
                noise=noise,
                length=length,
                sequences=many if large else 512,
                heavy=heavy,
                drift=float(random.choice([0.0, 0.5, 1.0])),
                signal=float(random.choice([0.2, 0.4, 0.8])),
                product=bool(random.random() < 0.25),
                rewarded=bool(random.random() < 0.85),
                seed=1000 + len(drawn),
            )
        )
    return drawn


def advice_on(case: Case) -> Recommendation:
    """Return the recommendation on the table of a case."""
    pairs = [pair_of(rows, "rollout", "old") for rows in World(case).batches()]
    rewards = np.concatenate([pair.tokens.rewards for pair in pairs])
    groups = np.concatenate([pair.tokens.cluster for pair in pairs])
    baseline = Baseline.of(groups, rewards) if case.rewarded else None
    return advice_of(state_of_candidates(pairs, baseline))


@dataclass(frozen=True)
class Outcome:
    """Quality of a recommendation: the choice against the best candidate, and against none."""

    case: str
    choice: str  # "none" if nothing is recommended
    least_error: str  # the candidate with the smallest error that violates no constraint
    most_efficient: str
    error: float  # error of the choice / smallest error
    efficiency: float  # efficiency of the choice / largest efficiency
    error_to_none: float
    efficiency_to_none: float


def outcome_of(case: Case, sequences: int = 64 * 1024) -> Outcome:
    """Compare the recommendation on a case with the truth from many sequences."""
    advice, truth = advice_on(case), truths(case, sequences)
    choice = advice.choice or "none"
    allowed = [candidate.name for candidate in advice.candidates if not candidate.refused]
    least = min(allowed, key=lambda name: truth[name].error)
    most = max(allowed, key=lambda name: truth[name].efficiency)
    taken, none = truth[choice], truth["none"]
    return Outcome(
        case.name,
        choice,
        least,
        most,
        taken.error / truth[least].error,
        taken.efficiency / truth[most].efficiency if truth[most].efficiency > 0.0 else 1.0,
        taken.error / none.error,
        taken.efficiency / none.efficiency if none.efficiency > 0.0 else 1.0,
    )


def shares(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the shares of cases in which the targets are met."""
    met = {
        "efficiency within 5% of the best": [it.efficiency >= 0.95 for it in outcomes],
        "squared error within 1.25 times the least": [it.error <= 1.25 for it in outcomes],
        "not worse than no correction by more than 5%": [
            it.error_to_none <= 1.05 and it.efficiency_to_none >= 0.95 for it in outcomes
        ],
    }
    return {aim: round(float(np.mean(flags)), 3) for aim, flags in met.items()}
