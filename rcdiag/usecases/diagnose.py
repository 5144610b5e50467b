"""Use case `diagnose`: the table's own evidence, then experiments with the trainer's checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.next_experiment import next_after_experiments
from rcdiag.progress import Progress
from rcdiag.results import Diagnosis
from rcdiag.results.base import MetricValue
from rcdiag.results.diagnose import DiagnoseResult, ExperimentResult, WeightsOfRow
from rcdiag.table.table import Table
from rcdiag.usecases.case_of_table import read_case
from rcdiag.usecases.checkpoints import Model, steps_of_model
from rcdiag.usecases.diagnosed import with_findings
from rcdiag.usecases.provenance import provenance

if TYPE_CHECKING:
    from rcdiag.diagnosis.experiments.hypothesis_tester import HypothesisTest
    from rcdiag.diagnosis.experiments.outcome import Outcome

MOST_TRIALS = 40  # tests of one column in a result; the best of each experiment is always listed


def diagnose(
    table: Table,
    *,
    sampler: str,
    trainer: str | None,
    model: Model | None,
    checkpoints: Sequence[Path],
    budget: float | None,
    rows: int,
    seed: int,
    progress: Progress,
) -> DiagnoseResult:
    """Diagnose a table, with experiments if a checkpoint is given."""
    from rcdiag.diagnosis.verdict import verdict_with_experiments

    began = time.monotonic()
    asked = model is not None and "prompt_ids" in table.columns
    case = read_case(table, sampler, trainer, prompts=asked)
    run: Callable[[Case], Outcome] | None = None
    if model is not None and asked:
        deadline = None if budget is None else began + budget
        run = runner_of(model, checkpoints, rows, deadline, progress)
    diagnosis, outcome = verdict_with_experiments(case, run)
    if model is not None and outcome is not None:
        diagnosis = _with_next_steps(diagnosis, case, outcome, model, checkpoints)
    device = None
    if run is not None:
        from rcdiag.engines.hf.model import choose_device, device_name

        device = device_name(choose_device(None))
    result = DiagnoseResult(
        provenance=provenance(table, seed, device),
        num_sequences=len(case.row),
        num_tokens=int(case.mask.sum()),
        trainer_model=None if model is None else model.name,
        checkpoints=[str(folder) for folder in checkpoints],
        steps_of_model=None if outcome is None else outcome.steps,
        rows_read=0 if outcome is None else len(outcome.sample.rows),
        noise_scale=None if outcome is None else outcome.sample.noise,
        token_temperature=None
        if outcome is None or outcome.temperature is None
        else MetricValue(
            value=outcome.temperature.value,
            low=outcome.temperature.low,
            high=outcome.temperature.high,
        ),
        experiments=[] if outcome is None else _experiments(outcome),
        weights=[] if outcome is None else _weights(outcome),
        open=[] if outcome is None else list(dict.fromkeys(outcome.open)),
        duration=time.monotonic() - began,
        diagnosis=diagnosis,
    )
    return with_findings(result, table)


def _with_next_steps(
    diagnosis: Diagnosis,
    case: Case,
    outcome: Outcome,
    model: Model,
    checkpoints: Sequence[Path],
) -> Diagnosis:
    """Replace the next steps by those after the experiments, and drop advice to run these."""
    causes = []
    for cause in diagnosis.causes:
        actions = [
            action
            for action in cause.actions
            if not (action.command or "").startswith("rcdiag diagnose ")
        ]
        causes.append(replace(cause, actions=actions))
    following = next_after_experiments(
        diagnosis,
        case,
        model=model.name,
        checkpoints=[str(folder) for folder in checkpoints],
        not_run=list(dict.fromkeys(outcome.open)),
    )
    return replace(diagnosis, causes=causes, next=following)


def runner_of(
    model: Model,
    checkpoints: Sequence[Path],
    rows: int,
    deadline: float | None,
    progress: Progress,
) -> Callable[[Case], Outcome]:
    """Make the function that runs the experiments on a case."""

    def run(case: Case) -> Outcome:
        from rcdiag.diagnosis.experiments.conclude import run_experiments
        from rcdiag.diagnosis.experiments.outcome import ExperimentOptions
        from rcdiag.engines.hf.fleet import Fleet
        from rcdiag.engines.tokenizer import coders

        chosen = steps_of_model(model, case, Fleet)
        if chosen is not None and case.facts.step is not None:
            case = case.take(np.isin(case.facts.step, chosen))
        steps = case.facts.step
        folders = {
            step: model.of_step(step)
            for step in ([None] if steps is None else sorted({int(one) for one in steps}))
        }

        def folder_of(row: int) -> Path:
            return folders[None if steps is None else int(steps[row])]

        progress.say(f"scoring rows with {folder_of(0)}")
        given = ExperimentOptions(
            checkpoints=[one for one in checkpoints if one not in folders.values()]
            or list(checkpoints),
            coders=cache(partial(coders, folder_of(0))),  # called for both sides
            rows=rows,
            deadline=deadline,
            progress=lambda name: progress.say(f"experiment: {name}"),
        )
        return replace(run_experiments(case, Fleet(folder_of), given), steps=chosen)

    return run


def _experiments(outcome: Outcome) -> list[ExperimentResult]:
    """List the tests of both columns, the best test of each column first."""
    from rcdiag.diagnosis.experiments.order import explains

    policies = {side.name: side.policy for side in outcome.sides}
    listed: list[ExperimentResult] = []
    for name, policy in policies.items():
        for test in _most_telling([one for one in outcome.tests if one.side == name]):
            listed.append(
                ExperimentResult(
                    experiment=test.experiment,
                    cause=test.slug,
                    column=policy,
                    setting=test.setting,
                    explained=explains(test, outcome.sample.noise),
                    rms_before=test.baseline.rms,
                    rms_left=test.residual.rms,
                    gain=test.gain,
                    z=test.z,
                    values=dict(test.values),
                    tested_tokens=len(test.at),
                    seconds=test.seconds,
                )
            )
    return listed


def _most_telling(tests: Sequence[HypothesisTest]) -> list[HypothesisTest]:
    """Return the best test of each experiment and the best of the other tests, the best first."""
    order = sorted(tests, key=lambda one: -one.gain)
    best: dict[str, HypothesisTest] = {}
    for one in order:
        best.setdefault(one.experiment, one)
    others = [one for one in order if one is not best[one.experiment]]
    kept = [*best.values(), *others[: max(MOST_TRIALS - len(best), 0)]]
    return sorted(kept, key=lambda one: -one.gain)


def _weights(outcome: Outcome) -> list[WeightsOfRow]:
    """List, for each row, the posterior probability of each candidate's weights."""
    policies = {side.name: side.policy for side in outcome.sides}
    rows = outcome.sample.case.row
    return [
        {
            "row": int(rows[row]),
            "column": policies[name],
            "row_explained": bool(weights.explained[index]),
            "probability": {
                candidate: float(share)
                for candidate, share in zip(weights.names, weights.posterior[:, index], strict=True)
            },
            "switch": None if weights.switch[index] < 0 else int(weights.switch[index]),
        }
        for name, weights in outcome.weights.items()
        for index, row in enumerate(weights.rows)
    ]
