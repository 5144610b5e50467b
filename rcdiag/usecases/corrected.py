"""Apply every correction of a plan: sum over tokens in one pass, then compute results per batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rcdiag.corrections.actual import actual_numbers
from rcdiag.corrections.apply import CorrectionOutcome, outcome
from rcdiag.corrections.bounds import log_bounds
from rcdiag.corrections.correction import Correction, in_float32
from rcdiag.corrections.sequences import (
    Asked,
    NotAsked,
    Questions,
    Sequences,
    questions,
    recording_rows,
    rows_of,
)
from rcdiag.corrections.trainer_means import Batch
from rcdiag.diagnosis.correction_health import CorrectionEvidence, correction_level
from rcdiag.results import CorrectionResult, Finding, MetricValue
from rcdiag.statistics.accumulator import Step
from rcdiag.statistics.merging import merge
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.quantiles import Sketch, bounded_sketches
from rcdiag.table.table import Table
from rcdiag.trainers.plan import Plan

# Level of weights -> the metric that is the Pareto k-hat of its raw ratios.
KHAT = {"token": "khat_token", "sequence": "khat_seq"}


class CorrectionRows(Struct, frozen=True):
    """The sequences of every training step, with the sums over tokens that corrections need."""

    steps: Mapping[Step, Sequences]

    @classmethod
    def of(
        cls,
        steps: Mapping[Step, PolicyPair],
        plan: Plan,
        asked: Questions,
    ) -> CorrectionRows:
        """Reduce the tokens of every step to the sums that a plan needs (see `asked_by`)."""
        rows = {
            step: rows_of(pair, asked, pair.tokens.empty.get(step, 0), dtype=plan.dtype)
            for step, pair in steps.items()
        }
        return cls(_bounded(rows))

    def bounded(self) -> CorrectionRows:
        return CorrectionRows(_bounded(self.steps))

    @property
    def whole(self) -> Sequences:
        """Return the rows of all steps as one batch."""
        return merge(list(self.steps.values()))


def _bounded(steps: Mapping[Step, Sequences]) -> Mapping[Step, Sequences]:
    """Bound the memory of all steps' sketches: many single values are replaced by counts."""
    held = [(step, asked, one) for step in steps for asked, one in steps[step].sketches.items()]
    if not held:
        return steps
    bounded: dict[Step, dict[Asked, Sketch]] = {step: {} for step in steps}
    for (step, asked, _), sketch in zip(
        held, bounded_sketches([one for *_, one in held]), strict=True
    ):
        bounded[step][asked] = sketch
    return {step: rows.with_sketches(bounded[step]) for step, rows in steps.items()}


def answerable(plan: Plan, dump: Table) -> Plan:
    """Return the plan without corrections that need advantages, if the table has none."""
    if {"advantages", "advantage"} & set(dump.columns):
        return plan
    lacking = [name for name, one in plan.corrections.items() if one.needs_advantages]
    if not lacking:
        return plan
    finding = Finding(
        slug="advantages-missing",
        severity="warning",
        message=f"{', '.join(lacking)}: not computed, because the trainer uses the sign of the "
        "advantages there, and the table has no advantages",
        fix="record them in a column `advantages` (one per row) or per token",
        evidence={"presets": lacking},
    )
    return replace(
        plan,
        configs={name: one for name, one in plan.configs.items() if name not in lacking},
        corrections={name: one for name, one in plan.corrections.items() if name not in lacking},
        findings=(*plan.findings, finding),
    )


def asked_by(plan: Plan) -> Questions:
    """Find out which sums over tokens a plan needs, by computing its results on recording rows."""
    rows = recording_rows(plan.dtype)
    correction_results(plan, rows)
    return questions(rows)


def correction_results(
    plan: Plan, rows: Sequences, mismatch: Mapping[str, MetricValue] | None = None
) -> dict[str, CorrectionResult]:
    """Apply every correction of a plan to one batch of rows, whose metrics are `mismatch`."""
    if not len(rows):
        return {}
    rows = replace(rows)  # a copy, so that its cached values are not kept with the rows of a step
    results = {}
    for name, correction in plan.corrections.items():
        try:
            with np.errstate(all="ignore"):
                results[name] = _result(plan, name, correction, rows, mismatch or {})
        except NotAsked as error:
            who = f"{plan.trainer_of(name).name} with preset {name}"
            raise NotAsked(error.asked, who) from error
    return results


def _result(
    plan: Plan,
    name: str,
    correction: Correction,
    rows: Sequences,
    mismatch: Mapping[str, MetricValue],
) -> CorrectionResult:
    if correction.needs_whole_batch:
        rows = rows.of_whole_batch()
    whole, trainer = rows, plan.trainer_of(name)
    rows = whole.under(correction.guard)
    left = outcome(rows, correction)
    weighting = correction.loss_weighting
    k_hat = None if weighting is None else mismatch.get(KHAT.get(weighting.level, ""))
    numbers = actual_numbers(rows, correction, left) | {"khat": k_hat and k_hat.value}
    rounded = None
    if plan.dtype == np.float64 and correction.decides:
        rounded = _where_float32_decides(whole, correction, left)
    return CorrectionResult(
        trainer=trainer.name,
        config=dict(plan.configs[name]),
        kept_tokens=left.kept_tokens,
        kept_sequences=left.kept_sequences,
        weight_sum=None if left.weights is None else float(left.weights.sum.sum()),
        metrics=trainer.metrics(Batch(rows), correction),
        actual=numbers,
        log_bounds=log_bounds(correction),
        level=correction_level(CorrectionEvidence.of(correction, numbers, left, mismatch)),
        in_float32=rounded,
    )


def _where_float32_decides(
    rows: Sequences, correction: Correction, left: CorrectionOutcome
) -> dict[str, Any] | None:
    """Return what is kept in float32, the trainer's arithmetic, if that differs from float64.

    Weight sums that agree to 1e-5 differ by rounding of the weights, not by a decision.
    """
    rounded = in_float32(correction)
    there = outcome(rows.in_float32().under(correction.guard), rounded)
    ours, theirs = (
        None if one.weights is None else float(one.weights.sum.sum()) for one in (left, there)
    )
    same_sums = ours is None or theirs is None
    if ours is not None and theirs is not None:
        same_sums = bool(np.isclose(ours, theirs, rtol=1e-5, equal_nan=True))
    kept = (left.kept_tokens, left.kept_sequences)
    if (there.kept_tokens, there.kept_sequences) == kept and same_sums:
        return None
    return {
        "kept_tokens": there.kept_tokens,
        "kept_sequences": there.kept_sequences,
        "weight_sum": theirs,
    }
