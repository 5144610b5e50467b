"""Runs experiments in the order of prospects per cost, until one explains the column."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rcdiag.diagnosis.experiments.batches import BATCHES
from rcdiag.diagnosis.experiments.fit import fit_residual, margin
from rcdiag.diagnosis.experiments.functions import FUNCTIONS
from rcdiag.diagnosis.experiments.hypothesis_tester import (
    Experiment,
    HypothesisTest,
    HypothesisTester,
)
from rcdiag.diagnosis.experiments.output_layer import (
    PADDING_ROWS,
    ROUNDED_LOGITS,
    SOFTCAP,
    VOCABULARY_SHARDS,
)
from rcdiag.diagnosis.experiments.prompts import EXCHANGED_IDS, PROMPTS, STRIPPED, TRUNCATIONS
from rcdiag.diagnosis.experiments.recorded import (
    DIVIDED,
    NOT_SHIFTED,
    OTHER_ROWS,
    QUANTITIES,
    SHIFTS,
    TOKEN_IDS,
)
from rcdiag.diagnosis.experiments.sampling_parameters import (
    BIASES,
    KEPT_SETS,
    MIN_TOKENS,
    PENALTIES,
)
from rcdiag.diagnosis.experiments.sides import FEW_OFF
from rcdiag.diagnosis.experiments.weights import WEIGHTS
from rcdiag.registry import Registry

EXPERIMENTS: Registry[Experiment] = Registry(
    "experiment",
    (
        *(QUANTITIES, DIVIDED, SHIFTS, TOKEN_IDS, OTHER_ROWS),
        *(KEPT_SETS, PENALTIES, BIASES, MIN_TOKENS),
        *(SOFTCAP, ROUNDED_LOGITS, PADDING_ROWS, VOCABULARY_SHARDS),
        NOT_SHIFTED,
        *(EXCHANGED_IDS, PROMPTS, TRUNCATIONS, *BATCHES, STRIPPED),
        *FUNCTIONS,
        *WEIGHTS,
    ),
)


CHEAP = 1.0  # passes below which an experiment runs before all that takes a pass


class RunSummary(Struct, frozen=True):
    """What ran on one side, and what did not."""

    tests: tuple[HypothesisTest, ...]
    open: tuple[str, ...]  # experiments that did not run
    seconds: float


def run_without_passes(tester: HypothesisTester) -> RunSummary:
    """Run the experiments without a forward pass; those after the deadline are listed as open."""
    began = time.monotonic()
    wanted = [one for one in EXPERIMENTS.values() if tester.side.name in one.sides]
    quick = [one for one in wanted if one.passes(tester) < CHEAP]
    tests: list[HypothesisTest] = []
    for index, one in enumerate(quick):
        if tester.out_of_time:
            left_open = tuple(other.name for other in quick[index:])
            return RunSummary(tuple(tests), left_open, time.monotonic() - began)
        tests += _run(one, tester)
    return RunSummary(tuple(tests), (), time.monotonic() - began)


def run_with_passes(
    tester: HypothesisTester,
    progress: Callable[[str], None] = lambda name: None,
    *,
    of_batch: bool = False,
) -> RunSummary:
    """Run the experiments that take forward passes until one explains the column.

    Those with the largest worth / passes run first; those that do not fit before the deadline are
    listed as open. With `of_batch` only experiments on batching run.
    """
    began = time.monotonic()
    wanted = [one for one in EXPERIMENTS.values() if tester.side.name in one.sides]
    wanted = [one for one in wanted if one.of_batch or not of_batch]
    rest = [one for one in wanted if one.passes(tester) >= CHEAP and one.worth(tester) > 0.0]
    order = sorted(rest, key=lambda one: -one.worth(tester) / one.passes(tester))
    tests: list[HypothesisTest] = []
    left_open: list[str] = []
    for one in order:
        if not tester.has_time_for(one.passes(tester)):
            left_open.append(one.name)  # a shorter one may still fit
            continue
        progress(one.name)
        tests += _run(one, tester)
        if any(explains(test, tester.sample.noise) for test in tests):
            break
    return RunSummary(tuple(tests), tuple(left_open), time.monotonic() - began)


def _run(experiment: Experiment, tester: HypothesisTester) -> list[HypothesisTest]:
    """Run one experiment; its time is shared by its tests."""
    began = time.monotonic()
    tests = [test for test in experiment.run(tester) if len(test.at)]
    spent = (time.monotonic() - began) / max(len(tests), 1)
    return [replace(test, experiment=experiment.name, seconds=spent) for test in tests]


def explains(test: HypothesisTest, noise: float) -> bool:
    """Tell whether a test is significant and leaves only engine noise.

    It must also halve the share of outlying tokens of the baseline, if there are any.
    """
    if not (test.is_significant and test.residual.within(noise)):
        return False
    off = test.baseline.outlying(noise)
    return off < FEW_OFF or test.residual.outlying(noise) < 0.5 * off


def ranked(tests: Sequence[HypothesisTest]) -> list[HypothesisTest]:
    """Sort tests by pairwise comparison on their common tokens, the smallest loss first."""
    remaining = sorted(tests, key=lambda test: -test.gain)
    order: list[HypothesisTest] = []
    while remaining:
        best = remaining[0]
        for other in remaining[1:]:
            if ahead(other, best) > 0:
                best = other
        order.append(best)
        remaining = [test for test in remaining if test is not best]
    return order


def ahead(one: HypothesisTest, other: HypothesisTest) -> float:
    """Return by how many standard errors a test leaves less than another on common tokens."""
    common, of_one, of_other = np.intersect1d(one.at, other.at, return_indices=True)
    if len(common) < 30 or one.side != other.side:
        return float(np.sign(one.gain - other.gain))
    first, second = one.residual.loss[of_one], other.residual.loss[of_other]
    return margin(first, second, common // 64)


def common_margin(one: HypothesisTest, other: HypothesisTest, tester: HypothesisTester) -> float:
    """Return the margin of a test over another with rows as clusters, 0 without common tokens."""
    common, of_one, of_other = np.intersect1d(one.at, other.at, return_indices=True)
    if len(common) < 30:
        return 0.0
    side = tester.side
    recorded, sensitivity, resolution = (
        side.recorded[common],
        side.sensitivity[common],
        side.resolution[common],
    )
    first = fit_residual(recorded, one.predicted[of_one], sensitivity, resolution)
    second = fit_residual(recorded, other.predicted[of_other], sensitivity, resolution)
    return margin(first.loss, second.loss, tester.sample.owner[common])
