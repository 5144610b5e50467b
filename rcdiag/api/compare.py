"""`rcdiag.compare`: every pair of policies of one table, or of several tables joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rcdiag.api.usecase import Steps, usecase
from rcdiag.results import CompareResult
from rcdiag.runners import runner_on
from rcdiag.usecases.chosen_pair import only_policy
from rcdiag.usecases.compare.ladder import choose
from rcdiag.usecases.compare.run import compare as measure
from rcdiag.usecases.dry_run import check_rate, description
from rcdiag.usecases.progress import SILENT, Progress
from rcdiag.usecases.scored import (
    Policies,
    planned,
    policy_texts,
    scored_table,
    wanted_policies,
)
from rcdiag.usecases.tables import Source, drawn, joined_tables, name_of

# The log-probs that a table has before any are scored.
PAIR = ("rollout_log_probs", "old_log_probs")


@usecase
def compare(
    *sources: Source,
    behavior: str | None = None,
    target: str | None = None,
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    given: Mapping[str, Any] | None = None,
    model: str | Path | None = None,
    policies: Policies = (),
    ladder: str | Sequence[str] = (),
    noise_floor: bool = False,
    rows: int | None = None,
    seed: int = 0,
    on: str = "local",
    devices: str | int | None = None,
    workers: int | None = None,
    rate: float | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Steps[CompareResult]:
    """Compare all policies pair by pair: who is nearest to the sampler, which step adds what.

    Args:
        sources: trajectory tables; several are joined on `sample_id`, and rows whose tokens differ
            are left out.
        behavior: the sampler; `rollout` by default.
        target: the trainer; `old` by default.
        columns: name that rcdiag knows -> name in the files.
        format: the dump's format, where it cannot be told from its files.
        given: what the dump lacks and you know, for all rows: `{"temperature": 0.7}`.
        model: checkpoint folder of the policies that name none. Alone it scores those of `old`
            (hf:float32) and `rollout` (vllm:bfloat16) that the table lacks.
        policies: compare only these, in this order from the sampler to the trainer. A recorded one
            is its name, `["rollout", "old"]`; `{"hf_bf16": "hf:bfloat16"}` is scored first.
        ladder: ready sets of policies to score, `precision` or `engine`.
        noise_floor: score one policy once more, in other batches, as NAME_again: policies that are
            no further apart than these two are equal.
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
        force: score policies that are recorded already.
        progress: listener for what happens meanwhile.
    """
    progress = progress or SILENT
    runner = runner_on(on, devices, workers)
    check_rate(rate)
    texts = policy_texts(policies)
    named = [text.partition("=")[0] for text in texts]
    with joined_tables(sources, columns=columns, format=format, given=given, progress=progress) as (
        table,
        origin,
        joined,
    ):
        name = " + ".join(map(name_of, sources))
        if rows is not None:
            table = drawn(table, rows, seed)
            origin = table if joined is None else replace(table, drawn_from=origin)
        specs = wanted_policies(
            table,
            policies=[text for text in texts if "=" in text],
            model=model,
            ladder=ladder,
            noise_floor=noise_floor,
            progress=progress,
        )
        available = [*table.policies, *(spec.name for spec in specs)]
        if len(sources) == 1 and len(available) < 2 and table.may_mean(*PAIR):
            table.require(*PAIR)
        only = only_policy(table, (behavior, target), [*named, *(spec.name for spec in specs)])
        if only is None:
            recorded = list(dict.fromkeys(available))
            choose(recorded, [policy for policy in (behavior, target) if policy], name, least=1)
            choose(recorded, named, name)
        plan = planned(table, specs, None, force=force)
        repeats = [spec.name for spec in specs if noise_floor and spec.name.endswith("_again")]
        with runner:
            yield description(name, table, plan, None, runner, rate)
            with scored_table(
                table, plan, None, force=force, progress=progress, runner=runner
            ) as scored:
                return measure(
                    scored,
                    policies=[*named, *repeats] if named else [],
                    behavior=behavior,
                    target=target,
                    seed=seed,
                    origin=origin,
                    joined=joined,
                    runner=runner,
                )
