"""Experiments on kept sets: log-probs renormalised over what top-p, top-k or min-p keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from rcdiag.diagnosis.experiments.experiment import Experiment
from rcdiag.diagnosis.experiments.fit import golden
from rcdiag.diagnosis.experiments.hypothesis_tester import Array, HypothesisTest, HypothesisTester
from rcdiag.diagnosis.experiments.trainer_distribution import Ranked

TOP_P = np.array([0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.95, 0.97, 0.98, 0.99, 0.995])
TOP_K = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 16, 20, 24, 25, 30, 32, 40, 50, 64, 80, 100, 128, 200)
MIN_P = np.geomspace(0.005, 0.5, 14)


def run(tester: HypothesisTester) -> Iterator[HypothesisTest]:
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
    run=run,
)
