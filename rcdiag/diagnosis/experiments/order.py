"""Runs experiments in the order of worth / cost, until one explains the column."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rcdiag.diagnosis.experiments.batches import BATCHES
from rcdiag.diagnosis.experiments.fit import margin
from rcdiag.diagnosis.experiments.functions import FUNCTIONS
from rcdiag.diagnosis.experiments.hypothesis_tester import (
    CHEAP,
    Experiment,
    HypothesisTest,
    HypothesisTester,
)
from rcdiag.diagnosis.experiments.output_layer import (
    bf16_logits,
    padding_rows,
    softcap,
    vocabulary_shards,
)
from rcdiag.diagnosis.experiments.prompts import exchanged_ids, prompts, stripped, truncations
from rcdiag.diagnosis.experiments.recorded import divided, not_shifted, quantities, repairs
from rcdiag.diagnosis.experiments.recorded_experts import recorded_experts
from rcdiag.diagnosis.experiments.rescored_sample import Side
from rcdiag.diagnosis.experiments.sampling_parameters import (
    biases,
    kept_sets,
    min_tokens,
    penalties,
)
from rcdiag.diagnosis.experiments.thresholds import FEW_OFF
from rcdiag.diagnosis.experiments.weights import WEIGHTS
from rcdiag.diagnosis.thresholds import FEWEST, HALF
from rcdiag.registry import Registry

EXPERIMENTS: Registry[Experiment] = Registry(
    "experiment",
    (
        *(quantities, divided, repairs),
        *(kept_sets, penalties, biases, min_tokens),
        *(softcap, bf16_logits, padding_rows, vocabulary_shards),
        not_shifted,
        *(exchanged_ids, prompts, truncations, *BATCHES, stripped),
        *FUNCTIONS,
        *WEIGHTS,
        recorded_experts,
    ),
)


class RunSummary(Struct, frozen=True):
    """The tests that ran on one side, and the experiments that did not run."""

    tests: tuple[HypothesisTest, ...]
    open: tuple[str, ...]  # experiments that did not run


def run_without_passes(tester: HypothesisTester) -> RunSummary:
    """Run the experiments without a forward pass; those after the deadline are listed as open."""
    return _run(tester, [one for one in _on(tester.side) if one.passes(tester) < CHEAP])


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
    wanted = [one for one in _on(tester.side) if one.of_batch or not of_batch]
    rest = [one for one in wanted if one.passes(tester) >= CHEAP and one.worth(tester) > 0.0]
    order = sorted(rest, key=lambda one: -one.worth(tester) / one.passes(tester))
    return _run(tester, order, progress, until_explained=True)


def run_with_recorded_experts(tester: HypothesisTester) -> RunSummary:
    """Run the model with the sampler's experts; no test without experts, or a router for them."""
    recorded = tester.side.name == "sampler" and tester.sample.case.experts is not None
    usable = recorded and bool(tester.forward.tensors.routers)
    return _run(tester, [recorded_experts] if usable else [])


def _on(side: Side) -> list[Experiment]:
    """Return the experiments on a side's column."""
    return [one for one in EXPERIMENTS.values() if side.name in one.sides]


def _run(
    tester: HypothesisTester,
    experiments: Sequence[Experiment],
    progress: Callable[[str], None] = lambda name: None,
    *,
    until_explained: bool = False,
) -> RunSummary:
    """Run experiments one by one; the seconds of an experiment are split evenly over its tests."""
    tests: list[HypothesisTest] = []
    left_open: list[str] = []
    for one in experiments:
        if not tester.has_time_for(one.passes(tester)):
            left_open.append(one.name)  # a shorter experiment may still fit
            continue
        progress(one.name)
        began = time.monotonic()
        made = [test for test in one.run(tester) if len(test.at)]
        spent = (time.monotonic() - began) / max(len(made), 1)
        tests += [replace(test, experiment=one.name, seconds=spent) for test in made]
        if until_explained and any(explains(test, tester.sample.noise) for test in tests):
            break
    return RunSummary(tuple(tests), tuple(left_open))


def explains(test: HypothesisTest, noise: float) -> bool:
    """Tell whether a test is significant and leaves only engine noise.

    It must also halve the share of outlying tokens of the baseline, if there are any.
    """
    if not (test.is_significant and test.residual.within(noise)):
        return False
    off = test.baseline.outlying(noise)
    return off < FEW_OFF or test.residual.outlying(noise) < HALF * off


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
    """Return by how many standard errors a test has less loss than another on common tokens.

    With too few common tokens this is only the sign of the difference of their gains.
    """
    common, of_one, of_other = np.intersect1d(one.at, other.at, return_indices=True)
    if len(common) < FEWEST or one.side != other.side:
        return float(np.sign(one.gain - other.gain))
    first, second = one.residual.loss[of_one], other.residual.loss[of_other]
    return margin(first, second, common // 64)


def common_margin(one: HypothesisTest, other: HypothesisTest, tester: HypothesisTester) -> float:
    """Return the z score of one test's gain over another, with rows as clusters.

    0 with too few common tokens.
    """
    common, of_one, of_other = np.intersect1d(one.at, other.at, return_indices=True)
    if len(common) < FEWEST:
        return 0.0
    first = tester.residual_of(one.predicted[of_one], common)
    second = tester.residual_of(other.predicted[of_other], common)
    return margin(first.loss, second.loss, tester.sample.owner[common])
