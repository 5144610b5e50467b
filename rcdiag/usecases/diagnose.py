"""Use case `diagnose`: the table's own evidence, then experiments with the trainer's checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.checks import CheckInput, findings
from rcdiag.engines.checkpoint import check_checkpoint, text_config, weight_files
from rcdiag.errors import RcdiagError, setting
from rcdiag.results.base import MetricValue
from rcdiag.results.diagnose import DiagnoseResult, ExperimentResult, WeightsOfRow
from rcdiag.table.table import Table
from rcdiag.usecases.case import read_case
from rcdiag.usecases.progress import Progress
from rcdiag.usecases.provenance import provenance

if TYPE_CHECKING:
    from rcdiag.diagnosis.experiments.conclude import Outcome

STEP = "{step}"
MOST_CHECKPOINTS = 12  # of a folder, those nearest to the trainer's first
NEIGHBOURS = 2  # checkpoints beside the trainer's that are tried unasked
MOST_EXPERIMENTS = 40  # in a result, of one column


@dataclass(frozen=True, slots=True)
class Model:
    """The trainer's checkpoint: one folder for all rows, or one for every step."""

    name: str

    @property
    def by_step(self) -> bool:
        """Tell whether the folder depends on the row's step."""
        return STEP in self.name

    def of_step(self, step: int | None) -> Path:
        """Return the folder for a step of the table, checked."""
        if not self.by_step:
            return check_checkpoint(self.name)
        if step is None:
            return check_checkpoint(str(self._newest()))
        return check_checkpoint(self.name.replace(STEP, str(step)))

    def _newest(self) -> Path:
        found = neighbours(Path(self.name))
        if not found:
            raise RcdiagError(
                f"{setting('model', self.name)}: the table has no column `step`, and no folder "
                "fits the name",
                hint="name one folder",
            )
        return found[-1]


def neighbours(pattern: Path) -> list[Path]:
    """List the checkpoints that a name with {step} in place of the number stands for, in order."""
    parent, name = pattern.parent, pattern.name
    before, _, after = name.partition(STEP)
    found = []
    for folder in parent.glob(f"{before}*{after}") if parent.is_dir() else ():
        number = folder.name.removeprefix(before).removesuffix(after)
        if number.isdigit() and (folder / "config.json").is_file() and weight_files(folder):
            found.append((int(number), folder))
    return [folder for _, folder in sorted(found)]


def beside(model: Path) -> list[Path]:
    """List checkpoints of other steps beside a checkpoint, nearest in number first.

    `step_4` lies beside `step_8`: the same name but for its last number, the same architecture.
    """
    digits = "".join(reversed([c for c in _reversed_number(model.name)]))
    if not digits:
        return []
    start = model.name.rindex(digits)
    pattern = model.parent / f"{model.name[:start]}{STEP}{model.name[start + len(digits) :]}"
    own = text_config(model)
    sizes = ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")
    others = [
        folder
        for folder in neighbours(pattern)
        if folder.resolve() != model.resolve()
        and all(text_config(folder).get(size) == own.get(size) for size in sizes)
    ]
    number = int(digits)
    return sorted(
        others,
        key=lambda folder: abs(
            int(folder.name[start:].removesuffix(model.name[start + len(digits) :])) - number
        ),
    )


def _reversed_number(name: str) -> str:
    """Return the last run of digits of a name, from its end to its beginning."""
    made = ""
    for letter in reversed(name):
        if letter.isdigit():
            made += letter
        elif made:
            break
    return made


def folders_of(names: Sequence[str | Path]) -> list[Path]:
    """Return the checkpoints that a user names: each a checkpoint, or a folder of checkpoints."""
    folders: list[Path] = []
    for name in names:
        path = Path(name)
        inside = (
            sorted(one for one in path.iterdir() if (one / "config.json").is_file())
            if path.is_dir() and not (path / "config.json").is_file()
            else []
        )
        folders += inside or [check_checkpoint(str(name))]
    if len(folders) > MOST_CHECKPOINTS:
        folders = folders[-MOST_CHECKPOINTS:]
    return folders


