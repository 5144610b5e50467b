"""`rcdiag.diagnose`: name the causes of a mismatch, with experiments on the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rcdiag.api.usecase import Steps, usecase
from rcdiag.errors import RcdiagError, setting
from rcdiag.formats import listed, plural
from rcdiag.progress import SILENT, Progress
from rcdiag.results import DiagnoseResult
from rcdiag.table.opening import Source, open_table
from rcdiag.table.survey import known_steps
from rcdiag.table.unknown_file import UnknownFormatError
from rcdiag.usecases.case_of_table import pair_of_table
from rcdiag.usecases.checkpoints import Model, folders_of, tried_checkpoints
from rcdiag.usecases.diagnose import diagnose as run
from rcdiag.usecases.diagnose_log import diagnose_logs, logged_runs


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
    keys: Mapping[str, str] | None = None,
    trainer: str | None = None,
    trainer_config: str | Path | None = None,
    rows: int = 256,
    seed: int = 0,
    progress: Progress | None = None,
) -> Steps[DiagnoseResult]:
    """Name the causes of a mismatch; with a checkpoint, test them by experiments.

    A training log instead of a dump is diagnosed from its own numbers: what moved, when, and which
    causes can explain it.

    Args:
        source: a trainer's dump or a parquet table: file, folder, glob or URL; several of one run
            are joined. In Python also an open `Table`, a data frame, an Arrow table, or a mapping
            of columns.
        model: the trainer's checkpoint folder; `{step}` in it stands for each row's step. Its
            log-probs are compared with both columns.
        checkpoints: other checkpoints to test, or a folder of them; by default those of
            neighbouring steps next to `model`.
        budget: seconds after which no new experiment starts.
        behavior: policy that sampled; `rollout` by default.
        target: the trainer's policy; `old` by default; log_ratio = target - behavior, in nats.
        columns: names of columns in the files, by the names that rcdiag knows; an empty one reads
            none.
        format: format of the dump, where its files do not show it.
        given: facts that the dump lacks, for all rows. `{"temperature": 0.7, "group_size": 8}`
        keys: for a training log: rcdiag's name of a quantity, or `step`, -> the key under which
            it is logged.
        trainer: for a training log: the trainer that wrote it, if its keys do not tell.
        trainer_config: for a training log: the run's own configuration file, which says what its
            correction does.
        rows: about how many rows to score with the checkpoint, spread over the table.
        seed: seed of everything that is drawn at random.
        progress: listener for progress.
    """
    if rows < 1:
        raise RcdiagError(f"{setting('rows', rows)}: out of range", hint="take 1 or more")
    if budget is not None and budget <= 0:
        raise RcdiagError(f"{setting('budget', budget)}: out of range", hint="take seconds above 0")
    needed = ["prompt_ids"] if model is not None else []
    named = [checkpoints] if isinstance(checkpoints, (str, Path)) else list(checkpoints)
    if named and model is None:
        raise RcdiagError(
            f"{setting('checkpoints', named[0], '--checkpoint')}: other checkpoints are compared "
            "with the trainer's",
            hint=setting("model", "PATH"),
        )
    try:
        table = open_table(
            source,
            columns=columns,
            needed=needed,
            format=format,
            given=given,
            progress=progress,
        )
    except RcdiagError as refused:
        unknown = isinstance(refused, UnknownFormatError)
        runs = None if format is not None else logged_runs(source, keys, no_dump=unknown)
        if runs is None:
            raise
        if model is not None:
            raise RcdiagError(
                f"{setting('model', model)}: a training log has no tokens to score",
                hint="give the run's dump, or the log alone",
            ) from refused
        length = sum(len(one.log.rows) for one in runs)
        logs = listed(list(dict.fromkeys(str(one.log.path) for one in runs)))
        yield f"{logs}: a training log of {plural(length, 'step')}; would diagnose it"
        return diagnose_logs(
            runs, trainer=trainer, trainer_config=trainer_config, given=given or {}, seed=seed
        )
    _refuse_options_of_logs(table.title, trainer_config, keys)
    sampler, trainer_side = pair_of_table(table, behavior, target)
    for name in (sampler, trainer_side):
        if name is not None:
            table.require(f"{name}_log_probs")
    trainer_model = None if model is None else Model(str(model))
    tried: list[Path] = []
    if trainer_model is not None:
        steps = known_steps(table)
        if not trainer_model.by_step or not steps:
            trainer_model.of_step(None)
        tried = tried_checkpoints(trainer_model, folders_of(named), [*steps, 0][:1])
    pair = sampler if trainer_side is None else f"{sampler} -> {trainer_side}"
    with_model = "" if trainer_model is None else f" with {trainer_model.name}"
    yield f"{table.title}: {table.num_rows:,} sequences; would diagnose {pair}{with_model}"
    return run(
        table,
        sampler=sampler,
        trainer=trainer_side,
        model=trainer_model,
        checkpoints=tried,
        budget=budget,
        rows=rows,
        seed=seed,
        progress=progress or SILENT,
    )


def _refuse_options_of_logs(
    table: str, trainer_config: str | Path | None, keys: Mapping[str, str] | None
) -> None:
    """Refuse what only a training log can use."""
    if trainer_config is not None:
        raise RcdiagError(
            f"{setting('trainer_config', trainer_config)}: a configuration is for a training log, "
            f"and {table} is a table",
            hint="`rcdiag score` takes it with a table",
        )
    if keys:
        raise RcdiagError(
            f"{setting('keys', ', '.join(keys), '--key')}: keys are for a training log, and "
            f"{table} is a table",
            hint=f"name columns by {setting('columns', 'CANONICAL=NAME', '--column')}",
        )
