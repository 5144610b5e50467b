"""Experiments on sampling parameters: kept sets, penalties, biases and banned tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Array, Counts, Flags, spread_over
from rcdiag.diagnosis.causes.kept_sets import KEPT_SET_SLUGS
from rcdiag.diagnosis.experiments.fit import (
    golden,
    interval,
    loss_at,
    residuals,
    searched,
)
from rcdiag.diagnosis.experiments.hypothesis_tester import (
    HypothesisTest,
    HypothesisTester,
    experiment,
)
from rcdiag.diagnosis.experiments.thresholds import LEAST_GAIN, SCANNED
from rcdiag.diagnosis.experiments.trainer_distribution import Ranked, log_prob, scaled, softmax
from rcdiag.diagnosis.thresholds import (
    CERTAIN,
    FEWEST,
    FEWEST_OF_PATTERN,
    MOST_IDS,
    PART,
    RARE,
    WITH_A_CHOICE,
)
from rcdiag.diagnosis.validity import Interval

REPETITION = (0.8, 0.9, 0.97, 1.01, 1.03, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0)
ADDED = (-2.0, -1.0, -0.5, -0.2, -0.05, 0.05, 0.2, 0.5, 1.0, 2.0)
BANNED = -30.0  # the bias of a token that cannot be sampled
SEARCHED = 2.5  # nats around a start in which a bias is searched


class SeenTokens(Struct, frozen=True):
    """The ids that occurred before each of some tokens of the distribution."""

    at: Counts  # [tokens] index in the distribution
    prompt: Flags  # [tokens, vocabulary] the prompt has the id
    counts: NDArray[np.float32]  # [tokens, vocabulary] how often the response so far has the id


def seen_before(tester: HypothesisTester, chosen: Counts) -> SeenTokens:
    """Find the ids that occurred before some tokens of the distribution."""
    distribution, sample = tester.distribution, tester.sample
    shape = len(chosen), distribution.logits.shape[1]
    prompt, counts = np.zeros(shape, np.bool_), np.zeros(shape, np.float32)
    for index, at in enumerate(chosen):
        row, position = int(distribution.owner[at]), int(distribution.position[at])
        prompt[index, sample.prompt(row)] = True
        np.add.at(counts[index], sample.response(row)[:position], 1.0)
    return SeenTokens(chosen, prompt, counts)


Logits = NDArray[np.float32]
# Name -> cause, strengths that are tried, and the logits under a penalty of that strength.
PENALTIES_TRIED: dict[
    str, tuple[str, Sequence[float], Callable[[Logits, float, SeenTokens], NDArray[Any]]]
] = {
    "repetition penalty": (
        "repetition-penalty",
        REPETITION,
        lambda logits, strength, seen: np.where(
            seen.prompt | (seen.counts > 0),
            np.where(logits > 0, logits / strength, logits * strength),
            logits,
        ),
    ),
    "presence penalty": (
        "presence-penalty",
        ADDED,
        lambda logits, strength, seen: logits - np.float32(strength) * (seen.counts > 0),
    ),
    "presence penalty, prompt counted": (
        "presence-penalty",
        ADDED,
        lambda logits, strength, seen: (
            logits - np.float32(strength) * (seen.prompt | (seen.counts > 0))
        ),
    ),
    "frequency penalty": (
        "penalty",
        ADDED,
        lambda logits, strength, seen: logits - np.float32(strength) * seen.counts,
    ),
}


@experiment(
    sides=("sampler",),  # whose distribution it is
    slugs=("repetition-penalty", "presence-penalty", "penalty"),
)
def penalties(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try repetition, presence and frequency penalties, each at its best strength."""
    distribution = tester.distribution
    if not len(distribution):
        return

    def predicted(kind: str, strength: float, seen: SeenTokens) -> Array:
        penalised = PENALTIES_TRIED[kind][2]
        logits = penalised(distribution.logits[seen.at], strength, seen)
        temperature = tester.distribution_temperature[seen.at]
        return log_prob(scaled(logits, temperature), distribution.token[seen.at])

    few = seen_before(tester, spread_over(len(distribution), SCANNED))
    at = tester.distribution_at[few.at]

    def loss(kind: str, strength: float) -> float:
        return tester.residual_of(predicted(kind, strength, few), at).nats

    found = []
    for kind, (_, grid, _) in PENALTIES_TRIED.items():
        strength, least = searched(partial(loss, kind), grid, steps=8)
        found.append((least, kind, strength))
    least, kind, strength = min(found)
    if least > tester.residual_of(tester.side.expected[at], at).nats - LEAST_GAIN:
        return
    size = _strength_interval(tester, few.at, lambda one: predicted(kind, one, few), strength)
    # `seen_before` takes much memory: it is computed for a part of the tokens at a time.
    whole = [
        predicted(kind, strength, seen_before(tester, part))
        for part in np.split(
            np.arange(len(distribution)), range(SCANNED, len(distribution), SCANNED)
        )
    ]
    slug = PENALTIES_TRIED[kind][0]
    yield tester.test(
        slug, f"{kind}: {size}", np.concatenate(whole), values={slug.replace("-", "_"): strength}
    )


