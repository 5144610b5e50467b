"""Experiments run in the order of what they can still tell per second, until one explains all."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rcdiag.diagnosis.experiments.all_experiments import EXPERIMENTS
from rcdiag.diagnosis.experiments.bench import Bench, Trial
from rcdiag.diagnosis.experiments.experiment import Experiment
from rcdiag.diagnosis.experiments.fit import margin, unexplained
from rcdiag.diagnosis.experiments.sides import FEW_OFF

CHEAP = 1.0  # passes below which an experiment runs before all that takes a pass


class Ran(Struct, frozen=True):
    """What ran on one side, and what did not."""

    trials: tuple[Trial, ...]
    open: tuple[str, ...]  # experiments that did not run
    seconds: float


def quick_trials(bench: Bench) -> Ran:
    """Run the experiments that take no forward pass; what no time is left for stays open."""
    began = time.monotonic()
    wanted = [one for one in EXPERIMENTS.values() if bench.side.name in one.sides]
    quick = [one for one in wanted if one.passes(bench) < CHEAP]
    trials: list[Trial] = []
    for index, one in enumerate(quick):
        if bench.out_of_time:
            left_open = tuple(other.name for other in quick[index:])
            return Ran(tuple(trials), left_open, time.monotonic() - began)
        trials += _run(one, bench)
    return Ran(tuple(trials), (), time.monotonic() - began)


def pass_trials(
    bench: Bench,
    progress: Callable[[str], None] = lambda name: None,
    *,
    of_batch: bool = False,
) -> Ran:
    """Run the experiments that take forward passes until one explains the column.

    Those run first that can tell most per pass; what takes more time than is left stays open.
    With `of_batch` those alone run that give one context several values.
    """
    began = time.monotonic()
    wanted = [one for one in EXPERIMENTS.values() if bench.side.name in one.sides]
    wanted = [one for one in wanted if one.of_batch or not of_batch]
    rest = [one for one in wanted if one.passes(bench) >= CHEAP and one.worth(bench) > 0.0]
    order = sorted(rest, key=lambda one: -one.worth(bench) / one.passes(bench))
    trials: list[Trial] = []
    left_open: list[str] = []
    for one in order:
        if not bench.has_time_for(one.passes(bench)):
            left_open.append(one.name)  # a shorter one may still fit
            continue
        progress(one.name)
        trials += _run(one, bench)
        if any(explains(trial, bench.scene.noise) for trial in trials):
            break
    return Ran(tuple(trials), tuple(left_open), time.monotonic() - began)


def _run(experiment: Experiment, bench: Bench) -> list[Trial]:
    """Run one experiment; its time is shared by its trials."""
    began = time.monotonic()
    trials = [trial for trial in experiment.run(bench) if len(trial.at)]
    spent = (time.monotonic() - began) / max(len(trials), 1)
    return [replace(trial, seconds=spent) for trial in trials]


def explains(trial: Trial, noise: float) -> bool:
    """Tell whether a trial explains the column to the engine's noise, by a margin.

    What is off by more than noise under the honest column must be less so under the trial's.
    """
    if not (trial.tells and trial.left.within(noise)):
        return False
    off = trial.before.outlying(noise)
    return off < FEW_OFF or trial.left.outlying(noise) < 0.5 * off


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Sort trials, the one first that leaves least on the tokens that it shares with others."""
    left = sorted(trials, key=lambda trial: -trial.gain)
    order: list[Trial] = []
    while left:
        best = left[0]
        for other in left[1:]:
            if ahead(other, best) > 0:
                best = other
        order.append(best)
        left = [trial for trial in left if trial is not best]
    return order


def ahead(one: Trial, other: Trial) -> float:
    """Return by how many standard errors a trial leaves less than another on common tokens."""
    common, of_one, of_other = np.intersect1d(one.at, other.at, return_indices=True)
    if len(common) < 30 or one.side != other.side:
        return float(np.sign(one.gain - other.gain))
    first, second = one.left.loss[of_one], other.left.loss[of_other]
    return margin(first, second, common // 64)


def common_margin(one: Trial, other: Trial, bench: Bench) -> float:
    """Return the margin of a trial over another with rows as clusters, 0 without common tokens."""
    common, of_one, of_other = np.intersect1d(one.at, other.at, return_indices=True)
    if len(common) < 30:
        return 0.0
    side = bench.side
    recorded, reach, grain = side.recorded[common], side.reach[common], side.grain[common]
    first = unexplained(recorded, one.predicted[of_one], reach, grain)
    second = unexplained(recorded, other.predicted[of_other], reach, grain)
    return margin(first.loss, second.loss, bench.scene.owner[common])
