"""Experiments on the output head and the softmax: caps, rounding, padding rows, lost shards."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rcdiag.diagnosis.experiments.fit import searched
from rcdiag.diagnosis.experiments.hypothesis_tester import (
    Experiment,
    HypothesisTest,
    HypothesisTester,
)
from rcdiag.diagnosis.experiments.trainer_distribution import log_sum, scaled

CAPS = tuple(np.geomspace(2.0, 200.0, 12).tolist())
RANKS = (2, 4, 8, 16)
# Rows of padding that a head may have, as the logarithm of as many with logit 0.
PADDING = (-4.0, 14.0)


def bfloat16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round float32 values to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


def run_softcap(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try logits that are capped by cap tanh(logit / cap)."""
    distribution = tester.distribution
    some = np.unique(
        np.linspace(0, len(distribution) - 1, min(1_500, len(distribution))).astype(np.int64)
    )
    few = distribution.take(some)
    at, temperature = tester.distribution_at[some], tester.distribution_temperature[some]

    def capped(logits: NDArray[np.float32], cap: float) -> NDArray[np.float32]:
        values: NDArray[np.float32] = np.float32(cap) * np.tanh(logits / np.float32(cap))
        return values

    def loss(log_cap: float) -> float:
        logits = scaled(capped(few.logits, float(np.exp(log_cap))), temperature)
        return tester.residual_of(few.log_prob_under(logits), at).nats

    log_cap, least = searched(loss, np.log(CAPS).tolist(), steps=12)
    if least > tester.residual_of(tester.side.expected[at], at).nats - 0.02:
        return
    cap = float(np.exp(log_cap))
    predicted = distribution.log_prob_under(
        scaled(capped(distribution.logits, cap), tester.distribution_temperature)
    )
    yield tester.test(
        "softcap",
        "logit-softcap",
        f"logits capped at {cap:.3g}",
        predicted,
        tester.distribution_at,
        values={"cap": cap},
    )


def run_rounded(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try logits rounded to bfloat16 before the log-softmax."""
    distribution = tester.distribution
    logits = scaled(bfloat16(distribution.logits), tester.distribution_temperature)
    test = tester.test(
        "bf16-logits",
        "bf16-logits",
        "logits rounded to bfloat16",
        distribution.log_prob_under(logits),
        tester.distribution_at,
    )
    # An engine in bfloat16 rounds its logits too, after a decoder that rounds as much.
    if test.explained > 0.6:
        yield test


def run_padding(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try a softmax that takes in rows of padding, whose logits are one constant."""
    distribution = tester.distribution
    total = log_sum(scaled(distribution.logits, tester.distribution_temperature))
    expected = tester.side.expected[tester.distribution_at]

    def loss(added: float) -> float:
        return tester.residual_of(
            expected - np.log1p(np.exp(added - total)), tester.distribution_at
        ).nats

    added, _ = searched(loss, np.linspace(*PADDING, 10).tolist(), steps=16)
    predicted = expected - np.log1p(np.exp(added - total))
    yield tester.test(
        "padding-rows",
        "vocabulary-padding",
        f"{np.exp(added):.3g} padding rows with logit 0 in the softmax",
        predicted,
        tester.distribution_at,
        values={"rows": float(np.exp(added))},
    )


def run_shards(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try a vocabulary of which one rank's part is missing from the sum, or has logits of 0."""
    distribution = tester.distribution
    if not len(distribution):
        return
    logits = scaled(distribution.logits, tester.distribution_temperature)
    top = logits.max(axis=1).astype(np.float64)
    weights = np.exp(logits - top[:, None].astype(np.float32))
    total = weights.sum(axis=1, dtype=np.float64)
    own = logits[np.arange(len(distribution)), distribution.token] - top
    vocabulary = logits.shape[1]
    for missing in (True, False):
        best: HypothesisTest | None = None
        for ranks in RANKS:
            width = vocabulary // ranks
            for rank in range(ranks):
                part = slice(rank * width, (rank + 1) * width)
                remaining = total - weights[:, part].sum(axis=1, dtype=np.float64)
                inside = (distribution.token >= part.start) & (distribution.token < part.stop)
                if missing:
                    predicted = own - np.log(np.maximum(remaining, 1e-12))
                else:
                    remaining = remaining + width * np.exp(-top)
                    predicted = np.where(inside, -top, own) - np.log(remaining)
                what = "is missing from the sum" if missing else "has logits of 0"
                test = tester.test(
                    "vocabulary-shards",
                    "vocab-shard-wrong",
                    f"rank {rank} of {ranks} of the vocabulary {what}",
                    predicted,
                    tester.distribution_at,
                    values={"rank": float(rank), "ranks": float(ranks)},
                )
                if best is None or test.residual.nats < best.residual.nats:
                    best = test
        if best is not None:
            yield best


SOFTCAP = Experiment(
    name="softcap",
    slugs=("logit-softcap",),
    asks="Are the logits capped, and at which value?",
    run=run_softcap,
)
ROUNDED_LOGITS = Experiment(
    name="bf16-logits",
    slugs=("bf16-logits",),
    asks="Were the logits rounded to bfloat16?",
    run=run_rounded,
)
PADDING_ROWS = Experiment(
    name="padding-rows",
    slugs=("vocabulary-padding",),
    asks="Does the softmax take in rows of padding?",
    run=run_padding,
)
VOCABULARY_SHARDS = Experiment(
    name="vocabulary-shards",
    slugs=("vocab-shard-wrong",),
    asks="Is one rank's part of the vocabulary missing or zero?",
    run=run_shards,
)
