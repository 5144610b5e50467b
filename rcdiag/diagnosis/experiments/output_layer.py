"""Experiments on the output head and softmax: caps, rounding, padding rows, missing shards."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Array, Counts, spread_over
from rcdiag.diagnosis.experiments.fit import searched
from rcdiag.diagnosis.experiments.hypothesis_tester import (
    HypothesisTest,
    HypothesisTester,
    experiment,
    smallest,
)
from rcdiag.diagnosis.experiments.thresholds import LEAST_GAIN, SCANNED
from rcdiag.diagnosis.experiments.trainer_distribution import log_sum, scaled
from rcdiag.diagnosis.thresholds import HALF

CAPS = tuple(np.geomspace(2.0, 200.0, 12).tolist())
RANKS = (2, 4, 8, 16)
# Range of log(number of padding rows with logit 0) that is searched.
PADDING = (-4.0, 14.0)


def bfloat16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round float32 values to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


@experiment(
    slugs=("logit-softcap",),
)
def softcap(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try logits that are capped by cap tanh(logit / cap)."""

    def predicted(cap: float, some: Counts) -> Array:
        few = tester.distribution.take(some)
        logits: NDArray[np.float32] = np.float32(cap) * np.tanh(few.logits / np.float32(cap))
        return few.log_prob_under(scaled(logits, tester.distribution_temperature[some]))

    count = len(tester.distribution)
    some = spread_over(count, SCANNED)
    at = tester.distribution_at[some]
    log_cap, least = searched(
        lambda log_cap: tester.residual_of(predicted(float(np.exp(log_cap)), some), at).nats,
        np.log(CAPS).tolist(),
        steps=12,
    )
    if least > tester.residual_of(tester.side.expected[at], at).nats - LEAST_GAIN:
        return
    cap = float(np.exp(log_cap))
    yield tester.test(
        "logit-softcap",
        f"logits capped at {cap:.3g}",
        predicted(cap, np.arange(count)),
        values={"cap": cap},
    )


@experiment(
    slugs=("bf16-logits",),
)
def bf16_logits(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try logits rounded to bfloat16 before the log-softmax, with the division in bfloat16 or not.

    verl divides by `temperature.to(logits.dtype)`, so that temperature and quotient are rounded.
    """
    temperature = tester.distribution_temperature
    rounded = bfloat16(tester.distribution.logits)
    tried = {"logits rounded to bfloat16": scaled(rounded, temperature)}
    if np.any(temperature != 1.0):
        low = bfloat16(np.asarray(temperature, np.float32)).astype(np.float64)
        words = "logits and temperature rounded to bfloat16 and divided in bfloat16"
        tried[words] = bfloat16(scaled(rounded, low))
    for words, logits in tried.items():
        test = tester.test("bf16-logits", words, tester.distribution.log_prob_under(logits))
        # Any bfloat16 engine rounds its logits, but its other layers round as much: then rounded
        # logits alone explain less.
        if test.explained > HALF:
            yield test


@experiment(
    slugs=("vocabulary-padding",),
)
def padding_rows(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try a softmax that includes padding rows, all with one constant logit."""
    total = log_sum(scaled(tester.distribution.logits, tester.distribution_temperature))
    expected = tester.side.expected[tester.distribution_at]

    def predicted(added: float) -> Array:
        values: Array = expected - np.log1p(np.exp(added - total))
        return values

    added, _ = searched(
        lambda added: tester.residual_of(predicted(added)).nats,
        np.linspace(*PADDING, 10).tolist(),
        steps=16,
    )
    rows = float(np.exp(added))
    words = f"{rows:.3g} padding rows with logit 0 in the softmax"
    yield tester.test("vocabulary-padding", words, predicted(added), values={"rows": rows})


@experiment(
    slugs=("vocab-shard-wrong",),
)
def vocabulary_shards(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try a softmax in which one rank's part of the vocabulary is missing or has logits of 0."""
    distribution = tester.distribution
    if not len(distribution):
        return
    logits = scaled(distribution.logits, tester.distribution_temperature)
    top = logits.max(axis=1).astype(np.float64)
    weights = np.exp(logits - top[:, None].astype(np.float32))
    total = weights.sum(axis=1, dtype=np.float64)
    own = logits[np.arange(len(distribution)), distribution.token] - top

    def attempt(ranks: int, rank: int, *, missing: bool) -> HypothesisTest:
        width = logits.shape[1] // ranks
        part = slice(rank * width, (rank + 1) * width)
        remaining = total - weights[:, part].sum(axis=1, dtype=np.float64)
        if missing:
            predicted = own - np.log(np.maximum(remaining, 1e-12))
        else:
            inside = (distribution.token >= part.start) & (distribution.token < part.stop)
            predicted = np.where(inside, -top, own) - np.log(remaining + width * np.exp(-top))
        what = "is missing from the sum" if missing else "has logits of 0"
        return tester.test(
            "vocab-shard-wrong",
            f"rank {rank} of {ranks} of the vocabulary {what}",
            predicted,
            values={"rank": float(rank), "ranks": float(ranks)},
        )

    for missing in (True, False):
        best = smallest(
            attempt(ranks, rank, missing=missing) for ranks in RANKS for rank in range(ranks)
        )
        assert best is not None
        yield best
