"""`rcdiag.compare`: every pair of policies of one table, or of several tables joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rcdiag.api.usecase import Steps, usecase
from rcdiag.progress import SILENT, Progress
from rcdiag.results import CompareResult
from rcdiag.runners import runner_on
from rcdiag.table.drawn_rows import draw_rows
from rcdiag.table.opening import Source, open_joined
from rcdiag.usecases.chosen_pair import only_policy
from rcdiag.usecases.compare.ladder import choose
from rcdiag.usecases.compare.run import compare as measure
from rcdiag.usecases.dry_run import check_rate, description
from rcdiag.usecases.scored import (
    Policies,
    planned,
    policy_texts,
    scored_table,
    wanted_policies,
)

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
    ladder: Literal["precision", "engine"] | Sequence[str] = (),
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
    """Compare all policies pair by pair: which fits the samples best, what each step adds.

    Args:
        sources: dumps or parquet tables: files, folders, globs or URLs; several are joined on
            `sample_id`, and rows with different tokens are left out. In Python also what
            `open_table` takes.
        behavior: policy that sampled; `rollout` by default.
        target: the trainer's policy; `old` by default; log_ratio = target - behavior, in nats.
        columns: names of columns in the files, by the names that rcdiag knows; an empty one reads
            none.
        format: format of the dump, where its files do not show it.
        given: facts that the dump lacks, for all rows. `{"temperature": 0.7, "group_size": 8}`
        model: checkpoint folder or hub id for policies that name none. Alone it scores those of
            `old` (hf:float32) and `rollout` (vllm:bfloat16) that the table lacks.
        policies: compare only these, in order from sampler to trainer; `NAME=ENGINE` scores one
            first. In Python `["rollout", "old"]`, or `{"hf_bf16": "hf:bfloat16"}`.
        ladder: ready set of policies to score: vllm and hf from low to full precision, or decode,
            prefill and hf in one precision.
        noise_floor: score one policy again in other batches, as NAME_again.
            Policies that differ no more than these two are equal.
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
        force: overwrite outputs, and score policies that are recorded already.
        progress: listener for progress.
    """
    progress = progress or SILENT
    runner = runner_on(on, devices, workers)
    check_rate(rate)
    texts = policy_texts(policies)
    named = [text.partition("=")[0] for text in texts]
    table = open_joined(sources, columns=columns, format=format, given=given, progress=progress)
    joined = table.joined if len(sources) > 1 else None
    table = draw_rows(table, rows, seed)
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
        choose(recorded, [policy for policy in (behavior, target) if policy], table.title, least=1)
        choose(recorded, named, table.title)
    plan = planned(table, specs, None, force=force, progress=progress)
    repeats = [spec.name for spec in specs if noise_floor and spec.name.endswith("_again")]
    with runner:
        yield description(table, plan, None, runner, rate)
        with scored_table(
            table, plan, None, force=force, progress=progress, runner=runner
        ) as scored:
            return measure(
                scored,
                policies=[*named, *repeats] if named else [],
                behavior=behavior,
                target=target,
                seed=seed,
                joined=joined,
                runner=runner,
            )
