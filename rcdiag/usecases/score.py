"""All corrections of one trainer over a table: one pass, step by step.

Use case `score`: how far two recorded policies of a table are apart.

One pass over the table; the state of two shards is the sum of their states.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from rcdiag.corrections.actual import honest, needed
from rcdiag.corrections.apply import outcome, quantities_of
from rcdiag.corrections.bounds import log_bounds
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import Quantity
from rcdiag.corrections.sequences import Rows, rows_of, union_of_rows
from rcdiag.corrections.trainer_means import Batch
from rcdiag.diagnosis.checks import CheckInput, findings
from rcdiag.diagnosis.correction_health import correction_level
from rcdiag.diagnosis.guides import judged
from rcdiag.errors import RcdiagError
from rcdiag.results import CorrectionResult, MetricValue, ScoreResult, StepResult
from rcdiag.statistics.accumulator import Step, Summary
from rcdiag.statistics.block import Block, block_of
from rcdiag.statistics.extremes import NonFinite
from rcdiag.statistics.histograms import log_ratio_counts
from rcdiag.statistics.profiles import finished, union_of_profiles
from rcdiag.statistics.suite import Suite, SuiteState, bound_sketches, union_of_states
from rcdiag.statistics.vocabulary import worst_ids
from rcdiag.table.parquet import Dump
from rcdiag.table.stream import read_trajectories
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.provenance import provenance

WAITING = 32


@dataclass
class CorrectionState:
    """Rows of every step; shards of a table add up by joining."""

    plan: Plan
    rows: dict[Step, list[Rows]] = field(default_factory=dict)

    @cached_property
    def quantities(self) -> list[Quantity]:
        """What all corrections together read of the tokens, each once."""
        found: dict[Quantity, None] = {}
        for correction in self.plan.corrections.values():
            found |= dict.fromkeys(self.plan.trainer.quantities(correction))
            found |= dict.fromkeys([*quantities_of(correction), *needed(correction)])
        return list(found)

    @cached_property
    def _keep_ratios(self) -> bool:
        weightings = [each.weighting for each in self.plan.corrections.values()]
        by_token = any(each is not None and each.level == "token" for each in weightings)
        return self.plan.trainer.percentiles and by_token

    def add(self, parts: Mapping[Step, Block]) -> None:
        """Take in the blocks of some rows, by step."""
        for step, block in parts.items():
            rows = self.rows.setdefault(step, [])
            rows.append(
                rows_of(
                    block,
                    self.quantities,
                    block.empty.get(step, 0),
                    keep_ratios=self._keep_ratios,
                    dtype=self.plan.dtype,
                )
            )
            if len(rows) >= WAITING:
                rows[:] = [union_of_rows(rows)]
        kept = [each.ratios for rows in self.rows.values() for each in rows if each.ratios]
        bound_sketches(kept)

    def merge(self, other: CorrectionState) -> None:
        """Take in what a pass over other rows of the same table left."""
        for step, rows in other.rows.items():
            self.rows.setdefault(step, []).extend(rows)

    def by_step(self) -> dict[Step, Rows]:
        return {step: union_of_rows(rows) for step, rows in self.rows.items()}


KHats = Mapping[str, float | None]  # level -> Pareto k-hat of the raw ratios


def results(plan: Plan, rows: Rows, k_hats: KHats | None = None) -> dict[str, CorrectionResult]:
    """Every correction on one batch of rows."""
    if not len(rows):
        return {}
    with np.errstate(all="ignore"):
        return {
            name: _result(plan, name, correction, rows, k_hats or {})
            for name, correction in plan.corrections.items()
        }


def _result(
    plan: Plan, name: str, correction: Correction, rows: Rows, k_hats: KHats
) -> CorrectionResult:
    done = outcome(rows, correction)
    weighting = correction.loss_weighting
    k_hat = None if weighting is None else k_hats.get(weighting.level)
    numbers = {**honest(rows, correction, done), "khat": k_hat}
    return CorrectionResult(
        trainer=plan.trainer.name,
        config=dict(plan.configs[name]),
        kept_tokens=done.kept_tokens,
        kept_sequences=done.kept_sequences,
        weight_sum=None if done.weights is None else float(done.weights.sum.sum()),
        metrics=plan.trainer.metrics(Batch(rows), correction),
        honest=numbers,
        log_bounds=log_bounds(correction),
        level=correction_level(numbers, correction, done),
    )


# Token ids -> their text, one string each.
Decode = Callable[[Sequence[int]], list[str]]


def score(
    dump: Dump,
    *,
    behavior: str = "rollout",
    target: str = "old",
    seed: int = 0,
    origin: Dump | None = None,
    decode: Decode | None = None,
    plan: Plan | None = None,
) -> ScoreResult:
    """Mismatch of two recorded policies over all steps and per step, and corrections of it.

    `origin` is the table that the user gave, where `dump` is its scored copy. With `decode` the
    result holds the text of the tokens that it names.
    """
    check_pair(dump, behavior, target)
    corrections = None if plan is None else CorrectionState(plan)
    summary, non_finite = _read(dump, behavior, target, corrections)
    steps = summary.by_step()
    if not steps:
        raise RcdiagError(
            f"{dump.files[0].path}: no unmasked response token in the whole table",
            hint="response_mask is 1 for tokens that the policy sampled; is it inverted?",
        )
    whole = union_of_states(list(steps.values()))
    values = judged(Suite(whole, seed))
    policies = {
        name: about
        for name, about in dump.metadata.get("policies", {}).items()
        if name in (behavior, target)
    }
    result = ScoreResult(
        provenance=provenance(origin or dump, seed),
        behavior=behavior,
        target=target,
        num_sequences=len(whole.table),
        num_tokens=int(whole.table.lengths.sum()),
        empty_sequences=dump.num_rows - len(whole.table),
        num_clusters=len(whole.tokens),
        policies=policies,
        mismatch=values,
        corrections=_corrected(corrections, values),
        steps=_by_step(steps, seed, corrections),
        findings=[],
        figures=_figures(summary, whole),
        worst_tokens=summary.worst_tokens.to_list(),
        profiles=finished(union_of_profiles(summary.profiles)),
        worst_token_ids=worst_ids(summary.vocabulary),
        worst_sequences=summary.worst_sequences.found,
    )
    given = CheckInput(result=result, non_finite=non_finite, values=values, plan=plan)
    result = replace(result, findings=findings(given))
    return result if decode is None else _with_text(result, decode)


def _read(
    dump: Dump, behavior: str, target: str, corrections: CorrectionState | None = None
) -> tuple[Summary, NonFinite]:
    """One pass over the table; the next rows are read while the last are worked on."""
    others = [] if corrections is None else [corrections.add]
    summary, non_finite = Summary(), NonFinite()

    def blocks() -> Iterator[Block]:
        for trajectories in read_trajectories(dump, (behavior, target)):
            non_finite.add(trajectories, (behavior, target))
            yield block_of(trajectories, behavior, target)

    with ThreadPoolExecutor(os.cpu_count()) as executor:
        source = blocks()
        following = executor.submit(next, source, None)
        while (block := following.result()) is not None:
            following = executor.submit(next, source, None)
            summary.add(block, executor, *others)
    return summary, non_finite


def _with_text(result: ScoreResult, decode: Decode) -> ScoreResult:
    """The same with the text of every token that is named."""
    return replace(
        result,
        worst_tokens=[
            {**token, "text": decode([token["token_id"]])[0]} for token in result.worst_tokens
        ],
        worst_token_ids=[
            replace(each, text=decode([each.token_id])[0]) for each in result.worst_token_ids
        ],
        worst_sequences=[
            replace(each, texts=decode(each.token_ids)) for each in result.worst_sequences
        ],
    )


def check_pair(dump: Dump, behavior: str, target: str, scored: Sequence[str] = ()) -> None:
    """Both policies are recorded, or among those that are about to be `scored`."""
    if behavior == target:
        raise RcdiagError(
            f"behavior and target are both `{behavior}`", hint="a mismatch needs two policies"
        )
    there = [*dump.policies, *(name for name in scored if name not in dump.policies)]
    missing = [name for name in (behavior, target) if name not in there]
    if missing and len(there) >= 2:
        raise RcdiagError(
            f"{dump.files[0].path}: no `{missing[0]}_log_probs`; there are policies "
            f"{', '.join(there)}",
            hint=f"choose two: --behavior {there[-2]} --target {there[-1]}; or score it: "
            f"--policy {missing[0]}=hf:float32,model=PATH",
        )
    for name in missing:
        dump.require(f"{name}_log_probs")


def _corrected(
    corrections: CorrectionState | None, values: dict[str, MetricValue]
) -> dict[str, CorrectionResult]:
    """The whole table as one batch."""
    if corrections is None:
        return {}
    rows = union_of_rows(list(corrections.by_step().values()))
    return results(corrections.plan, rows, _k_hats(values))


def _figures(summary: Summary, whole: SuiteState) -> dict[str, Any]:
    sums = whole.table.sums["log_ratio"]
    return {
        **summary.figures.to_dict(),
        "sequence_log_ratio": log_ratio_counts(sums).tolist(),
        "geometric_log_ratio": log_ratio_counts(sums / whole.table.lengths).tolist(),
    }


def _k_hats(values: dict[str, MetricValue]) -> dict[str, float | None]:
    return {"token": values["khat_token"].value, "sequence": values["khat_seq"].value}


def _by_step(
    steps: dict[Step, SuiteState], seed: int, corrections: CorrectionState | None
) -> dict[str, StepResult]:
    """The same per training step, when there are several: the batches of a trainer."""
    if len(steps) < 2:
        return {}
    rows = {} if corrections is None else corrections.by_step()
    found = {}
    for step, state in steps.items():
        values = judged(Suite(state, seed))
        corrected = {}
        if corrections is not None:
            corrected = results(corrections.plan, rows[step], _k_hats(values))
        found[str(step)] = StepResult(
            num_sequences=len(state.table),
            num_tokens=int(state.table.lengths.sum()),
            mismatch=values,
            corrections=corrected,
        )
    return found