def _strength_interval(
    tester: HypothesisTester, few: Counts, predicted: Callable[[float], Array], strength: float
) -> Interval:
    """Return a strength with its interval, rows as clusters."""
    at = tester.distribution_at[few]
    sensitivity, resolution = tester.side.sensitivity[at], tester.side.resolution[at]
    scale = tester.residual_of(predicted(strength), at).scale
    _, row = np.unique(tester.distribution.owner[few], return_inverse=True)

    def by_row(value: float) -> Array:
        residual = residuals(tester.side.recorded[at], predicted(value))
        losses = loss_at(residual, sensitivity, scale, resolution)
        return np.bincount(row, losses).astype(np.float64)

    return interval(by_row, strength, 0.01 * max(abs(strength), 0.1))


class BiasedColumn(Struct, frozen=True, kw_only=True):
    """A column's prediction under biases on the logits of some token ids.

    A bias b on token v adds b to the log-prob of v and subtracts log(1 + p (e^b - 1)) from all.
    """

    token: Counts  # [tokens]
    probability: NDArray[np.float32]  # [tokens, vocabulary] without a bias
    expected: Array  # [tokens] nats, without a bias
    recorded: Array  # [tokens] nats
    sensitivity: Array  # [tokens]
    resolution: Array  # [tokens] nats
    noise: float  # scale of an engine's logit noise

    def predicted(self, biases: Mapping[int, float]) -> Array:
        """Return the expected column under biases by token id, [tokens] nats."""
        total, own = np.ones(len(self.token)), np.zeros(len(self.token))
        for token, bias in biases.items():
            total += self.probability[:, token].astype(np.float64) * np.expm1(bias)
            own[self.token == token] += bias
        values: Array = self.expected - np.log(np.maximum(total, 1e-9)) + own
        return values

    def loss(self, biases: Mapping[int, float]) -> float:
        """Return the mean loss under biases, nats per token."""
        residual = residuals(self.recorded, self.predicted(biases))
        return float(loss_at(residual, self.sensitivity, self.noise, self.resolution).mean())

    def fitted(self, biases: Mapping[int, float], token: int, start: float) -> float:
        """Return the bias of one token that fits best, searched around a start."""
        best, _ = golden(
            lambda bias: self.loss({**biases, token: bias}), start - SEARCHED, start + SEARCHED
        )
        return best

    def next_bias(self, biases: Mapping[int, float]) -> tuple[int, float] | None:
        """Return the token id whose bias explains most of what is left, and that bias."""
        sampled = set(self.token.tolist())
        # An id that was sampled is not banned, although a strong bias on it has the same effect on
        # all other ids as a ban.
        starts = [
            (token, start)
            for token, guess in self._candidates(biases)
            for start in (guess, RARE if token in sampled else BANNED)
        ]
        if not starts:
            return None
        _, token, start = min((self.loss({**biases, one: at}), one, at) for one, at in starts)
        return token, self.fitted(biases, token, start) if start > BANNED else start

    def never_sampled(self, token: int, bias: float) -> bool:
        """Tell whether an id is sampled far less often than a positive bias on it would imply."""
        if bias <= 0.0:
            return False
        own = self.probability[:, token].astype(np.float64) * np.exp(bias)
        expected = float((own / (1.0 - self.probability[:, token] + own)).sum())
        return expected > FEWEST and int((self.token == token).sum()) < PART * expected

    def _candidates(self, biases: Mapping[int, float]) -> list[tuple[int, float]]:
        """Return ids that may have a bias, with a first guess of it.

        Either their own tokens have large residuals, or a bias on them would explain, through the
        normalisation, the residuals of all other tokens.
        """
        residual = residuals(self.recorded, self.predicted(biases))
        width = self.noise * self.sensitivity + self.resolution + 1e-4
        weight = 1.0 / width**2
        excess = np.clip(np.clip(np.expm1(-residual), -1.0, 3.0), -30.0 * width, 30.0 * width)
        along = (weight * excess) @ self.probability
        size = np.maximum(weight @ (self.probability**2), 1e-6)
        saved, factor = along**2 / size, along / size
        saved[list(biases)] = 0.0
        found = [
            (int(one), float(np.log(np.clip(1.0 + factor[one], 0.02, 20.0))))
            for one in np.argsort(-saved)[:4]
            if saved[one] > 0
        ]
        ids, of_id, count = np.unique(self.token, return_inverse=True, return_counts=True)
        order = np.argsort(of_id, kind="stable")
        parts = np.split(residual[order], np.cumsum(count)[:-1])
        middle = np.array([np.median(part) for part in parts])
        strength = np.where(count >= FEWEST_OF_PATTERN, np.abs(middle) * np.sqrt(count), 0.0)
        for index in np.argsort(-strength)[:6]:
            if strength[index] > 0 and int(ids[index]) not in biases:
                found.append((int(ids[index]), float(middle[index])))
        return found


