"""Experiments on the model's function: rotary base, position scale, norms, windows, caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from rcdiag.diagnosis.experiments.bench import GAIN, Bench, Trial
from rcdiag.diagnosis.experiments.experiment import Experiment
from rcdiag.diagnosis.experiments.fit import golden
from rcdiag.engines.changes import (
    Change,
    KeyValueCache,
    NormEpsilon,
    PositionScale,
    Quantised,
    RotaryBase,
    Window,
)

THETA = (0.01, 0.1, 0.25, 0.5, 0.667, 0.8, 1.25, 1.5, 2.0, 4.0, 10.0, 100.0)
SCALE = (0.125, 0.25, 0.5, 0.667, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0, 8.0)
EPSILON = tuple(10.0**power for power in (-8, -7, -5, -4, -3, -2, -1, 0))
WINDOWS = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096)
CACHE_SCALES = tuple(2.0**power for power in range(-8, 3))


def scanned(
    bench: Bench,
    name: str,
    slug: str,
    words: Callable[[float], str],
    change: Callable[[float], Change],
    grid: Sequence[float],
    *,
    steps: int = 8,
) -> Iterator[Trial]:
    """Scan a strength by its logarithm on a few rows; the best one is tried on more."""
    trials: dict[float, Trial] = {}

    def loss(log_value: float) -> float:
        value = float(np.exp(log_value))
        trial = bench.pass_trial(name, slug, words(value), bench.screen, change(value))
        if trial is None:
            return np.inf
        trials[log_value] = trial
        return trial.left.nats

    def confirm(log_value: float) -> Trial | None:
        value = float(np.exp(log_value))
        return bench.pass_trial(
            name, slug, words(value), bench.confirm, change(value), values={"value": value}
        )

    for value in grid:
        if bench.out_of_time:
            return
        loss(float(np.log(value)))
    if not trials:
        return
    best = min(trials, key=lambda at: trials[at].left.nats)
    if trials[best].gain > 0.05 and not trials[best].left.within(bench.scene.noise):
        order = sorted(trials)
        index = order.index(best)
        ends = order[max(index - 1, 0)], order[min(index + 1, len(order) - 1)]
        golden(loss, *ends, steps=steps)
        best = min(trials, key=lambda at: trials[at].left.nats)
    trial = trials[best]
    if trial.gain > GAIN:
        trial = _confirmed(bench, trial, best, sorted(trials), confirm, steps)
    yield trial


def _confirmed(
    bench: Bench,
    trial: Trial,
    best: float,
    tried: Sequence[float],
    confirm: Callable[[float], Trial | None],
    steps: int,
) -> Trial:
    """Try the best strength on more rows, and search around it where it leaves more than noise.

    The few rows of a scan may leave strengths alike that are far apart on longer rows.
    """
    trials: dict[float, Trial] = {}

    def loss(log_value: float) -> float:
        found = confirm(log_value)
        if found is None or bench.out_of_time:
            return np.inf
        trials[log_value] = found
        return found.left.nats

    loss(best)
    if not trials or trials[best].left.within(bench.scene.noise):
        return trials.get(best, trial)
    index = tried.index(best)
    golden(loss, tried[max(index - 1, 0)], tried[min(index + 1, len(tried) - 1)], steps=steps)
    return min(trials.values(), key=lambda one: one.left.nats)


def run_rotary(bench: Bench) -> Iterator[Trial]:
    """Scan the rotary base, and a factor of the positions."""
    yield from scanned(
        bench,
        "rotary",
        "rope-theta",
        lambda value: f"rotary base {value:.3g} times the checkpoint's",
        RotaryBase,
        THETA,
    )
    yield from scanned(
        bench,
        "rotary",
        "rope-theta",
        lambda value: f"positions times {value:.3g}",
        PositionScale,
        SCALE,
    )


def run_epsilon(bench: Bench) -> Iterator[Trial]:
    """Scan the epsilon of all norms."""
    yield from scanned(
        bench,
        "norm-epsilon",
        "norm-eps",
        lambda value: f"epsilon {value:.2g} in all norms",
        NormEpsilon,
        EPSILON,
    )


def onset(bench: Bench) -> int | None:
    """Return the place in the whole sequence from which on tokens are off, None without one."""
    side, scene = bench.side, bench.scene
    at = side.known_at
    prompts = scene.case.prompt_ids
    assert prompts is not None
    place = prompts.lengths[scene.owner[at]] + scene.position[at]
    left = np.abs(side.recorded[at] - side.honest[at])
    off = left > 20.0 * bench.scene.noise * side.reach[at] + 0.02
    if off.sum() < 10:
        return None
    first = int(np.quantile(place[off], 0.002))
    return first if (place < first).sum() > 50 else None


def run_window(bench: Bench) -> Iterator[Trial]:
    """Try windows of attention around the place from which on tokens are off."""
    began = onset(bench)
    longest = max(len(bench.passage(int(row)).ids) for row in bench.screen)
    wanted = [size for size in WINDOWS if size < longest]
    if began is not None:
        wanted.sort(key=lambda size: abs(size - began))
        wanted = wanted[:4]
    best: Trial | None = None
    tried: set[int] = set()

    def attempt(size: int) -> None:
        nonlocal best
        if size in tried or size < 1 or bench.out_of_time:
            return
        tried.add(size)
        trial = bench.pass_trial(
            "window",
            "sliding-window",
            f"attention over the last {size} tokens",
            bench.screen,
            Window(size),
            values={"tokens": float(size)},
        )
        if trial is not None and (best is None or trial.left.nats < best.left.nats):
            best = trial

    for size in wanted:
        attempt(size)
    step = 16
    while (
        best is not None and best.gain > GAIN and step and not best.left.within(bench.scene.noise)
    ):
        centre = int(best.values["tokens"])
        attempt(centre - step)
        attempt(centre + step)
        step //= 2
    if best is not None and best.gain > GAIN:
        size = int(best.values["tokens"])
        best = (
            bench.pass_trial(
                "window", "sliding-window", best.setting, bench.confirm, Window(size),
                values=best.values,
            )
            or best
        )  # fmt: skip
    if best is not None:
        yield best


def run_cache(bench: Bench) -> Iterator[Trial]:
    """Try keys and values held in float8, at scale 1 and at others."""
    yield from scanned(
        bench,
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


def run_quantised(bench: Bench) -> Iterator[Trial]:
    """Try weights rounded to float8, int8 and int4."""
    best: Trial | None = None
    for slug, words, change in QUANTISED:
        if bench.out_of_time:
            break
        trial = bench.pass_trial("quantised", slug, words, bench.screen, change)
        if trial is not None and (best is None or trial.left.nats < best.left.nats):
            best, chosen = trial, change
    if best is not None:
        if best.gain > 0.05:
            confirmed = bench.pass_trial(
                "quantised", best.slug, best.setting, bench.confirm, chosen
            )
            best = confirmed or best
        yield best


def _small(bench: Bench) -> bool:
    """Tell whether the sampler's column is off by a few times an engine's noise alone."""
    return bench.side.name == "sampler" and bench.side.left.scale < 12.0 * bench.scene.noise


ROTARY = Experiment(
    name="rotary",
    slugs=("rope-theta",),
    asks="Is the rotary base or the scale of positions another?",
    run=run_rotary,
    passes=lambda bench: float(len(THETA) + len(SCALE) + 8),
    worth=lambda bench: 6.0,
)
NORM_EPSILON = Experiment(
    name="norm-epsilon",
    slugs=("norm-eps",),
    asks="Is the epsilon of the norms another?",
    run=run_epsilon,
    passes=lambda bench: float(len(EPSILON) + 8),
    worth=lambda bench: 3.0,
)
WINDOW = Experiment(
    name="window",
    slugs=("sliding-window",),
    asks="Does attention reach over a window alone?",
    run=run_window,
    passes=lambda bench: 8.0,
    worth=lambda bench: 4.0 if onset(bench) is not None else 0.5,
)
CACHE = Experiment(
    name="kv-cache",
    slugs=("fp8-kv-cache",),
    asks="Are keys and values held in float8?",
    run=run_cache,
    passes=lambda bench: float(len(CACHE_SCALES)),
    worth=lambda bench: 3.0 if _small(bench) else 0.2,
)
QUANTISED_WEIGHTS = Experiment(
    name="quantised",
    slugs=("fp8-weights", "int8-weights", "int4-weights"),
    asks="Are the weights quantised?",
    run=run_quantised,
    passes=lambda bench: float(len(QUANTISED)),
    worth=lambda bench: 6.0 if _small(bench) else 0.2,
)

FUNCTIONS: Sequence[Experiment] = (ROTARY, NORM_EPSILON, WINDOW, CACHE, QUANTISED_WEIGHTS)
