"""`rcdiag.sweep` tries every estimator and threshold; `rcdiag.emit` writes a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rcdiag.api.usecase import Steps, usecase
from rcdiag.errors import RcdiagError, setting
from rcdiag.progress import Progress
from rcdiag.results import SweepResult
from rcdiag.runners import runner_on
from rcdiag.table.drawn_rows import draw_rows
from rcdiag.table.opening import Source, open_table
from rcdiag.trainers import families
from rcdiag.usecases.chosen_pair import BEHAVIOR, TARGET, check_pair, refuse_one
from rcdiag.usecases.dry_run import pass_over
from rcdiag.usecases.sweep.candidates import find_candidate
from rcdiag.usecases.sweep.configuration import check_configuration, configuration
from rcdiag.usecases.sweep.run import sweep as measure


@usecase
def sweep(
    source: Source,
    *,
    behavior: str = "rollout",
    target: str = "old",
    thresholds: int = 60,
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    given: Mapping[str, Any] | None = None,
    trainer: str | None = None,
    emit: str | None = None,
    candidate: str | None = None,
    rows: int | None = None,
    seed: int = 0,
    on: str = "local",
    workers: int | None = None,
    progress: Progress | None = None,
) -> Steps[SweepResult]:
    """Try every estimator over its thresholds in one pass, and recommend one, or none.

    Args:
        source: a trainer's dump or a parquet table: file, folder, glob or URL; several of one run
            are joined. In Python also an open `Table`, a data frame, an Arrow table, or a mapping
            of columns.
        behavior: policy that sampled.
        target: the trainer's policy; log_ratio = target - behavior, in nats.
        thresholds: about how many settings of each family to try, from 2 to 100,000.
        columns: names of columns in the files, by the names that rcdiag knows; an empty one reads
            none.
        format: format of the dump, where its files do not show it.
        given: facts that the dump lacks, for all rows. `{"temperature": 0.7, "group_size": 8}`
        trainer: trainer whose default is shown beside the choice; no number depends on it; by
            default that of `emit`, else verl.
        emit: print only the recommended configuration, in the format of this trainer, on stdout. In
            Python it is checked in advance that `rcdiag.emit` can write it.
        candidate: a setting of your own to rank with the others; with `emit` the one to print. It
            is a family with its bounds: `seq_tis_3`, `token_icepop_0.4_3`.
        rows: about how many rows to read, in whole prompt groups: a first look at a huge dump.
        seed: seed of everything that is drawn at random.
        on: where parts of the table are read: `local`, `ray` (the running cluster) or
            `ray:ADDRESS`.
        workers: processes that read a large table; by default all cores that this process may use.
            A small table is read in this process, and so is every table with 1.
        progress: listener for progress.
    """
    runner = runner_on(on, None, workers)
    if not (isinstance(thresholds, int) and 2 <= thresholds <= 100_000):
        raise RcdiagError(
            f"{setting('thresholds', thresholds)}: wanted the number of settings of each family",
            hint="a whole number from 2 to 100000; thresholds of your own are candidates: "
            f"{setting('candidate', 'seq_tis_3')}",
        )
    if candidate is not None:
        find_candidate(candidate)
    if emit is not None:
        check_configuration(emit, candidate)
    needed = [f"{name}_log_probs" for name in (behavior, target)]
    table = draw_rows(
        open_table(
            source,
            columns=columns,
            needed=needed,
            format=format,
            given=given,
            progress=progress,
        ),
        rows,
        seed,
    )
    named = () if (behavior, target) == (BEHAVIOR, TARGET) else (behavior, target)
    refuse_one(table, "sweep", named)
    check_pair(table, behavior, target)
    with runner:
        yield (
            f"{table.title}: {table.num_rows:,} sequences; would sweep {behavior} -> {target}\n"
            f"  {pass_over(table, runner)}"
        )
        return measure(
            table,
            behavior=behavior,
            target=target,
            seed=seed,
            thresholds=thresholds,
            trainer=trainer or emit or "verl",
            own=[] if candidate is None else [candidate],
            runner=runner,
        )


def emit(result: SweepResult, trainer: str | None = None, candidate: str | None = None) -> str:
    """Write a correction as the configuration of a trainer, ready to paste.

    It is the one that the sweep recommends. If candidates cannot be distinguished, it switches the
    correction off and says so; if the trainer has no such estimator, it has only comments, which
    name those that the trainer has. `candidate` is another one of the sweep to write instead.
    RcdiagError if the trainer is not named or cannot express the candidate, and if the cause must
    be fixed first.
    """
    if not isinstance(result, SweepResult):
        raise RcdiagError(
            f"emit needs the result of a sweep, got {type(result).__name__}",
            hint=f"rcdiag.emit(rcdiag.sweep(table), {trainer or 'verl'!r})",
        )
    if trainer is None:
        raise RcdiagError(
            "emit needs the trainer whose configuration it should write",
            hint=f"rcdiag.emit(result, 'verl'), or one of {', '.join(families())}",
        )
    return configuration(result.recommendation, trainer, candidate)
