"""Experiments on sampling parameters: kept sets, penalties, biases and banned tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from rcdiag.diagnosis.experiments.fit import (
    Estimate,
    golden,
    interval,
    loss_at,
    residuals,
    searched,
)
from rcdiag.diagnosis.experiments.hypothesis_tester import (
    Array,
    Counts,
    Experiment,
    HypothesisTest,
    HypothesisTester,
)
from rcdiag.diagnosis.experiments.trainer_distribution import Ranked, log_prob, scaled, softmax

SCANNED = 1_500  # tokens on which strengths are searched
REPETITION = (0.8, 0.9, 0.97, 1.01, 1.03, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0)
ADDED = (-2.0, -1.0, -0.5, -0.2, -0.05, 0.05, 0.2, 0.5, 1.0, 2.0)
MOST_BIASED = 6  # most token ids with a bias; if as many are found the column has another fault
BANNED = -30.0  # the bias of a token that cannot be sampled
HELD_BACK = -3.0  # start of the search for the bias of an id that is rarely sampled
FEW = 3  # occurrences from which on an id's own bias is estimated


def seen_before(
    tester: HypothesisTester, chosen: Counts
) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
    """Return which ids the prompt has, and how often the response so far has each.

    Both are [tokens, vocabulary].
    """
    distribution, sample = tester.distribution, tester.sample
    vocabulary = distribution.logits.shape[1]
    prompt = np.zeros((len(chosen), vocabulary), np.bool_)
    counts = np.zeros((len(chosen), vocabulary), np.float32)
    for index, at in enumerate(chosen):
        row, position = int(distribution.owner[at]), int(distribution.position[at])
        prompt[index, sample.prompt(row)] = True
        np.add.at(counts[index], sample.response(row)[:position], 1.0)
    return prompt, counts


def run_penalties(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try repetition, presence and frequency penalties, each at its best strength."""
    distribution = tester.distribution
    if not len(distribution):
        return
    few = np.unique(
        np.linspace(0, len(distribution) - 1, min(SCANNED, len(distribution))).astype(np.int64)
    )
    every = np.arange(len(distribution))
    slugs = {
        "repetition penalty": "repetition-penalty",
        "presence penalty": "presence-penalty",
        "presence penalty, prompt counted": "presence-penalty",
        "frequency penalty": "penalty",
    }
    seen = {"few": seen_before(tester, few)}

    def predicted(kind: str, strength: float, chosen: Counts, which: str) -> Array:
        prompt, counts = seen[which]
        logits = distribution.logits[chosen]
        if kind == "repetition penalty":
            known = prompt | (counts > 0)
            moved = np.where(logits > 0, logits / strength, logits * strength)
            logits = np.where(known, moved, logits)
        elif kind == "presence penalty":
            logits = logits - np.float32(strength) * (counts > 0).astype(np.float32)
        elif kind == "presence penalty, prompt counted":
            seen_ids = (prompt | (counts > 0)).astype(np.float32)
            logits = logits - np.float32(strength) * seen_ids
        else:
            logits = logits - np.float32(strength) * counts
        return log_prob(
            scaled(logits, tester.distribution_temperature[chosen]), distribution.token[chosen]
        )

    found = []
    for kind in slugs:
        grid = REPETITION if kind == "repetition penalty" else ADDED

        def loss(strength: float, kind: str = kind) -> float:
            return tester.residual_of(
                predicted(kind, strength, few, "few"), tester.distribution_at[few]
            ).nats

        strength, least = searched(loss, grid, steps=8)
        found.append((least, kind, strength))
    least, kind, strength = min(found)
    if (
        least
        > tester.residual_of(
            tester.side.expected[tester.distribution_at[few]], tester.distribution_at[few]
        ).nats
        - 0.02
    ):
        return
    size = _strength_interval(tester, few, lambda at: predicted(kind, at, few, "few"), strength)
    for start in range(0, len(every), SCANNED):
        seen[f"{start}"] = seen_before(tester, every[start : start + SCANNED])
    whole = np.concatenate(
        [
            predicted(kind, strength, every[start : start + SCANNED], f"{start}")
            for start in range(0, len(every), SCANNED)
        ]
    )
    yield tester.test(
        "penalties",
        slugs[kind],
        f"{kind}: {size}",
        whole,
        tester.distribution_at,
        values={slugs[kind].replace("-", "_"): strength},
    )