@experiment(
    sides=("sampler",),  # whose distribution it is
    slugs=("logit-bias",),
)
def biases(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Find token ids with a positive or negative bias, or a ban.

    Ids are added one by one; each time the one whose bias explains most is taken.
    """
    distribution, side, at = tester.distribution, tester.side, tester.distribution_at
    if not len(distribution):
        return
    column = BiasedColumn(
        token=distribution.token,
        probability=softmax(scaled(distribution.logits, tester.distribution_temperature)),
        expected=side.expected[at],
        recorded=side.recorded[at],
        sensitivity=side.sensitivity[at],
        resolution=side.resolution[at],
        noise=tester.sample.noise,
    )
    biases: dict[int, float] = {}
    least = column.loss({})
    while len(biases) < MOST_IDS and (found := column.next_bias(biases)) is not None:
        token, bias = found
        reached = column.loss({**biases, token: bias})
        gain = (least - reached) * len(column.token)  # nats; the id was chosen among all
        if gain < WITH_A_CHOICE or column.never_sampled(token, bias):
            break
        biases[token], least = bias, reached
    # If all these ids seem to have a bias, the column has another fault.
    if not 0 < len(biases) < MOST_IDS:
        return
    # The first biases were fitted before the others were known: fit them again.
    for token in list(biases) if len(biases) > 1 else []:
        if biases[token] > BANNED:
            biases[token] = column.fitted(biases, token, biases[token])
    names = ", ".join(
        f"{token} {'banned' if bias <= BANNED / 2 else f'{bias:+.2f}'}"
        for token, bias in biases.items()
    )
    yield tester.test(
        "logit-bias",
        f"token ids with a bias: {names}",
        column.predicted(biases),
        values={f"bias_{token}": bias for token, bias in biases.items()},
    )


@experiment(
    sides=("sampler",),  # whose distribution it is
    slugs=("min-tokens",),
)
def min_tokens(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try whether an end token is banned up to a position of the response."""
    distribution = tester.distribution
    ends = [
        token for token in tester.forward.tensors.end_ids if token < distribution.logits.shape[1]
    ]
    if not len(distribution) or not ends:
        return
    probability = distribution.probability[:, ends].sum(axis=1).astype(np.float64)
    allowed = np.maximum(1.0 - probability, 1e-9)
    expected = tester.side.expected[tester.distribution_at]
    own = residuals(tester.side.recorded[tester.distribution_at], expected)
    own_loss = np.abs(own)
    banned_loss = np.abs(own + np.log(allowed))
    order = np.argsort(distribution.position, kind="stable")
    gain = np.cumsum((own_loss - banned_loss)[order])
    if not len(gain) or gain.max() <= 0:
        return
    # The last position at which a ban explains more, and the next one at which it would be visible.
    best = int(np.argmax(gain))
    last = int(distribution.position[order][best])
    later = order[best + 1 :]
    informative = later[np.log(allowed[later]) < CERTAIN]
    upto = int(distribution.position[informative].min()) if len(informative) else last + 1
    predicted = expected - np.where(distribution.position <= last, np.log(allowed), 0.0)
    yield tester.test(
        "min-tokens",
        f"end token banned before token {last + 1}" + (f" to {upto}" if upto > last + 1 else ""),
        predicted,
        values={"min_tokens": float(last + 1)},
    )


TOP_P = (0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.95, 0.97, 0.98, 0.99, 0.995)
TOP_K = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 16, 20, 24, 25, 30, 32, 40, 50, 64, 80, 100, 128, 200)
MIN_P = tuple(np.geomspace(0.005, 0.5, 14).tolist())


@experiment(
    sides=("sampler",),  # whose distribution it is
    slugs=KEPT_SET_SLUGS,
)
def kept_sets(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try top-p, top-k and min-p, each at its best value."""
    ranked = Ranked.of(tester.distribution, tester.distribution_temperature)
    expected = tester.side.expected[tester.distribution_at]
    rules: tuple[tuple[str, Callable[[float], Array], Sequence[float]], ...] = (
        ("top-p", ranked.top_p, TOP_P),
        ("top-k", lambda k: ranked.top_k(round(k)), TOP_K),
        ("min-p", ranked.min_p, MIN_P),
    )
    for rule, kept, grid in rules:

        def loss(value: float, kept: Callable[[float], Array] = kept) -> float:
            return tester.residual_of(expected - np.log(kept(value))).nats

        value = min(grid, key=loss) if rule == "top-k" else searched(loss, grid, steps=9)[0]
        predicted = expected - np.log(kept(value))
        values = {rule.replace("-", "_"): float(value)}
        yield tester.test(f"{rule}-renormalised", f"{rule} {value:.3g}", predicted, values=values)
