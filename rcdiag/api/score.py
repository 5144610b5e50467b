"""`rcdiag.score`: how far two policies are apart on the same tokens, scored first if asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rcdiag.api.usecase import Steps, usecase
from rcdiag.errors import RcdiagError, setting
from rcdiag.files import check_apart
from rcdiag.results import ScoreResult
from rcdiag.runners import runner_on
from rcdiag.table.remote import Destination
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.chosen_pair import ChosenPair, choose_pair
from rcdiag.usecases.dry_run import check_rate, description
from rcdiag.usecases.one_policy import only_policy, score_of_one
from rcdiag.usecases.plans import Settings, plan_of, with_hint_at_trainer
from rcdiag.usecases.progress import SILENT, Progress
from rcdiag.usecases.score import check_pair
from rcdiag.usecases.score import score as measure
from rcdiag.usecases.scored import (
    Policies,
    check_output,
    compare_command,
    needed_columns,
    planned,
    scored_table,
    wanted_policies,
)
from rcdiag.usecases.shown_sequences import rows_named
from rcdiag.usecases.tables import Source, drawn, name_of, open_table
from rcdiag.usecases.text import decoder_of

if TYPE_CHECKING:
    from rcdiag.logs import Log
    from rcdiag.table.table import Table


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
    ladder: str | Sequence[str] = (),
    noise_floor: bool = False,
    output: str | Path | None = None,
    trainer: str | None = None,
    presets: str | Sequence[str] = (),
    settings: Settings | None = None,
    trainer_config: str | Path | None = None,
    arithmetic: str = "float64",
    carry: str | None = None,
    logged: str | Path | None = None,
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
    """Measure how far two policies are apart on the same tokens, and what corrections make of it.

    Args:
        source: a dump in any format that rcdiag knows (file, directory, glob, URL), a list of them,
            an open `Table`, or a data frame, Arrow table or mapping of columns in memory. Dumps of
            one run that complete each other are joined.
        behavior: the policy that sampled the tokens; `rollout` by default.
        target: the policy that trains, `old` by default; log_ratio = target - behavior, in nats.
            Where neither is named and one of the two is missing, a policy that is scored is
            compared with the only recorded one.
        columns: name that rcdiag knows -> name in the files.
        format: the dump's format, where it cannot be told from its files.
        given: what the dump lacks and you know, for all rows: `{"temperature": 0.7}`.
        model: checkpoint folder of the policies that name none. Alone it scores those of `old`
            (hf:float32) and `rollout` (vllm:bfloat16) that the table lacks.
        policies: policies to score before measuring, `{"vllm_bf16": "vllm:bfloat16"}`, with
            options after a comma: `"hf:bfloat16,lm_head=float32"`.
        ladder: ready sets of policies to score, `precision` or `engine`.
        noise_floor: score one policy once more, in other batches, as NAME_again.
        output: parquet file to write the table with the scored columns to: a path, or a URL of
            object storage (s3://, gs://), for which the current folder holds it first.
        trainer: whose definitions and names the corrections have; the newest verl by default.
            `all` gives what every trainer does by default, one correction for each.
        presets: presets of the trainer to compute; all by default.
        settings: changes to presets: `{"decoupled_token_is": {"rollout_is_threshold": 3}}`.
        trainer_config: the trainer's own configuration file, in place of presets.
        arithmetic: `float64`, or `float32` to reproduce the rounding of the trainer's own numbers.
        carry: `trainer:preset`, such as `trl:sequence_mask`, to see beside what each other trainer
            has for it, and what a near one does otherwise.
        logged: the trainer's own log of the run (JSONL, CSV, an exported W&B history, TensorBoard
            events), to set beside our numbers key by key, with the reason where they differ.
        include_text: whether the result holds the text of the tokens that it names. By default it
            does where the tokenizer of `model`, or of a model that the table names, is here, or
            where the table has columns of text; True refuses a table without a tokenizer, False
            keeps all text out.
        sequences: numbers of rows, from 0, that result and page are to hold whole, beside those
            with the largest sums and some drawn at random. With None the result holds none
            for readers, and the table is read once.
        rows: about how many rows to take, for a first look at a huge table: whole prompt groups
            are drawn, spread over the table.
        seed: seed of the drawing of `rows`.
        on: where engines run and parts of the table are read: `local`, or a Ray cluster as `ray` or
            `ray:ADDRESS`.
        devices: how many GPUs they use, `4`, or which, `"0,1,2,3"`: one engine for each set. On a
            machine without a GPU they are shares of its cores.
        workers: how many processes share the pass over a large table; all cores by default, those
            that this process may use. A small table is read in this process, and so is every
            table with 1.
        rate: tokens that one engine scores in a second, for the time that `dry_run` says. Without
            it that is the rate of finished parts on disk, or of an earlier scoring of the table.
        force: overwrite `output` and recorded columns.
        progress: listener for what happens meanwhile.
    """
    progress = progress or SILENT
    runner = runner_on(on, devices, workers)
    check_rate(rate)
    written = None if output is None else Destination.of(output)
    # With policies to score the pair is chosen when the table's own columns are known.
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
    table = drawn(
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
        _refuse_what_needs_two(table, only, sequences, log)
        yield description(name_of(source), table, None, written)
        if written is not None:
            progress.say(f"nothing to score: {written} is not written")
        return score_of_one(table, only, seed=seed)
    pair = choose_pair(table.policies, scored_names, behavior, target)
    check_pair(table, pair.behavior, pair.target, [spec.name for spec in specs])
    rows_named(table, sequences or ())
    unused = len(scored_names) > 1 and not {pair.behavior, pair.target} & set(scored_names)
    if unused and written is None:
        every_pair = compare_command(table, policies, ladder, model)
        raise _scored_for_nothing(scored_names, pair, every_pair)
    if pair.reason:
        progress.say(pair.reason)
    plan = planned(table, specs, written, force=force)
    decode = decoder_of(model, table, specs, (pair.target, pair.behavior), include_text)
    with runner:
        yield description(name_of(source), table, plan, written, runner, rate)
        with scored_table(
            table, plan, written, force=force, progress=progress, runner=runner
        ) as scored:
            return measure(
                scored,
                behavior=pair.behavior,
                target=pair.target,
                pair_reason=pair.reason,
                seed=seed,
                origin=table,
                decode=decode,
                text=include_text is not False,
                plan=corrections,
                log=log,
                sequences=sequences,
                runner=runner,
            )


def _refuse_what_needs_two(
    table: Table, only: str, sequences: Sequence[int] | None, log: Log | None
) -> None:
    """Refuse what a table with one policy cannot give: sequences of log-ratios, a log beside."""
    both = "give a table with log-probs of the sampler and of the trainer"
    if sequences:
        named = setting("sequences", list(sequences), "--sequence")
        raise RcdiagError(
            f"{named}: {table.name} has one policy, {only}, and so no log-ratios to show", hint=both
        )
    if log is not None:
        raise RcdiagError(
            f"{table.name}: one policy, {only}: the trainer's numbers in {log.path} are of two",
            hint=both,
        )


def _scored_for_nothing(scored: Sequence[str], pair: ChosenPair, every_pair: str) -> RcdiagError:
    """Say that policies would be scored of which the pair has none and no file keeps them.

    `every_pair` is the command that compares them all.
    """
    return RcdiagError(
        f"{', '.join(scored)} would be scored and then not used: the pair is {pair.behavior} "
        f"and {pair.target}",
        hint=f"compare every pair: {every_pair}; or name a pair: "
        f"{setting('behavior', scored[0])}, {setting('target', scored[-1])}; or keep "
        f"the columns: {setting('output', 'FILE', '-o')}",
    )


def _log(path: Path, plan: Plan, rows: int | None) -> Log:
    """Read the trainer's log before anything is computed, and see that it has keys of ours."""
    if rows is not None:
        raise RcdiagError(
            f"{setting('logged', path)} with {setting('rows', rows)}: the trainer's numbers are of "
            "all rows",
            hint=f"leave {setting('rows')} away",
        )
    if len(plan.trainers) > 1:
        raise RcdiagError(
            f"{setting('logged', path)} with several trainers: a log is of one",
            hint=f"say whose: {setting('trainer', plan.trainer.family)}",
        )
    from rcdiag.logs import read_log  # the readers of logs, which only few commands need
    from rcdiag.usecases.logged import check_keys

    log = read_log(path)
    check_keys(log, plan.trainer)
    return log
