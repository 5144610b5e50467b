"""Experiments on the model's function: rotary base, position scale, norms, windows, caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from rcdiag.diagnosis.experiments.fit import golden
from rcdiag.diagnosis.experiments.hypothesis_tester import (
    GAIN,
    Experiment,
    HypothesisTest,
    HypothesisTester,
)
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
    name: str,
    slug: str,
    words: Callable[[float], str],
    change: Callable[[float], Change],
    grid: Sequence[float],
    *,
    steps: int = 8,
) -> Iterator[HypothesisTest]:
    """Scan a strength by its logarithm on a few rows; the best one is tried on more."""
    tests: dict[float, HypothesisTest] = {}

    def loss(log_value: float) -> float:
        value = float(np.exp(log_value))
        test = tester.test_pass(name, slug, words(value), tester.screen, change(value))
        if test is None:
            return np.inf
        tests[log_value] = test
        return test.residual.nats

    def confirm(log_value: float) -> HypothesisTest | None:
        value = float(np.exp(log_value))
        return tester.test_pass(
            name, slug, words(value), tester.confirm, change(value), values={"value": value}
        )

    for value in grid:
        if tester.out_of_time:
            return
        loss(float(np.log(value)))
    if not tests:
        return
    best = min(tests, key=lambda at: tests[at].residual.nats)
    if tests[best].gain > 0.05 and not tests[best].residual.within(tester.sample.noise):
        order = sorted(tests)
        index = order.index(best)
        ends = order[max(index - 1, 0)], order[min(index + 1, len(order) - 1)]
        golden(loss, *ends, steps=steps)
        best = min(tests, key=lambda at: tests[at].residual.nats)
    test = tests[best]
    if test.gain > GAIN:
        test = _confirmed(tester, test, best, sorted(tests), confirm, steps)
    yield test


def _confirmed(
    tester: HypothesisTester,
    test: HypothesisTest,
    best: float,
    tried: Sequence[float],
    confirm: Callable[[float], HypothesisTest | None],
    steps: int,
) -> HypothesisTest:
    """Try the best strength on more rows, and search around it where it leaves more than noise.

    The few rows of a scan may leave strengths alike that are far apart on longer rows.
    """
    tests: dict[float, HypothesisTest] = {}

    def loss(log_value: float) -> float:
        found = confirm(log_value)
        if found is None or tester.out_of_time:
            return np.inf
        tests[log_value] = found
        return found.residual.nats

    loss(best)
    if not tests or tests[best].residual.within(tester.sample.noise):
        return tests.get(best, test)
    index = tried.index(best)
    golden(loss, tried[max(index - 1, 0)], tried[min(index + 1, len(tried) - 1)], steps=steps)
    return min(tests.values(), key=lambda one: one.residual.nats)


def run_rotary(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Scan the rotary base, and a factor of the positions."""
    yield from scanned(
        tester,
        "rotary",
        "rope-theta",
        lambda value: f"rotary base {value:.3g} times the checkpoint's",
        RotaryBase,
        THETA,
    )
    yield from scanned(
        tester,
        "rotary",
        "rope-theta",
        lambda value: f"positions times {value:.3g}",
        PositionScale,
        SCALE,
    )


