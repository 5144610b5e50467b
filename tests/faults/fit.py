"""Fit how sure a named cause is: `python -m tests.faults.fit --store FOLDER`.

Tables of both generators are made and read: alone, with the trainer's checkpoint for the first
generator's (seconds a table), and with the recurrent model for small ones of the second (one second
a table). Each cause that the table, or an experiment, names is one observation: the predictors of
`rcdiag.diagnosis.confidence`, and whether the cause is an answer to a fault of the table.
A logistic regression with a ridge gives the coefficients, which are written to `confidence.toml`
beside that module. Observations are stored by table, so that a second fit reads them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

import rcdiag
from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.causes.cause import Cause, Suspicion
from rcdiag.diagnosis.confidence import COEFFICIENTS, predictors, source_of
from rcdiag.diagnosis.experiments.conclude import run_experiments
from rcdiag.diagnosis.experiments.outcome import ExperimentOptions, Outcome, cause_of
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.judge import suspicions
from rcdiag.diagnosis.verdict import verdict_with_experiments
from rcdiag.engines.hf.fleet import Fleet
from rcdiag.results.diagnosis import NOTHING_WRONG
from rcdiag.usecases.case_of_table import pair_of_table, read_case
from tests.faults.other.forward import make_with_checkpoint
from tests.faults.other.make import make
from tests.faults.prompts import ROOT
from tests.faults.tables import make_table

Array = NDArray[np.float64]
Run = Callable[[Case], Outcome]
RIDGE = 1.0  # as if each coefficient had been seen at 0 with a standard error of 1
BINS = np.linspace(0.0, 1.0, 11)
FOLDS = 5
SOURCES = ("table", "experiments")
# Rows that experiments read, and the share of tables whose experiments run out of time.
ROWS, IN_HASTE, SECONDS = (32, 64, 128), 0.1, 3.0


def answers(label: dict[str, Any], *, model: bool) -> set[str]:
    """Return the slugs that are right for one of a table's faults."""
    key = "acceptable_each_with_model" if model else "acceptable_each"
    several = [fault["acceptable"] for fault in label.get("faults", [])] + label.get(key, [])
    return {*label["acceptable"], *(slug for one in several for slug in one)}


def observed(path: Path, label: dict[str, Any], run: Run | None) -> list[dict[str, Any]]:
    """Return predictors and outcome of each cause that a table, or an experiment on it, names."""
    table = rcdiag.open_table(str(path))
    case = read_case(table, *pair_of_table(table), prompts=run is not None)
    with np.errstate(all="ignore"):
        if run is None:
            # That the rest is rounding is no cause beside a fault.
            named = suspicions(Features(case))
            faults = [one for one in named if one[0].name not in NOTHING_WRONG]
            return _observations(Features(case), faults or named, answers(label, model=False))
        _, outcome = verdict_with_experiments(case, run)
        assert outcome is not None
        found = [(cause_of(slug), suspicion) for slug, suspicion in outcome.suspicions]
        return _observations(Features(outcome.sample.case), found, answers(label, model=True))


def _observations(
    features: Features, named: list[tuple[Cause, Suspicion]], right: set[str]
) -> list[dict[str, Any]]:
    return [
        {
            "source": source_of(found),
            "cause": cause.name,
            "predictors": predictors(features, cause, found),
            "right": "*" in right or cause.name in right,
        }
        for cause, found in named
    ]


def of_first(seed: int, number: int, path: Path, *, model: bool) -> list[dict[str, Any]]:
    """Observe a table of the first generator, alone or with its checkpoint."""
    label = make_table(seed, number, path)
    if not model:
        return observed(path, label, None)
    folder = ROOT / label["model"]

    def run(case: Case) -> Outcome:
        steps = case.facts.step

        def folder_of(row: int) -> Path:
            return Path(str(folder).format(step=0 if steps is None else int(steps[row])))

        return run_experiments(case, Fleet(folder_of))

    return observed(path, label, run)


def of_second(seed: int, number: int, path: Path, *, model: bool) -> list[dict[str, Any]]:
    """Observe a table of the second generator, alone or, if small, with its model."""
    if not model:
        table, label = make(seed, number)
        pq.write_table(table, path)
        return observed(path, label, None)
    table, label, checkpoints = make_with_checkpoint(seed, number)
    pq.write_table(table, path)
    rng = np.random.default_rng([seed, number, 2])
    rows, hasty = int(rng.choice(ROWS)), rng.random() < IN_HASTE

    def run(case: Case) -> Outcome:
        given = ExperimentOptions(
            rows=rows,
            checkpoints=list(checkpoints.others),
            deadline=time.monotonic() + SECONDS if hasty else None,
        )
        of_row = checkpoints.of_row[case.row]
        return run_experiments(case, replace(checkpoints, of_row=of_row), given)

    return observed(path, label, run)


