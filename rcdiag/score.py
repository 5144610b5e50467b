"""Use case `score`: how far two recorded policies of a table are apart.

One pass over the table; the state of two shards is the sum of their states.
"""

from __future__ import annotations

import importlib.metadata
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.dumps.reader import Dump
from rcdiag.dumps.stream import read_trajectories
from rcdiag.errors import RcdiagError
from rcdiag.findings import score_findings
from rcdiag.results import MetricValue, ScoreResult
from rcdiag.statistics.extremes import NonFinite, WorstTokens
from rcdiag.statistics.histograms import (
    LOG_RATIO_EDGES,
    PROBABILITY_EDGES,
    log_ratio_counts,
    probability_counts,
)
from rcdiag.statistics.mismatch import mismatch
from rcdiag.statistics.table import SequenceTable, concatenate, sequence_table
from rcdiag.trajectories import Trajectories

LIBRARIES = ("rcdiag", "numpy", "pyarrow", "polars")


@dataclass
class ScoreState:
    """All that is kept of the rows read so far."""

    behavior: str
    target: str
    tables: list[SequenceTable] = field(default_factory=list)
    rows: int = 0
    log_ratio: NDArray[np.int64] | int = 0
    probabilities: NDArray[np.int64] | int = 0
    worst: WorstTokens = field(default_factory=WorstTokens)
    non_finite: NonFinite = field(default_factory=NonFinite)

    def add(self, trajectories: Trajectories) -> None:
        """Take in some rows."""
        pair = trajectories.pair(self.behavior, self.target)
        self.tables.append(sequence_table(pair, _clusters(trajectories), trajectories.step))
        self.rows += len(trajectories)
        self.log_ratio = self.log_ratio + log_ratio_counts(pair)
        self.probabilities = self.probabilities + probability_counts(pair)
        self.worst.add(trajectories, pair)
        self.non_finite.add(trajectories, (self.behavior, self.target))


def _clusters(trajectories: Trajectories) -> NDArray[np.uint64]:
    """The unit of dependence: the prompt group, or else the sequence itself."""
    if trajectories.group is not None:
        return trajectories.group
    first = trajectories.first_row
    return np.arange(first, first + len(trajectories), dtype=np.uint64)


def score(
    dump: Dump,
    *,
    behavior: str = "rollout",
    target: str = "old",
    seed: int = 0,
    origin: Dump | None = None,
) -> ScoreResult:
    """Mismatch of two recorded policies over all steps and per step.

    `origin` is the table that the user gave, where `dump` is its scored copy.
    """
    check_pair(dump, behavior, target)
    state = ScoreState(behavior, target)
    for trajectories in read_trajectories(dump, (behavior, target)):
        state.add(trajectories)
    table = concatenate(state.tables)
    if not len(table):
        raise RcdiagError(
            f"{dump.files[0].path}: no unmasked response token in the whole table",
            hint="response_mask is 1 for tokens that the policy sampled; is it inverted?",
        )
    values = mismatch(table, seed)
    policies = {
        name: about
        for name, about in dump.metadata.get("policies", {}).items()
        if name in (behavior, target)
    }
    return ScoreResult(
        provenance=_provenance(origin or dump, seed),
        behavior=behavior,
        target=target,
        num_sequences=len(table),
        num_tokens=int(table.lengths.sum()),
        empty_sequences=state.rows - len(table),
        policies=policies,
        mismatch=values,
        steps=_by_step(table, seed),
        findings=score_findings(state.non_finite, policies, values, state.rows - len(table)),
        figures=_figures(state),
        worst_tokens=state.worst.to_list(),
    )


def check_pair(dump: Dump, behavior: str, target: str, scored: Sequence[str] = ()) -> None:
    """Both policies are recorded, or among those that are about to be `scored`."""
    if behavior == target:
        raise RcdiagError(
            f"behavior and target are both `{behavior}`", hint="a mismatch needs two policies"
        )
    there = [*dump.policies, *(name for name in scored if name not in dump.policies)]
    missing = [name for name in (behavior, target) if name not in there]
    if missing and len(there) >= 2:
        raise RcdiagError(
            f"{dump.files[0].path}: no `{missing[0]}_log_probs`; there are policies "
            f"{', '.join(there)}",
            hint=f"choose two: --behavior {there[-2]} --target {there[-1]}; or score it: "
            f"--policy {missing[0]}=hf:float32,model=PATH",
        )
    for name in missing:
        dump.require(f"{name}_log_probs")


def _by_step(table: SequenceTable, seed: int) -> dict[str, Any]:
    """The same per training step, when there are several."""
    if table.step is None or len(steps := np.unique(table.step)) < 2:
        return {}
    found: dict[str, Any] = {}
    for step in steps:
        part = table.select(table.step == step)
        values: dict[str, MetricValue] = mismatch(part, seed)
        found[str(step)] = {
            "num_sequences": len(part),
            "num_tokens": int(part.lengths.sum()),
            "mismatch": values,
            "corrections": {},
        }
    return found


def _figures(state: ScoreState) -> dict[str, Any]:
    counts = np.asarray(state.probabilities)
    behavior, target = np.nonzero(counts)
    return {
        "log_ratio": {
            "edges": LOG_RATIO_EDGES.tolist(),
            "counts": np.asarray(state.log_ratio).tolist(),
        },
        "probabilities": {
            "edges": PROBABILITY_EDGES.tolist(),
            "cells": np.stack([behavior, target, counts[behavior, target]], axis=1).tolist(),
        },
    }


def _provenance(dump: Dump, seed: int) -> dict[str, Any]:
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "versions": {name: importlib.metadata.version(name) for name in LIBRARIES},
        "dump": [str(file.path) for file in dump.files],
        "rows": dump.num_rows,
        "fingerprint": dump.fingerprint,
        "seed": seed,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
