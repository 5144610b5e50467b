"""Finds the cause that explains the recorded column of one side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.case import rms
from rcdiag.diagnosis.causes.cause import Suspicion, fact
from rcdiag.diagnosis.experiment_fit import NO_RIVAL
from rcdiag.diagnosis.experiments.checkpoint_causes import cause_by_row, cause_of_weights
from rcdiag.diagnosis.experiments.hypothesis_tester import HypothesisTest, HypothesisTester
from rcdiag.diagnosis.experiments.order import (
    common_margin,
    explains,
    ranked,
    run_with_passes,
    run_without_passes,
)
from rcdiag.diagnosis.experiments.outcome import ExperimentOptions, Outcome
from rcdiag.diagnosis.experiments.patterns import only_rows_off, z_by_rows
from rcdiag.diagnosis.experiments.rescored_sample import Side
from rcdiag.diagnosis.experiments.sides import EXACT, fit_of_residual, side_at, side_of
from rcdiag.diagnosis.experiments.thresholds import FEW_OFF, GAIN
from rcdiag.diagnosis.experiments.unexplained import name_chance, name_unexplained
from rcdiag.diagnosis.experiments.unlogged_sampling import cause_in_sampling, make_suspicion
from rcdiag.diagnosis.experiments.weights_by_row import weights_by_row
from rcdiag.diagnosis.features.declared import Declared
from rcdiag.diagnosis.thresholds import BY_ITS_ERROR, MOST, ROUNDING, SURELY
from rcdiag.engines.changes import Forward, Moved
from rcdiag.formats import plural, share_of

WORDS_OF_RECORDER = (
    "recorded",
    "stored",
    "swapped",
    "shift",
    "cumulative",
    "sign",
    "base",
    "draft",
)


def conclude_side(
    outcome: Outcome, side: Side, other: Side | None, forward: Forward, given: ExperimentOptions
) -> Suspicion | None:
    """Name the cause of one side's column; None where the unchanged model explains it."""
    if side.residual.scale <= EXACT and side.residual.outlying(EXACT) < FEW_OFF:
        return None
    if not side.explained and other is not None and other.explained:
        side = side_at(outcome.sample, side.name, side.policy, other.temperature)
    tester = HypothesisTester(
        outcome.sample,
        side,
        forward,
        checkpoints=given.checkpoints,
        coders=given.coders,
        deadline=given.deadline,
    )
    if side.explained:
        return _beside_noise(outcome, tester, given)
    return _cause_of_mismatch(outcome, tester, given)


def _beside_noise(
    outcome: Outcome, tester: HypothesisTester, given: ExperimentOptions
) -> Suspicion | None:
    """Name a cause that is certain although the unchanged model explains the column to noise."""
    tests = outcome.record(run_without_passes(tester))
    certain = _certain(tests, tester)
    if not certain and outcome.sample.rounding.is_heavier_in(tester.side.residual):
        # A heavy tail has another cause than rounding: another context moves the first tokens.
        certain = _certain(outcome.record(run_with_passes(tester, given.progress)), tester)
    return _name_best(outcome, ranked(certain), tester) if certain else None


def _certain(tests: Sequence[HypothesisTest], tester: HypothesisTester) -> list[HypothesisTest]:
    """Return tests that certainly explain a column that the unchanged model explains to noise.

    Their predictions differ from the model's by more than rounding, and explain most of the
    distance between column and model.
    """
    expected = tester.side.expected
    return [
        test
        for test in tests
        if explains(test, tester.sample.noise)
        and test.z > SURELY
        and (test.explained > MOST or test.gain > GAIN)
        and rms(test.predicted - expected[test.at]) > ROUNDING
    ]


def _cause_of_mismatch(
    outcome: Outcome, tester: HypothesisTester, given: ExperimentOptions
) -> Suspicion:
    """Name the cause of a column that the unchanged model does not explain.

    Tried in this order: weights that the metadata declare, experiments without a forward pass,
    other checkpoints, causes of some rows alone, experiments with forward passes.
    """
    declared = bool(given.checkpoints) and Declared.of(tester.sample.case).weights_differ
    named = _try_checkpoints(outcome, tester, given, declared=True) if declared else None
    tests = outcome.record(run_without_passes(tester))
    if named is not None:
        return named
    if found := [test for test in tests if explains(test, tester.sample.noise)]:
        return _explained(outcome, ranked(found), tester)
    if given.checkpoints and not declared and not tester.out_of_time:
        named = _try_checkpoints(outcome, tester, given)
    return named or _in_some_rows(outcome, tester) or _with_passes(outcome, tester, given, tests)


def _with_passes(
    outcome: Outcome,
    tester: HypothesisTester,
    given: ExperimentOptions,
    tests: Sequence[HypothesisTest],
) -> Suspicion:
    """Name the cause by experiments with forward passes; a best guess if none explains the column.

    `tests` are those without passes, of which none explains it alone.
    """
    by_chance = name_chance(tester)
    of_batch = by_chance is not None
    tests = [*tests, *outcome.record(run_with_passes(tester, given.progress, of_batch=of_batch))]
    found = [test for test in tests if explains(test, tester.sample.noise)]
    order = ranked(found or [test for test in tests if test.is_significant])
    if found or (order and order[0].explained > MOST):
        return _explained(outcome, order, tester)
    close = [_evidence(test, tester) for test in order]
    return by_chance or name_unexplained(outcome, tester, order, close)


