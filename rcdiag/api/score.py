"""`rcdiag.score`: how much two policies differ on the same tokens, scored first if asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rcdiag.api.usecase import Steps, usecase
from rcdiag.errors import RcdiagError, setting
from rcdiag.files import check_apart
from rcdiag.progress import SILENT, Progress
from rcdiag.results import ScoreResult
from rcdiag.runners import runner_on
from rcdiag.table.destination import Destination
from rcdiag.table.drawn_rows import draw_rows
from rcdiag.table.opening import Source, open_table
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.chosen_pair import (
    check_pair,
    choose_pair,
    only_policy,
)
from rcdiag.usecases.dry_run import check_rate, description
from rcdiag.usecases.plans import Settings, plan_of, with_hint_at_trainer
from rcdiag.usecases.reading import decoder_of
from rcdiag.usecases.score import score as measure
from rcdiag.usecases.score import score_of_one
from rcdiag.usecases.scored import (
    Policies,
    check_output,
    check_used,
    needed_columns,
    planned,
    scored_table,
    wanted_policies,
)
from rcdiag.usecases.shown_sequences import rows_named

if TYPE_CHECKING:
    from rcdiag.logs import Log


@usecase
def score(
    source: Source,
    *,
    behavior: str | None = None,
    target: str | None = None,
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    given: Mapping[str, Any] | None = None,
    model: str | Path | None = None,
    policies: Policies = (),
    ladder: Literal["precision", "engine"] | Sequence[str] = (),
    noise_floor: bool = False,
    trainer: str | None = None,
    presets: str | Sequence[str] = (),
    settings: Settings | None = None,
    trainer_config: str | Path | None = None,
    arithmetic: Literal["float64", "float32"] = "float64",
    carry: str | None = None,
    logged: str | Path | None = None,
    output: str | Path | None = None,
    include_text: bool | None = None,
    sequences: Sequence[int] | None = (),
    rows: int | None = None,
    seed: int = 0,
    on: str = "local",
    devices: str | int | None = None,
    workers: int | None = None,
    rate: float | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Steps[ScoreResult]:
    """Measure the mismatch of two policies on the same tokens; score them first if asked.

    Args:
        source: a trainer's dump or a parquet table: file, folder, glob or URL; several of one run
            are joined. In Python also an open `Table`, a data frame, an Arrow table, or a mapping
            of columns.
        behavior: policy that sampled; `rollout` by default.
        target: the trainer's policy; `old` by default; log_ratio = target - behavior, in nats.
            Where neither is named and one of the two is missing, a policy that is scored is
            compared with the only recorded one.
        columns: names of columns in the files, by the names that rcdiag knows; an empty one reads
            none.
        format: format of the dump, where its files do not show it.
        given: facts that the dump lacks, for all rows. `{"temperature": 0.7, "group_size": 8}`
        model: checkpoint folder or hub id for policies that name none. Alone it scores those of
            `old` (hf:float32) and `rollout` (vllm:bfloat16) that the table lacks.
        policies: policies to score first. `{"vllm_bf16": "vllm:bfloat16"}`, with
            options after a comma: `"hf:bfloat16,lm_head=float32"`.
        ladder: ready set of policies to score: vllm and hf from low to full precision, or decode,
            prefill and hf in one precision.
        noise_floor: score one policy again in other batches, as NAME_again.
        trainer: trainer whose presets and metrics are computed, or `all`: the default of each. The
            newest verl by default.
        presets: presets of the trainer to compute; all by default.
        settings: changed settings of presets. `{"decoupled_token_is": {"rollout_is_threshold": 3}}`
        trainer_config: the trainer's own configuration instead of presets: YAML, TOML, JSON or a
            launch script.
        arithmetic: float32 reproduces the rounding of the trainer's numbers.
        carry: preset to compare with its equivalent in every trainer. Where only similar ones
            exist the result says how they differ.
        logged: the trainer's metrics log to compare with: JSONL, CSV, W&B history, TensorBoard or
            console output. Each key is compared with our number, with the reason if they differ.
        output: scored parquet table to write: a file or an object-store URL.
        include_text: text of the worst sequences in result and page: by default where a tokenizer
            is found (of `model`, or of the model in the table's metadata); True requires one; False
            leaves text out, but not token ids, paths and the host's name.
        sequences: rows, from 0, whose tokens result and page show besides the worst and some random
            ones. With None the result holds no sequences, and the table is read once.
        rows: about how many rows to read, in whole prompt groups: a first look at a huge dump.
        seed: seed of everything that is drawn at random.
        on: where engines run and the table is read: `local`, `ray` (the running cluster) or
            `ray:ADDRESS`.
        devices: GPUs for engines, `4` or `0,1,2,3`: one engine for each set; on a CPU a share of
            the cores.
        workers: processes that read a large table; by default all cores that this process may use.
            A small table is read in this process, and so is every table with 1.
        rate: tokens per second of one engine, for the time that a dry run estimates. By default
            that of finished parts on disk, or of an earlier scoring of the table.
        force: overwrite outputs and recorded columns.
        progress: listener for progress.
    """
    progress = progress or SILENT
    runner = runner_on(on, devices, workers)
    check_rate(rate)
    written = None if output is None else Destination.of(output)
    # With policies to score, the pair is chosen once the table's own columns are known.
    pair_named = [name for name in (behavior, target) if name is not None]
    pair_needed = pair_named if policies else (behavior or "rollout", target or "old")
    needed = needed_columns(pair_needed, policies, model, ladder)
    corrections = plan_of(
        trainer=trainer,
        presets=presets,
        settings=settings,
        trainer_config=trainer_config,
        arithmetic=arithmetic,
        carry=carry,
    )
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
    if trainer is None and trainer_config is None and carry is None:
        corrections = with_hint_at_trainer(corrections, table)
    specs = wanted_policies(
        table,
        policies=policies,
        model=model,
        ladder=ladder,
        noise_floor=noise_floor,
        progress=progress,
    )
    log = None if logged is None else _log(Path(logged), corrections, rows)
    check_apart([None if written is None else written.path], [file.name for file in table.sources])
    check_output(written, specs, force=force)
    scored_names = [spec.name for spec in specs if not spec.options.get("repeat_of")]
    only = only_policy(table, (behavior, target), [spec.name for spec in specs])
    if only is not None:
        if sequences:
            named = setting("sequences", list(sequences), "--sequence")
            raise RcdiagError(
                f"{named}: {table.name} has one policy, {only}, and so no log-ratios to show",
                hint="give a table with log-probs of the sampler and of the trainer",
            )
        yield description(table, None, written)
        if written is not None:
            progress.say(f"nothing to score: {written} is not written")
        return score_of_one(table, only, seed=seed, log=log, plan=corrections)
    pair = choose_pair(table.policies, scored_names, behavior, target)
    check_pair(table, pair.behavior, pair.target, [spec.name for spec in specs])
    rows_named(table, sequences or ())
    if written is None:
        check_used(table, specs, pair, policies, ladder, model)
    if pair.reason:
        progress.say(pair.reason)
    plan = planned(table, specs, written, force=force, progress=progress)
    decode = decoder_of(model, table, specs, (pair.target, pair.behavior), include_text)
    with runner:
        yield description(table, plan, written, runner, rate)
        with scored_table(
            table, plan, written, force=force, progress=progress, runner=runner
        ) as scored:
            return measure(
                scored,
                behavior=pair.behavior,
                target=pair.target,
                pair_reason=pair.reason,
                seed=seed,
                decode=decode,
                text=include_text is not False,
                plan=corrections,
                log=log,
                sequences=sequences,
                runner=runner,
            )


def _log(path: Path, plan: Plan, rows: int | None) -> Log:
    """Read the trainer's log before anything is computed, and check that it has known keys."""
    if rows is not None:
        raise RcdiagError(
            f"{setting('logged', path)} with {setting('rows', rows)}: the trainer's numbers are of "
            "all rows",
            hint=f"leave out {setting('rows')}",
        )
    if len(plan.trainers) > 1:
        raise RcdiagError(
            f"{setting('logged', path)} with several trainers: a log is from one",
            hint=f"name it: {setting('trainer', plan.trainer.family)}",
        )
    from rcdiag.logs import read_log  # the readers of logs, which only few commands need
    from rcdiag.usecases.logged.keys import check_keys

    log = read_log(path)
    if log.run and log.earlier:
        names = ", ".join(one.run for one in (*log.earlier, log))
        raise RcdiagError(
            f"{setting('logged', path)} holds several runs ({names}): a table is from one",
            hint="export that run alone, or diagnose them all: rcdiag diagnose LOG",
        )
    check_keys(log, plan.trainer)
    return log
