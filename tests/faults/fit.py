"""Fit how sure a named cause is: `python -m tests.faults.fit FOLDER [FOLDER ...]`.

Each folder holds tables of one of the two generators with their `labels.json`. Every cause that the
table alone gets a name for is one observation: the features of `rcdiag.diagnosis.confidence`, and
whether the cause is an answer to a fault of the table. A logistic regression with a ridge gives the
coefficients, which are written to `confidence.toml` beside that module.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import rcdiag
from rcdiag.diagnosis.causes.cause import Suspicion
from rcdiag.diagnosis.confidence import COEFFICIENTS, predictors
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.judge import suspicions
from rcdiag.results.diagnosis import NOTHING_WRONG
from rcdiag.usecases.case_of_table import pair_of_table, read_case

Array = NDArray[np.float64]
RIDGE = 1.0  # as if each coefficient had been seen at 0 with a standard error of 1
BINS = np.linspace(0.0, 1.0, 11)


def labels_of(folder: Path) -> list[dict[str, Any]]:
    """Return the labels of a folder's tables, each with its file and the answers to its faults."""
    document = json.loads((folder / "labels.json").read_text())
    labels = document["tables"] if isinstance(document, dict) else document
    return [
        {"path": folder / label.get("file", f"t{number:03}.parquet"), "answers": answers(label)}
        for number, label in enumerate(labels)
    ]


def answers(label: dict[str, Any]) -> set[str]:
    """Return the slugs that are right for one of a table's faults."""
    several = [fault["acceptable"] for fault in label.get("faults", [])]
    several += label.get("acceptable_each", [])
    return {*label.get("acceptable", []), *(slug for one in several for slug in one)}


def observed(path: Path, right: set[str]) -> list[tuple[dict[str, float], bool]]:
    """Return features and outcome of each cause that is named of a table."""
    table = rcdiag.open_table(str(path))
    case = read_case(table, *pair_of_table(table))
    features = Features(case)
    with np.errstate(all="ignore"):
        named: list[tuple[Any, Suspicion]] = suspicions(features)
        # That the rest is rounding is no cause beside a fault.
        faults = [one for one in named if one[0].name not in NOTHING_WRONG]
        return [
            (predictors(features, cause, found), "*" in right or cause.name in right)
            for cause, found in faults or named
        ]


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


def calibration(p: Array, y: Array) -> list[str]:
    """Return, for each bin of .1, how many causes were named so surely and how many are right."""
    place = np.clip(np.digitize(p, BINS) - 1, 0, len(BINS) - 2)
    return [
        f"{BINS[index]:.1f} to {BINS[index + 1]:.1f}: {int(y[place == index].sum())} right of "
        f"{int((place == index).sum())}, {p[place == index].mean():.2f} on the mean"
        for index in np.unique(place)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    folders = parser.parse_args().folders
    tables = [label for folder in folders for label in labels_of(folder)]
    seen = [one for label in tables for one in observed(label["path"], label["answers"])]
    names = list(seen[0][0])
    x = np.array([[found[name] for name in names] for found, _ in seen])
    y = np.array([float(right) for _, right in seen])
    # Five folds by table order: every cause is judged by a fit that has not seen its fold.
    fold = np.arange(len(y)) * 5 // len(y)
    held_out = np.empty(len(y))
    for number in range(5):
        weights = fitted(x[fold != number], y[fold != number])
        held_out[fold == number] = 1.0 / (1.0 + np.exp(-x[fold == number] @ weights))
    sys.stdout.write("\n".join(calibration(held_out, y)) + "\n")
    lines = [
        "# Coefficients of the confidence in a named cause, by feature; made by",
        "# python -m tests.faults.fit FOLDER ...",
        f"tables = {len(tables)}",
        f"causes = {len(y)}",
        "",
        "[coefficients]",
        *(
            f"{json.dumps(name)} = {value:.4f}"
            for name, value in zip(names, fitted(x, y), strict=True)
        ),
    ]
    COEFFICIENTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