def tried_checkpoints(model: Model, named: Sequence[Path], steps: Sequence[int]) -> list[Path]:
    """Return the checkpoints to try: those named, else neighbours of the trainer's."""
    if named:
        own = {model.of_step(step).resolve() for step in steps} if not model.by_step else set()
        return [folder for folder in named if folder.resolve() not in own]
    if model.by_step:
        return list(reversed(neighbours(Path(model.name))))[: MOST_CHECKPOINTS // 2]
    return beside(model.of_step(None))[:NEIGHBOURS]


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
    """Diagnose a table, with experiments where a checkpoint is given."""
    from rcdiag.diagnosis.verdict import verdict_with_experiments

    began = time.monotonic()
    case = read_case(table, sampler, trainer, prompts=model is not None)
    run: Callable[[Case], Outcome] | None = None
    if model is not None:
        deadline = None if budget is None else began + budget
        run = _runner(model, checkpoints, rows, deadline, progress)
    diagnosis, outcome = verdict_with_experiments(case, run)
    result = DiagnoseResult(
        provenance=provenance(table, seed),
        num_sequences=table.num_rows,
        num_tokens=int(case.mask.sum()),
        trainer_model=None if model is None else model.name,
        checkpoints=[str(folder) for folder in checkpoints],
        rows_read=0 if outcome is None else len(outcome.scene.rows),
        noise_scale=None if outcome is None else outcome.scene.noise,
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
    given = CheckInput(result=result, naming=table.naming)
    return replace(result, findings=findings(given))


def _runner(
    model: Model,
    checkpoints: Sequence[Path],
    rows: int,
    deadline: float | None,
    progress: Progress,
) -> Callable[[Case], Outcome]:
    """Make the function that runs the experiments on a case."""

    def run(case: Case) -> Outcome:
        from rcdiag.diagnosis.experiments.conclude import Given, experimental
        from rcdiag.engines.hf.fleet import Fleet
        from rcdiag.engines.tokenizer import coders

        steps = case.facts.step
        folders = {
            step: model.of_step(step)
            for step in ([None] if steps is None else sorted({int(one) for one in steps}))
        }

        def folder_of(row: int) -> Path:
            return folders[None if steps is None else int(steps[row])]

        encode, decode = coders(folder_of(0))
        progress.say(f"scoring rows with {folder_of(0)}")
        return experimental(
            case,
            Fleet(folder_of),
            Given(
                checkpoints=[one for one in checkpoints if one not in folders.values()]
                or list(checkpoints),
                encode=encode,
                decode=decode,
                rows=rows,
                deadline=deadline,
                progress=lambda name: progress.say(f"experiment: {name}"),
            ),
        )

    return run


def _experiments(outcome: Outcome) -> list[ExperimentResult]:
    """List the trials of both columns, the best of each column first."""
    policies = {side.name: side.policy for side in outcome.sides}
    listed: list[ExperimentResult] = []
    for name, policy in policies.items():
        trials = sorted(
            (trial for trial in outcome.trials if trial.side == name), key=lambda one: -one.gain
        )
        for trial in trials[:MOST_EXPERIMENTS]:
            listed.append(
                ExperimentResult(
                    experiment=trial.experiment,
                    cause=trial.slug,
                    column=policy,
                    setting=trial.setting,
                    explained=trial.tells and trial.left.within(outcome.scene.noise),
                    rms_before=trial.before.rms,
                    rms_left=trial.left.rms,
                    gain=trial.gain,
                    z=trial.z,
                    values=dict(trial.values),
                    tested_tokens=len(trial.at),
                    seconds=trial.seconds,
                )
            )
    return listed


def _weights(outcome: Outcome) -> list[WeightsOfRow]:
    """List every row's posterior over the candidates' weights."""
    policies = {side.name: side.policy for side in outcome.sides}
    rows = outcome.scene.case.row
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
