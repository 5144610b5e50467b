"""Experiments on the model's function: rotary base, position scale, norms, windows, caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np

from rcdiag.diagnosis.case import Counts
from rcdiag.diagnosis.experiments.fit import golden
from rcdiag.diagnosis.experiments.hypothesis_tester import (
    HypothesisTest,
    HypothesisTester,
    experiment,
    smallest,
)
from rcdiag.diagnosis.experiments.thresholds import GAIN, OUTLYING, SLIGHT_GAIN
from rcdiag.diagnosis.thresholds import FEW, FEWEST
from rcdiag.engines.changes import (
    Change,
    KeyValueCache,
    NormEpsilon,
    PositionScale,
    Quantised,
    RotaryBase,
    SlidingWindow,
)

THETA = (0.01, 0.1, 0.25, 0.5, 0.667, 0.8, 1.25, 1.5, 2.0, 4.0, 10.0, 100.0)
SCALE = (0.125, 0.25, 0.5, 0.667, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0, 8.0)
EPSILON = tuple(10.0**power for power in (-8, -7, -5, -4, -3, -2, -1, 0))
WINDOWS = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096)
CACHE_SCALES = tuple(2.0**power for power in range(-8, 3))


def scanned(
    tester: HypothesisTester,
    slug: str,
    words: Callable[[float], str],
    change: Callable[[float], Change],
    grid: Sequence[float],
    *,
    steps: int = 8,
) -> Iterator[HypothesisTest]:
    """Scan a strength on a logarithmic scale on a few rows, and try the best one on more rows.

    If that leaves more than noise, the search is repeated on these rows: strengths that fit a few
    rows equally well may differ a lot on longer rows.
    """

    def attempts(rows: Counts) -> tuple[dict[float, HypothesisTest], Callable[[float], float]]:
        """Return tests by log strength, none so far, and the loss, each call of which adds one."""
        tests: dict[float, HypothesisTest] = {}

        def loss(log_value: float) -> float:
            value = float(np.exp(log_value))
            test = tester.test_pass(
                slug, words(value), change=change(value), values={"value": value}, rows=rows
            )
            if test is None or (tests and tester.out_of_time):
                return np.inf
            tests[log_value] = test
            return test.residual.nats

        return tests, loss

    def refine(loss: Callable[[float], float]) -> None:
        order = sorted(few)
        index = order.index(min(few, key=lambda at: few[at].residual.nats))
        golden(loss, order[max(index - 1, 0)], order[min(index + 1, len(order) - 1)], steps=steps)

    noise = tester.sample.noise
    few, loss = attempts(tester.screen)
    for value in grid:
        if tester.out_of_time:
            return
        loss(float(np.log(value)))
    best = smallest(few.values())
    if best is not None and best.gain > SLIGHT_GAIN and not best.residual.within(noise):
        refine(loss)
        best = smallest(few.values())
    if best is not None and best.gain > GAIN:
        confirmed, loss = attempts(tester.confirm)
        loss(float(np.log(best.values["value"])))
        first = smallest(confirmed.values())
        if first is not None and not first.residual.within(noise):
            refine(loss)
        best = smallest(confirmed.values()) or best
    if best is not None:
        yield best


@experiment(
    slugs=("rope-theta",),
    passes=lambda tester: float(len(THETA) + len(SCALE) + 8),
    worth=lambda tester: 6.0,
)
def rotary(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Scan the rotary base, and a factor of the positions."""
    base = "rotary base {:.3g} times the checkpoint's"
    yield from scanned(tester, "rope-theta", base.format, RotaryBase, THETA)
    yield from scanned(tester, "rope-theta", "positions times {:.3g}".format, PositionScale, SCALE)


