"""Fit how sure a named cause is: `python -m tests.faults.fit table --store FOLDER`.

Tables of both generators are made and read: `table` reads them alone, `experiments` with the
trainer's checkpoint of the first generator's (seconds a table), and with the recurrent model of
small ones of the second (one second a table). Each cause that is named is one observation: the
predictors of `rcdiag.diagnosis.confidence`, and whether the cause is an answer to a fault of the
table. A logistic regression with a ridge gives the coefficients, which become the source's part of
`confidence.toml` beside that module. Observations are kept by table, so that a second fit is quick.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import tomllib
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
from rcdiag.diagnosis.causes.cause import EXCLUSIVE_STAGES
from rcdiag.diagnosis.confidence import COEFFICIENTS, predictors
from rcdiag.diagnosis.experiments.conclude import run_experiments
from rcdiag.diagnosis.experiments.outcome import ExperimentOptions, Outcome
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.judge import Named, suspicions
from rcdiag.diagnosis.verdict import verdict_with_experiments
from rcdiag.progress import SILENT
from rcdiag.results.diagnosis import NOTHING_WRONG
from rcdiag.table.survey import known_steps
from rcdiag.usecases.case_of_table import pair_of_table, read_case
from rcdiag.usecases.checkpoints import Model, tried_checkpoints
from rcdiag.usecases.diagnose import runner_of
from tests.faults.other.forward import make_with_checkpoint
from tests.faults.other.make import make
from tests.faults.prompts import ROOT
from tests.faults.tables import make_table

Array = NDArray[np.float64]
Run = Callable[[Case], Outcome]
RIDGE = 1.0  # ridge: a prior of 0 with a standard deviation of 1 for each coefficient
BINS = np.linspace(0.0, 1.0, 11)
FOLDS = 5
# Rows that experiments read, and the share of tables whose experiments run out of time.
ROWS, IN_HASTE, SECONDS = (32, 64, 128), 0.1, 3.0


def answers(label: dict[str, Any], *, model: bool) -> set[str]:
    """Return the slugs that are correct for one of a table's faults."""
    key = "acceptable_each_with_model" if model else "acceptable_each"
    several = [fault["acceptable"] for fault in label.get("faults", [])] + label.get(key, [])
    return {*label["acceptable"], *(slug for one in several for slug in one)}


def observed(path: Path, label: dict[str, Any], run: Run | None) -> list[dict[str, Any]]:
    """Return predictors and outcome of each cause that a table, or an experiment on it, names."""
    table = rcdiag.open_table(str(path))
    case = read_case(table, *pair_of_table(table), prompts=run is not None)
    with np.errstate(all="ignore"):
        table = suspicions(Features(case))
        if run is None:
            return observations(Features(case), table, table, answers(label, model=False))
        _, outcome = verdict_with_experiments(case, run)
        assert outcome is not None
        settled = [found for found in table if found.cause.stage not in EXCLUSIVE_STAGES]
        named = [*settled, *outcome.suspicions]
        of_sample = Features(outcome.sample.case)
        return observations(of_sample, outcome.suspicions, named, answers(label, model=True))


def observations(
    features: Features, found: Named, named: Named, right: set[str]
) -> list[dict[str, Any]]:
    """Return an observation for each cause that is found.

    Engine noise beside a named fault does not count as a cause.
    """
    faults = any(one.slug not in NOTHING_WRONG for one in named)
    return [
        {
            "cause": one.slug,
            "predictors": predictors(features, one),
            "right": "*" in right or one.slug in right,
        }
        for one in found
        if not faults or one.slug not in NOTHING_WRONG
    ]


def of_first(seed: int, number: int, path: Path, *, model: bool) -> list[dict[str, Any]]:
    """Observe a table of the first generator, alone or with its checkpoint."""
    label = make_table(seed, number, path)
    return observed(path, label, runner(path, str(ROOT / label["model"])) if model else None)


def runner(path: Path, model: str) -> Run:
    """Return the function that runs the experiments as `rcdiag diagnose --model` does."""
    given = Model(model)
    steps = known_steps(rcdiag.open_table(str(path)))
    tried = tried_checkpoints(given, [], [*steps, 0][:1])
    return runner_of(given, tried, 256, None, SILENT)


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
    """Yield the observations of some tables, from the store if available."""
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
    """Return the out-of-fold probability of every observation."""
    fold = np.random.default_rng(0).permutation(len(y)) % FOLDS
    p = np.empty(len(y))
    for number in range(FOLDS):
        weights = fitted(x[fold != number], y[fold != number])
        p[fold == number] = 1.0 / (1.0 + np.exp(-x[fold == number] @ weights))
    return p


def calibration(p: Array, y: Array) -> list[str]:
    """Return for each confidence bin of .1 the numbers of named and of correct causes."""
    place = np.clip(np.digitize(p, BINS) - 1, 0, len(BINS) - 2)
    return [
        f"{BINS[index]:.1f} to {BINS[index + 1]:.1f}: {int(y[place == index].sum())} right of "
        f"{int((place == index).sum())}, {p[place == index].mean():.2f} on the mean"
        for index in np.unique(place)
    ]


def section(seen: list[dict[str, Any]], command: str, tables: int) -> dict[str, Any]:
    """Fit the coefficients of one source, print its calibration and return its part of the file."""
    names = list(seen[0]["predictors"])
    x = np.array([[one["predictors"][name] for name in names] for one in seen])
    y = np.array([float(one["right"]) for one in seen])
    text = [f"{len(y)} causes of {tables} tables, held out", *calibration(held_out(x, y), y)]
    sys.stdout.write("\n".join(text) + "\n")
    coefficients = dict(zip(names, fitted(x, y).tolist(), strict=True))
    return {"made_by": command, "tables": tables, "causes": len(y), "coefficients": coefficients}


def written(sections: dict[str, dict[str, Any]]) -> str:
    """Return the text of the file with all sources' coefficients."""
    lines = ["# Coefficients of the confidence in a named cause, by predictor, for each source."]
    for source, part in sections.items():
        lines += ["", f"[{source}]"]
        lines += [f"{name} = {json.dumps(part[name])}" for name in ("made_by", "tables", "causes")]
        lines += ["", f"[{source}.coefficients]"]
        lines += [f"{json.dumps(name)} = {at:.4f}" for name, at in part["coefficients"].items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", choices=("table", "experiments"))
    parser.add_argument("--tables", type=int, nargs=2, default=(1000, 1000), help="by generator")
    parser.add_argument("--seed", type=int, nargs=2, default=(9001, 6000), help="by generator")
    parser.add_argument("--store", type=Path, required=True, help="where observations are kept")
    given = parser.parse_args()
    given.store.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    model = given.source == "experiments"
    seen = [
        one
        for name, observe, seed, count in zip(
            (f"{given.source}-first", f"{given.source}-second"),
            (of_first, of_second),
            given.seed,
            given.tables,
            strict=True,
        )
        for one in stored(given.store, name, partial(observe, seed, model=model), count)
    ]
    command = f"python -m tests.faults.fit {given.source} --tables {given.tables[0]} "
    command += f"{given.tables[1]} --seed {given.seed[0]} {given.seed[1]} --store FOLDER"
    sections = tomllib.loads(COEFFICIENTS.read_text())
    sections[given.source] = section(seen, command, sum(given.tables))
    COEFFICIENTS.write_text(written(sections))


if __name__ == "__main__":
    main()