def _strength_interval(
    tester: HypothesisTester, few: Counts, predicted: Callable[[float], Array], strength: float
) -> Estimate:
    """Return a strength with its interval, rows as clusters."""
    at = tester.distribution_at[few]
    sensitivity, resolution = tester.side.sensitivity[at], tester.side.resolution[at]
    scale = tester.residual_of(predicted(strength), at).scale
    _, row = np.unique(tester.distribution.owner[few], return_inverse=True)

    def by_row(value: float) -> Array:
        residual = residuals(tester.side.recorded[at], predicted(value))
        return np.bincount(row, loss_at(residual, sensitivity, scale, resolution)).astype(
            np.float64
        )

    return interval(by_row, strength, 0.01 * max(abs(strength), 0.1))


def run_biases(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Find token ids with a bias: those that were pushed or held back, and those banned.

    A bias b of token v adds b to its own log-prob and takes log(1 + p (e^b - 1)) off all. Ids are
    taken one by one, the one first that explains most.
    """
    distribution = tester.distribution
    if not len(distribution):
        return
    probability = softmax(scaled(distribution.logits, tester.distribution_temperature))
    expected = tester.side.expected[tester.distribution_at]
    sensitivity, resolution = (
        tester.side.sensitivity[tester.distribution_at],
        tester.side.resolution[tester.distribution_at],
    )
    recorded = tester.side.recorded[tester.distribution_at]
    biases: dict[int, float] = {}

    def predicted(biases: Mapping[int, float]) -> Array:
        total, own = np.ones(len(distribution)), np.zeros(len(distribution))
        for token, bias in biases.items():
            total += probability[:, token].astype(np.float64) * np.expm1(bias)
            own[distribution.token == token] += bias
        values: Array = expected - np.log(np.maximum(total, 1e-9)) + own
        return values

    def loss(biases: Mapping[int, float]) -> float:
        residual = residuals(recorded, predicted(biases))
        return float(
            loss_at(residual, sensitivity, max(tester.sample.noise, 1e-3), resolution).mean()
        )

    def with_bias(token: int, bias: float) -> float:
        return loss({**biases, token: bias})

    least, sampled = loss({}), set(distribution.token.tolist())
    for _ in range(MOST_BIASED):
        residual = residuals(recorded, predicted(biases))
        found: list[tuple[float, int, float]] = []
        width = tester.sample.noise * sensitivity + resolution + 1e-4
        for token, guess in _candidates(
            distribution.token, residual, width, probability, set(biases)
        ):
            # An id that was sampled is not banned, though its bias may be as good as a ban for all
            # others.
            for start in (guess, HELD_BACK if token in sampled else BANNED):
                found.append((loss({**biases, token: start}), token, start))
        if not found:
            break
        _, token, start = min(found)
        if start > BANNED:
            start, _ = golden(partial(with_bias, token), start - 2.5, start + 2.5)
        reached = loss({**biases, token: start})
        if reached > least - 0.003 or _never_sampled(distribution.token, probability, token, start):
            break
        biases[token], least = start, reached
    if not 0 < len(biases) < MOST_BIASED:
        return
    # The first ids were fitted while others were still off.
    for token in list(biases) if len(biases) > 1 else []:
        if biases[token] > BANNED:
            biases[token], _ = golden(
                partial(with_bias, token), biases[token] - 1.5, biases[token] + 1.5
            )
    names = ", ".join(
        f"{token} {'banned' if bias <= BANNED / 2 else f'{bias:+.2f}'}"
        for token, bias in biases.items()
    )
    yield tester.test(
        "biases",
        "logit-bias",
        f"token ids with a bias: {names}",
        predicted(biases),
        tester.distribution_at,
        values={f"bias_{token}": bias for token, bias in biases.items()},
    )


def _never_sampled(
    tokens: Counts, probability: NDArray[np.float32], token: int, bias: float
) -> bool:
    """Tell whether a favoured id is hardly sampled: a sampler with that bias would sample it."""
    if bias <= 0.0:
        return False
    own = probability[:, token].astype(np.float64) * np.exp(bias)
    expected = float((own / (1.0 - probability[:, token] + own)).sum())
    return expected > 10.0 and int((tokens == token).sum()) < 0.3 * expected


def _candidates(
    token: Counts,
    residual: Array,
    width: Array,
    probability: NDArray[np.float32],
    taken: set[int],
) -> list[tuple[int, float]]:
    """Return ids that may have a bias, with a guess of it; `width` is the noise, [tokens].

    Some are off themselves when sampled; for others a bias would explain the shift of all remaining
    tokens through the normalisation.
    """
    weight = 1.0 / width**2
    excess = np.clip(np.clip(np.expm1(-residual), -1.0, 3.0), -30.0 * width, 30.0 * width)
    along = (weight * excess) @ probability
    size = np.maximum(weight @ (probability**2), 1e-6)
    saved = along**2 / size
    factor = along / size
    saved[list(taken)] = 0.0
    found = [
        (int(one), float(np.log(np.clip(1.0 + factor[one], 0.02, 20.0))))
        for one in np.argsort(-saved)[:4]
        if saved[one] > 0
    ]
    ids, of_id, count = np.unique(token, return_inverse=True, return_counts=True)
    order = np.argsort(of_id, kind="stable")
    middle = np.array(
        [np.median(part) for part in np.split(residual[order], np.cumsum(count)[:-1])]
    )
    strength = np.where(count >= FEW, np.abs(middle) * np.sqrt(count), 0.0)
    for index in np.argsort(-strength)[:6]:
        if strength[index] > 0 and int(ids[index]) not in taken:
            found.append((int(ids[index]), float(middle[index])))
    return found


def run_min_tokens(tester: HypothesisTester) -> Iterator[HypothesisTest]:
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
    # The last position at which banning still explains more, and where it next would show.
    best = int(np.argmax(gain))
    last = int(distribution.position[order][best])
    informative = order[best + 1 :][probability[order[best + 1 :]] > 1e-3]
    upto = int(distribution.position[informative].min()) if len(informative) else last + 1
    predicted = expected - np.where(distribution.position <= last, np.log(allowed), 0.0)
    yield tester.test(
        "min-tokens",
        "min-tokens",
        f"end token banned before token {last + 1}" + (f" to {upto}" if upto > last + 1 else ""),
        predicted,
        tester.distribution_at,
        values={"min_tokens": float(last + 1)},
    )


PENALTIES = Experiment(
    name="penalties",
    sides=("sampler",),  # whose distribution it is
    slugs=("repetition-penalty", "presence-penalty", "penalty"),
    asks="Is a repetition, presence or frequency penalty in the log-probs, and how strong?",
    run=run_penalties,
)
BIASES = Experiment(
    name="biases",
    sides=("sampler",),  # whose distribution it is
    slugs=("logit-bias",),
    asks="Which token ids have a bias in the log-probs, or are banned?",
    run=run_biases,
)
MIN_TOKENS = Experiment(
    name="min-tokens",
    sides=("sampler",),  # whose distribution it is
    slugs=("min-tokens",),
    asks="Is the end token banned up to a length?",
    run=run_min_tokens,
)


TOP_P = np.array([0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.95, 0.97, 0.98, 0.99, 0.995])
TOP_K = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 16, 20, 24, 25, 30, 32, 40, 50, 64, 80, 100, 128, 200)
MIN_P = np.geomspace(0.005, 0.5, 14)


def run_kept_sets(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try the three rules, each at the strength that suits it best."""
    ranked = Ranked.of(tester.distribution, tester.distribution_temperature)
    expected = tester.side.expected[tester.distribution_at]
    rules: tuple[tuple[str, str, Callable[[float], Array], Sequence[float], bool], ...] = (
        ("top-p-renormalised", "top-p", ranked.top_p, TOP_P.tolist(), True),
        ("top-k-renormalised", "top-k", lambda k: ranked.top_k(round(k)), TOP_K, False),
        ("min-p-renormalised", "min-p", ranked.min_p, MIN_P.tolist(), True),
    )
    for slug, rule, kept, grid, between in rules:

        def loss(value: float, kept: Callable[[float], Array] = kept) -> float:
            return tester.residual_of(expected - np.log(kept(value)), tester.distribution_at).nats

        losses = [loss(float(value)) for value in grid]
        best = int(np.argmin(losses))
        value = float(grid[best])
        if between:
            low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
            finer, least = golden(loss, float(low), float(high), steps=9)
            value = finer if least < losses[best] else value
        predicted = expected - np.log(kept(value))
        yield tester.test(
            "kept-sets",
            slug,
            f"{rule} {value:.3g}",
            predicted,
            tester.distribution_at,
            values={rule.replace("-", "_"): value},
        )


KEPT_SETS = Experiment(
    name="kept-sets",
    sides=("sampler",),  # whose distribution it is
    slugs=("top-p-renormalised", "top-k-renormalised", "min-p-renormalised"),
    asks="Are the log-probs renormalised over what top-p, top-k or min-p keeps?",
    run=run_kept_sets,
)