@experiment(
    slugs=("norm-eps",),
    passes=lambda tester: float(len(EPSILON) + 8),
    worth=lambda tester: 3.0,
)
def norm_epsilon(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Scan the epsilon of all norms."""
    words = "epsilon {:.2g} in all norms"
    yield from scanned(tester, "norm-eps", words.format, NormEpsilon, EPSILON)


def onset(tester: HypothesisTester) -> int | None:
    """Return the position in the whole sequence from which on tokens are off; None without one.

    Enough tokens must be off, and enough lie before that position, few of which are off.
    """
    at, prompts = tester.side.known_at, tester.sample.case.prompt_ids
    assert prompts is not None
    place = prompts.lengths[tester.sample.owner[at]] + tester.sample.position[at]
    if tester.far_off.sum() < FEWEST:
        return None
    first = int(np.quantile(place[tester.far_off], FEW))
    return first if (place < first).sum() > FEWEST else None


@experiment(
    slugs=("sliding-window",),
    passes=lambda tester: 8.0,
    worth=lambda tester: 4.0 if onset(tester) is not None else 0.5,
)
def window(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try attention windows whose size is near the position from which on tokens are off."""

    @cache
    def attempt(size: int) -> HypothesisTest | None:
        return tester.test_pass(
            "sliding-window",
            f"attention over the last {size} tokens",
            change=SlidingWindow(size),
            values={"tokens": float(size)},
        )

    began = onset(tester)
    longest = max(len(tester.passage(int(row)).ids) for row in tester.screen)
    wanted = [size for size in WINDOWS if size < longest]
    if began is not None:
        wanted = sorted(wanted, key=lambda size: abs(size - began))[:4]
    best = tester.best_of(attempt(size) for size in wanted)
    step = 16
    while best is not None and best.gain > GAIN and step and not tester.out_of_time:
        if best.residual.within(tester.sample.noise):
            break
        centre = int(best.values["tokens"])
        nearby = [size for size in (centre - step, centre + step) if size >= 1]
        best = smallest([best, *map(attempt, nearby)])
        step //= 2
    if best is not None:
        yield tester.confirmed(best)


@experiment(
    slugs=("fp8-kv-cache",),
    passes=lambda tester: float(len(CACHE_SCALES)),
    worth=lambda tester: 3.0 if _small(tester) else 0.2,
)
def kv_cache(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try keys and values stored in float8, with scale 1 and with other scales."""
    words = "keys and values in float8, scale {:.3g}"
    yield from scanned(tester, "fp8-kv-cache", words.format, KeyValueCache, CACHE_SCALES, steps=0)


# Cause, words, and number format of the weights.
QUANTISED = (
    ("fp8-weights", "float8 weights, one scale per tensor", Quantised("fp8", "tensor")),
    ("fp8-weights", "float8 weights, one scale per channel", Quantised("fp8", "channel")),
    ("int8-weights", "int8 weights, one scale per tensor", Quantised("int8", "tensor")),
    ("int8-weights", "int8 weights, one scale per channel", Quantised("int8", "channel")),
    *(
        ("int4-weights", f"int4 weights in groups of {size}", Quantised("int4", "group", size))
        for size in (32, 64, 128)
    ),
    ("int4-weights", "int4 weights, one scale per channel", Quantised("int4", "channel")),
    *(
        (
            "int4-weights",
            f"int4 weights in groups of {size} outside attention",
            Quantised("int4", "group", size, attention=False),
        )
        for size in (64, 128, 32)
    ),
)


@experiment(
    slugs=("fp8-weights", "int8-weights", "int4-weights"),
    passes=lambda tester: float(len(QUANTISED)),
    worth=lambda tester: 6.0 if _small(tester) else 0.2,
)
def quantised(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try weights rounded to float8, int8 and int4."""
    best = tester.best_of(
        tester.test_pass(slug, words, change=change) for slug, words, change in QUANTISED
    )
    if best is not None:
        yield tester.confirmed(best, SLIGHT_GAIN)


def _small(tester: HypothesisTester) -> bool:
    """Tell whether the sampler's residual is small enough to be that of a low precision."""
    sampler = tester.side.name == "sampler"
    return sampler and tester.side.residual.scale < OUTLYING * tester.sample.noise


FUNCTIONS = (rotary, norm_epsilon, window, kv_cache, quantised)