def _explained(
    outcome: Outcome, order: Sequence[HypothesisTest], tester: HypothesisTester
) -> Suspicion:
    """Name the cause of the best test; other weights may explain only some of the rows."""
    of_rows = cause_by_row(tester, order[0]) if order[0].slug == "stale-weights" else None
    return of_rows or _name_best(outcome, order, tester)


def _in_some_rows(outcome: Outcome, tester: HypothesisTester) -> Suspicion | None:
    """Name the cause of the rows that are off, if the model explains the others; else None."""
    part = only_rows_off(tester.sample, tester.side)
    if part is None:
        return None
    share = len(part.rows) / len(tester.sample.rows)
    sides = [side_of(part, side.name, side.policy) for side in outcome.sides]
    mine = next(side for side in sides if side.name == tester.side.name)
    if mine.explained:
        _, named = cause_in_sampling(part, sides)
    else:
        # Compare these rows at the temperature of the other rows.
        mine = side_at(part, mine.name, mine.policy, tester.side.temperature)
        few = replace(tester, sample=part, side=mine)
        found = [test for test in run_without_passes(few).tests if explains(test, part.noise)]
        named = _name_best(outcome, ranked(found), few) if found else None
    if named is None:
        return None
    return replace(
        named,
        message=f"Only {share_of(share)} deviate from the model. In these: {named.message}",
        share_of_rows=share,
    )


def _try_checkpoints(
    outcome: Outcome,
    tester: HypothesisTester,
    given: ExperimentOptions,
    *,
    declared: bool = False,
) -> Suspicion | None:
    """Score the rows with all checkpoints, and name the cause if their weights made the column.

    Unless metadata declare other weights, the worst rows are scored first: if no checkpoint
    explains any of them, the others are not scored.
    """
    given.progress(f"weights of {plural(len(given.checkpoints), 'checkpoint')}")
    sample = outcome.sample
    some = None if declared or len(sample.rows) < 2 * len(tester.confirm) else tester.confirm
    moved = {folder.name: Moved(folder) for folder in given.checkpoints}
    weights = weights_by_row(sample, tester.side, tester.forward, moved, some)
    if some is not None and weights.by_other_weights.any():
        weights = weights_by_row(sample, tester.side, tester.forward, moved)
    outcome.weights[tester.side.name] = weights
    scored = np.flatnonzero(np.isin(sample.owner, weights.rows))
    for name, column in list(zip(weights.names, weights.columns, strict=True))[1:]:
        words = f"weights of {name}"
        test = tester.test("stale-weights", words, column[scored], scored)
        test = replace(test, experiment="checkpoints")
        outcome.tests.append(replace(test, slug=_slug(test, tester)))
    return cause_of_weights(tester, weights) if len(weights.rows) == len(sample.rows) else None


# The best test.


def _name_best(
    outcome: Outcome, order: Sequence[HypothesisTest], tester: HypothesisTester
) -> Suspicion:
    """Name the cause of the best test, with its lead over those of other causes."""
    best = order[0]
    slug = _slug(best, tester)
    recorded = any(word in slug for word in WORDS_OF_RECORDER)
    rivals = [test for test in order[1:] if _slug(test, tester) != slug]
    leads = [common_margin(best, test, tester) for test in rivals]
    close = [test for test, lead in zip(rivals, leads, strict=True) if lead < BY_ITS_ERROR]
    message = (
        f"{best.setting[0].upper()}{best.setting[1:]} explains {tester.side.policy}_log_probs: the "
        f"rms residual falls from {best.baseline.rms:.2g} to {best.residual.rms:.2g} nats "
        f"({best.z:.0f} standard errors)."
    )
    fit = fit_of_residual(
        tester.sample,
        best.residual,
        best.at,
        "hypothesis",
        explained=best.explained,
        z=best.z,
        lead=min(leads, default=NO_RIVAL),
        not_run=outcome.not_run(tester.side),
    )
    return make_suspicion(
        slug,
        fit,
        message,
        [_evidence(test, tester) for test in [best, *close[:2]]],
        # If only the sampler's column is wrong, the recorder is at fault.
        side="recorder" if recorded and tester.side.name == "sampler" else tester.side.name,
        also_possible=list(dict.fromkeys(_slug(test, tester) for test in close)),
    )


def _slug(test: HypothesisTest, tester: HypothesisTester) -> str:
    """Return the cause of a test; for other weights it depends on side and likelihood."""
    if test.slug != "stale-weights":
        return test.slug
    if tester.side.name == "trainer":
        return "reference-as-old" if test.experiment == "checkpoints" else "old-after-update"
    # The weights that sampled give the tokens a higher log-prob than other weights do.
    ahead = test.predicted - tester.side.expected[test.at]
    z = z_by_rows(ahead, tester.sample.owner[test.at])
    return "draft-recorded" if z < -BY_ITS_ERROR else "stale-weights"


def _evidence(test: HypothesisTest, tester: HypothesisTester) -> dict[str, Any]:
    """Return the numbers of a test, and how much of a column it explains."""
    whole = explains(test, tester.sample.noise)
    share = f"explains {max(test.explained, 0.0):.0%} of the squared residuals"
    numbers = {
        "rms residual of the unchanged model": test.baseline.rms,
        "rms residual": test.residual.rms,
        "z": test.z,
    }
    return fact(test.setting, "explained" if whole else share, **numbers, **test.values)
