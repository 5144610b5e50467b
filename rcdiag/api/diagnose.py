"""`rcdiag.diagnose`: the causes of a mismatch by name, by experiments with the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rcdiag.api.usecase import Steps, usecase
from rcdiag.errors import RcdiagError, setting
from rcdiag.results import DiagnoseResult
from rcdiag.table.survey import known_steps
from rcdiag.usecases.case_of_table import pair_of_table
from rcdiag.usecases.checkpoints import Model, folders_of, tried_checkpoints
from rcdiag.usecases.diagnose import diagnose as run
from rcdiag.usecases.progress import SILENT, Progress
from rcdiag.usecases.tables import Source, drawn, name_of, open_table


@usecase
def diagnose(
    source: Source,
    *,
    model: str | Path | None = None,
    checkpoints: str | Path | Sequence[str | Path] = (),
    budget: float | None = None,
    behavior: str | None = None,
    target: str | None = None,
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    given: Mapping[str, Any] | None = None,
    rows: int = 256,
    seed: int = 0,
    progress: Progress | None = None,
) -> Steps[DiagnoseResult]:
    """Name the causes of a mismatch; with the trainer's checkpoint tell look-alikes apart.

    Args:
        source: a dump in any format that rcdiag knows (file, directory, glob, URL), a list of them,
            an open `Table`, or a data frame, Arrow table or mapping of columns in memory. Dumps of
            one run that complete each other are joined.
        model: the trainer's checkpoint folder, whose log-probs are compared with both columns.
            `{step}` in it is filled from each row's step.
        checkpoints: other checkpoints whose weights are tried, or a folder of them; by default
            those of the nearest steps beside `model`.
        budget: seconds from which on no further experiment begins; by default all run that can
            still tell something.
        behavior: the policy that sampled; `rollout` by default.
        target: the policy that trains; `old` by default.
        columns: name that rcdiag knows -> name in the files.
        format: the dump's format, where it cannot be told from its files.
        given: what the dump lacks and you know, for all rows: `{"temperature": 0.7}`.
        rows: about how many rows the checkpoint scores, spread over the table.
        seed: seed of what is drawn at random.
        progress: listener for what happens meanwhile.
    """
    if rows < 1:
        raise RcdiagError(f"{setting('rows', rows)}: out of range", hint="take 1 or more")
    if budget is not None and budget <= 0:
        raise RcdiagError(f"{setting('budget', budget)}: out of range", hint="take seconds above 0")
    needed = ["prompt_ids"] if model is not None else []
    named = [checkpoints] if isinstance(checkpoints, (str, Path)) else list(checkpoints)
    if named and model is None:
        raise RcdiagError(
            f"{setting('checkpoints', named[0], '--checkpoint')}: other checkpoints are held "
            "against the trainer's",
            hint=setting("model", "PATH"),
        )
    table = open_table(
        source,
        columns=columns,
        needed=needed,
        format=format,
        given=given,
        progress=progress,
    )
    sampler, trainer = pair_of_table(table, behavior, target)
    for name in (sampler, trainer):
        if name is not None:
            table.require(f"{name}_log_probs")
    trainer_model = None if model is None else Model(str(model))
    tried: list[Path] = []
    if trainer_model is not None:
        steps = known_steps(table)
        if not trainer_model.by_step or not steps:
            trainer_model.of_step(None)
        tried = tried_checkpoints(trainer_model, folders_of(named), [*steps, 0][:1])
    pair = sampler if trainer is None else f"{sampler} -> {trainer}"
    with_model = "" if trainer_model is None else f" with {trainer_model.name}"
    yield f"{name_of(source)}: {table.num_rows:,} sequences; would diagnose {pair}{with_model}"
    return run(
        drawn(table, None, seed),
        sampler=sampler,
        trainer=trainer,
        model=trainer_model,
        checkpoints=tried,
        budget=budget,
        rows=rows,
        seed=seed,
        progress=progress or SILENT,
    )