def run_epsilon(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Scan the epsilon of all norms."""
    yield from scanned(
        tester,
        "norm-epsilon",
        "norm-eps",
        lambda value: f"epsilon {value:.2g} in all norms",
        NormEpsilon,
        EPSILON,
    )


def onset(tester: HypothesisTester) -> int | None:
    """Return the place in the whole sequence from which on tokens are off, None without one."""
    side, sample = tester.side, tester.sample
    at = side.known_at
    prompts = sample.case.prompt_ids
    assert prompts is not None
    place = prompts.lengths[sample.owner[at]] + sample.position[at]
    residual = np.abs(side.recorded[at] - side.expected[at])
    off = residual > 20.0 * tester.sample.noise * side.sensitivity[at] + 0.02
    if off.sum() < 10:
        return None
    first = int(np.quantile(place[off], 0.002))
    return first if (place < first).sum() > 50 else None


def run_window(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try windows of attention around the place from which on tokens are off."""
    began = onset(tester)
    longest = max(len(tester.passage(int(row)).ids) for row in tester.screen)
    wanted = [size for size in WINDOWS if size < longest]
    if began is not None:
        wanted.sort(key=lambda size: abs(size - began))
        wanted = wanted[:4]
    best: HypothesisTest | None = None
    tried: set[int] = set()

    def attempt(size: int) -> None:
        nonlocal best
        if size in tried or size < 1 or tester.out_of_time:
            return
        tried.add(size)
        test = tester.test_pass(
            "window",
            "sliding-window",
            f"attention over the last {size} tokens",
            tester.screen,
            SlidingWindow(size),
            values={"tokens": float(size)},
        )
        if test is not None and (best is None or test.residual.nats < best.residual.nats):
            best = test

    for size in wanted:
        attempt(size)
    step = 16
    while (
        best is not None
        and best.gain > GAIN
        and step
        and not best.residual.within(tester.sample.noise)
    ):
        centre = int(best.values["tokens"])
        attempt(centre - step)
        attempt(centre + step)
        step //= 2
    if best is not None and best.gain > GAIN:
        size = int(best.values["tokens"])
        best = (
            tester.test_pass(
                "window", "sliding-window", best.setting, tester.confirm, SlidingWindow(size),
                values=best.values,
            )
            or best
        )  # fmt: skip
    if best is not None:
        yield best


def run_cache(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try keys and values held in float8, at scale 1 and at others."""
    yield from scanned(
        tester,
        "kv-cache",
        "fp8-kv-cache",
        lambda value: f"keys and values in float8, scale {value:.3g}",
        KeyValueCache,
        CACHE_SCALES,
        steps=0,
    )


QUANTISED = (
    ("fp8-weights", "float8 weights, one scale per tensor", Quantised("fp8", "tensor")),
    ("fp8-weights", "float8 weights, one scale per channel", Quantised("fp8", "channel")),
    ("int8-weights", "int8 weights, one scale per tensor", Quantised("int8", "tensor")),
    ("int8-weights", "int8 weights, one scale per channel", Quantised("int8", "channel")),
    ("int4-weights", "int4 weights in groups of 32", Quantised("int4", "group", 32)),
    ("int4-weights", "int4 weights in groups of 64", Quantised("int4", "group", 64)),
    ("int4-weights", "int4 weights in groups of 128", Quantised("int4", "group", 128)),
    ("int4-weights", "int4 weights, one scale per channel", Quantised("int4", "channel")),
    (
        "int4-weights",
        "int4 weights in groups of 64 outside attention",
        Quantised("int4", "group", 64, attention=False),
    ),
    (
        "int4-weights",
        "int4 weights in groups of 128 outside attention",
        Quantised("int4", "group", 128, attention=False),
    ),
    (
        "int4-weights",
        "int4 weights in groups of 32 outside attention",
        Quantised("int4", "group", 32, attention=False),
    ),
)


def run_quantised(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try weights rounded to float8, int8 and int4."""
    best: HypothesisTest | None = None
    for slug, words, change in QUANTISED:
        if tester.out_of_time:
            break
        test = tester.test_pass("quantised", slug, words, tester.screen, change)
        if test is not None and (best is None or test.residual.nats < best.residual.nats):
            best, chosen = test, change
    if best is not None:
        if best.gain > 0.05:
            confirmed = tester.test_pass(
                "quantised", best.slug, best.setting, tester.confirm, chosen
            )
            best = confirmed or best
        yield best


def _small(tester: HypothesisTester) -> bool:
    """Tell whether the sampler's column is off by a few times an engine's noise alone."""
    return tester.side.name == "sampler" and tester.side.residual.scale < 12.0 * tester.sample.noise


ROTARY = Experiment(
    name="rotary",
    slugs=("rope-theta",),
    asks="Is the rotary base or the scale of positions another?",
    run=run_rotary,
    passes=lambda tester: float(len(THETA) + len(SCALE) + 8),
    worth=lambda tester: 6.0,
)
NORM_EPSILON = Experiment(
    name="norm-epsilon",
    slugs=("norm-eps",),
    asks="Is the epsilon of the norms another?",
    run=run_epsilon,
    passes=lambda tester: float(len(EPSILON) + 8),
    worth=lambda tester: 3.0,
)
WINDOW = Experiment(
    name="window",
    slugs=("sliding-window",),
    asks="Does attention reach over a window alone?",
    run=run_window,
    passes=lambda tester: 8.0,
    worth=lambda tester: 4.0 if onset(tester) is not None else 0.5,
)
CACHE = Experiment(
    name="kv-cache",
    slugs=("fp8-kv-cache",),
    asks="Are keys and values held in float8?",
    run=run_cache,
    passes=lambda tester: float(len(CACHE_SCALES)),
    worth=lambda tester: 3.0 if _small(tester) else 0.2,
)
QUANTISED_WEIGHTS = Experiment(
    name="quantised",
    slugs=("fp8-weights", "int8-weights", "int4-weights"),
    asks="Are the weights quantised?",
    run=run_quantised,
    passes=lambda tester: float(len(QUANTISED)),
    worth=lambda tester: 6.0 if _small(tester) else 0.2,
)

FUNCTIONS: Sequence[Experiment] = (ROTARY, NORM_EPSILON, WINDOW, CACHE, QUANTISED_WEIGHTS)