def stored(
    store: Path, name: str, observe: Callable[[int, Path], list[dict[str, Any]]], count: int
) -> Iterator[dict[str, Any]]:
    """Yield the observations of some tables, each from the store where it is there."""
    for number in range(count):
        kept = store / f"{name}-{number:04}.json"
        if not kept.exists():
            kept.write_text(json.dumps(observe(number, store / "table.parquet")))
        yield from json.loads(kept.read_text())


def fitted(x: Array, y: Array) -> Array:
    """Return the coefficients of a logistic regression with a ridge, by Newton's method."""
    weights = np.zeros(x.shape[1])
    for _ in range(50):
        p = 1.0 / (1.0 + np.exp(-x @ weights))
        slope = x.T @ (y - p) - RIDGE * weights
        curvature = (x * (p * (1.0 - p))[:, None]).T @ x + RIDGE * np.eye(x.shape[1])
        step = np.linalg.solve(curvature, slope)
        weights += step
        if np.abs(step).max() < 1e-9:
            break
    return weights


def held_out(x: Array, y: Array) -> Array:
    """Return the probability of every observation by a fit that has not seen its fold."""
    fold = np.random.default_rng(0).permutation(len(y)) % FOLDS
    p = np.empty(len(y))
    for number in range(FOLDS):
        weights = fitted(x[fold != number], y[fold != number])
        p[fold == number] = 1.0 / (1.0 + np.exp(-x[fold == number] @ weights))
    return p


def calibration(p: Array, y: Array) -> list[str]:
    """Return, for each bin of .1, how many causes were named so surely and how many are right."""
    place = np.clip(np.digitize(p, BINS) - 1, 0, len(BINS) - 2)
    return [
        f"{BINS[index]:.1f} to {BINS[index + 1]:.1f}: {int(y[place == index].sum())} right of "
        f"{int((place == index).sum())}, {p[place == index].mean():.2f} on the mean"
        for index in np.unique(place)
    ]


def section(source: str, seen: list[dict[str, Any]]) -> list[str]:
    """Fit the coefficients of one source, print its calibration and return its part of the file."""
    mine = [one for one in seen if one["source"] == source]
    names = list(mine[0]["predictors"])
    x = np.array([[one["predictors"][name] for name in names] for one in mine])
    y = np.array([float(one["right"]) for one in mine])
    text = [f"{source}: {len(y)} causes, held out", *calibration(held_out(x, y), y)]
    sys.stdout.write("\n".join(text) + "\n")
    weights = fitted(x, y)
    return [
        "",
        f"[{source}]  # of {len(y)} named causes",
        *(f"{json.dumps(name)} = {value:.4f}" for name, value in zip(names, weights, strict=True)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, required=True, help="where observations are kept")
    parser.add_argument("--seed", type=int, nargs=3, default=(9001, 9002, 6000))
    parser.add_argument("--first", type=int, default=1000, help="tables of the first generator")
    parser.add_argument("--second", type=int, default=1000, help="tables of the second")
    parser.add_argument("--first-with-model", type=int, default=100)
    parser.add_argument("--second-with-model", type=int, default=400)
    given = parser.parse_args()
    given.store.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    first, second, small = given.seed
    parts = (
        ("first", partial(of_first, first, model=False), given.first),
        ("second", partial(of_second, second, model=False), given.second),
        ("first-with-model", partial(of_first, first, model=True), given.first_with_model),
        ("second-with-model", partial(of_second, small, model=True), given.second_with_model),
    )
    seen = [one for part in parts for one in stored(given.store, *part)]
    lines = [
        "# Coefficients of the confidence in a named cause, by predictor; made by",
        f"# python -m tests.faults.fit --seed {first} {second} {small} --first {given.first} "
        f"--second {given.second} \\",
        f"#   --first-with-model {given.first_with_model} --second-with-model "
        f"{given.second_with_model} --store FOLDER",
        *(line for source in SOURCES for line in section(source, seen)),
    ]
    COEFFICIENTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
