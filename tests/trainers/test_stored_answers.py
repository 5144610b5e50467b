"""Corrections against stored numbers of the trainers' own code."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rcdiag.results import CorrectionResult
from rcdiag.statistics.pair import PolicyPair
from rcdiag.table.token_batch import sampled_tokens
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.plan import plan_corrections
from rcdiag.usecases.corrected import CorrectionRows, asked_by, correction_results
from tests.builders import summed
from tests.trainers.answers import FOLDER, Corrected, read_answers
from tests.trainers.batches import BATCHES

STORED = {path.stem: path for path in sorted(FOLDER.glob("*/*.json")) if path.stem in TRAINERS}
TOLERANCE = {"float64": 1e-9, "float32": 1e-3}


def result_of(trainer: str, case: Corrected, cuts: int) -> CorrectionResult:
    """Compute the correction of a stored case, with its rows in this number of shards."""
    plan = plan_corrections(TRAINERS[trainer], {"it": case.settings}, case.arithmetic)
    batch = BATCHES[case.batch]
    wanted = asked_by(plan)
    masked = bool(wanted.of_masked)
    shards = []
    for part in np.array_split(np.arange(len(batch.mask)), cuts):
        rows = batch.trajectories(slice(part[0], part[-1] + 1))
        tokens = sampled_tokens(rows, ("rollout", "old"), masked=masked)
        pair = PolicyPair(tokens, "rollout", "old")
        shards.append(CorrectionRows.of(pair.by_step(), plan, wanted))
    return correction_results(plan, summed(shards).whole)["it"]


def kept(case: Corrected) -> tuple[int, int]:
    """Return kept tokens and sequences; OPSM of TRL and Axolotl multiplies the loss by 0."""
    if case.rows_in_loss is None:
        return case.kept_tokens, case.kept_sequences
    mask = BATCHES[case.batch].mask & np.array(case.rows_in_loss)[:, None]
    return int(mask.sum()), int(mask.any(axis=1).sum())


def near(theirs: float, ours: float, tolerance: float) -> bool:
    if math.isnan(theirs) or math.isnan(ours):
        return math.isnan(theirs) and math.isnan(ours)
    return math.isclose(theirs, ours, rel_tol=tolerance, abs_tol=tolerance * 1e-3)


def differences(trainer: str, case: Corrected, cuts: int) -> list[str]:
    result, tolerance = result_of(trainer, case, cuts), TOLERANCE[case.arithmetic]
    lines = [f"only one has {key}" for key in case.metrics.keys() ^ result.metrics.keys()]
    if (result.kept_tokens, result.kept_sequences) != kept(case):
        lines.append(f"kept {kept(case)}, ours {result.kept_tokens}, {result.kept_sequences}")
    pairs = {
        name: (value, result.metrics[name])
        for name, value in case.metrics.items()
        if name in result.metrics
    }
    if (case.weight_sum is None) != (result.weight_sum is None):
        lines.append(f"weight sum {case.weight_sum}, ours {result.weight_sum}")
    elif case.weight_sum is not None:
        pairs["weight_sum"] = case.weight_sum, result.weight_sum
    return [f"{case.batch} {case.settings} {case.arithmetic}: {line}" for line in lines] + [
        f"{case.batch} {case.settings} {case.arithmetic} {name}: {theirs!r}, ours {ours!r}"
        for name, (theirs, ours) in pairs.items()
        if not near(theirs, ours, tolerance)
    ]


@pytest.mark.parametrize("cuts", [1, 2])
@pytest.mark.parametrize("trainer", STORED)
def test_corrections_are_those_of_the_trainer(trainer: str, cuts: int) -> None:
    cases = read_answers(STORED[trainer]).corrections
    assert [line for case in cases for line in differences(trainer, case, cuts)] == []
