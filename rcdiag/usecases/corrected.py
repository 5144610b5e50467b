"""What every correction of a trainer would have left: one pass over the tokens, then results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rcdiag.corrections.actual import honest, needed
from rcdiag.corrections.apply import Outcome, outcome, quantities_of
from rcdiag.corrections.bounds import log_bounds
from rcdiag.corrections.correction import Correction, in_float32
from rcdiag.corrections.quantities import EveryLogProb, InFloat32, Quantity, under
from rcdiag.corrections.sequences import Rows, rows_of
from rcdiag.corrections.trainer_means import Batch
from rcdiag.diagnosis.correction_health import correction_level
from rcdiag.diagnosis.guides import worst
from rcdiag.results import CorrectionResult, Finding
from rcdiag.statistics.accumulator import Step
from rcdiag.statistics.merging import merge, merge_by_key
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.quantiles import bounded_sketches
from rcdiag.table.table import Table
from rcdiag.trainers.plan import Plan

KHats = Mapping[str, float | None]  # level -> Pareto k-hat of the raw ratios


class CorrectionRows(Struct, frozen=True):
    """What corrections need of the sequences of every training step."""

    steps: Mapping[Step, Rows]

    @classmethod
    def of(
        cls,
        steps: Mapping[Step, PolicyPair],
        plan: Plan,
        quantities: Sequence[Quantity],
    ) -> CorrectionRows:
        """Reduce the pair of every step; `quantities` are the `wanted_quantities` of the plan."""
        reduced = partial(
            rows_of, quantities=quantities, keep_ratios=_keep_ratios(plan), dtype=plan.dtype
        )
        rows = {
            step: replace(
                merge([reduced(block) for block in pair.blocks]),
                empty=pair.tokens.empty.get(step, 0),
            )
            for step, pair in steps.items()
        }
        return cls(_bounded(rows))

    @classmethod
    def merged(cls, parts: Sequence[CorrectionRows]) -> CorrectionRows:
        return cls(_bounded(merge_by_key([part.steps for part in parts])))

    @property
    def whole(self) -> Rows:
        """The rows of all steps as one batch."""
        return merge(list(self.steps.values()))


def _bounded(steps: Mapping[Step, Rows]) -> Mapping[Step, Rows]:
    """Bound the rows of all steps: many single ratios give way to counts."""
    kept = {step: rows.ratios for step, rows in steps.items() if rows.ratios is not None}
    sketches = dict(zip(kept, bounded_sketches(list(kept.values())), strict=True))
    return {step: replace(rows, ratios=sketches.get(step)) for step, rows in steps.items()}


def answerable(plan: Plan, dump: Table) -> Plan:
    """Return the plan without corrections that look at advantages where the table has none."""
    if {"advantages", "advantage"} & set(dump.columns):
        return plan
    lacking = [name for name, one in plan.corrections.items() if one.needs_advantages]
    if not lacking:
        return plan
    finding = Finding(
        slug="advantages-missing",
        severity="warning",
        message=f"{', '.join(lacking)}: not computed, the trainer looks at the sign of the "
        "advantages there, and the table has none",
        fix="record them in a column `advantages` (one per row) or per token",
        evidence={"presets": lacking},
    )
    return replace(
        plan,
        configs={name: one for name, one in plan.configs.items() if name not in lacking},
        corrections={name: one for name, one in plan.corrections.items() if name not in lacking},
        findings=(*plan.findings, finding),
    )


def wanted_quantities(plan: Plan) -> list[Quantity]:
    """List what all corrections of a plan together read of the tokens."""
    quantities: dict[Quantity, None] = {}
    for name, correction in plan.corrections.items():
        if correction.needs_whole_batch:
            quantities |= dict.fromkeys([EveryLogProb("behavior"), EveryLogProb("target")])
        else:
            quantities |= dict.fromkeys(_read_by(plan, name, correction))
    return list(quantities)


def _read_by(plan: Plan, name: str, correction: Correction) -> list[Quantity]:
    """List what one correction, its metrics and its honest numbers read of the tokens."""
    own = plan.trainer_of(name).quantities(correction)
    read = dict.fromkeys([*own, *quantities_of(correction), *needed(correction)])
    quantities = [under(correction.guard, quantity) for quantity in read]
    if plan.dtype == np.float64 and correction.decides:
        quantities += [
            InFloat32(under(correction.guard, quantity))
            for quantity in dict.fromkeys(quantities_of(in_float32(correction)))
        ]
    return quantities


def _keep_ratios(plan: Plan) -> bool:
    """Tell whether the trainer logs percentiles of token weights: then single ratios are kept."""
    weightings = [correction.weighting for correction in plan.corrections.values()]
    by_token = any(one is not None and one.level == "token" for one in weightings)
    return any(trainer.percentiles for trainer in plan.trainers) and by_token


def correction_results(
    plan: Plan, rows: Rows, k_hats: KHats | None = None, mismatch: str | None = None
) -> dict[str, CorrectionResult]:
    """Apply every correction of a plan to one batch of rows.

    `mismatch` is the level of the batch's mismatch, by which no correction is judged, as in
    `replay`.
    """
    if not len(rows):
        return {}
    rows = replace(rows)  # what it computes when asked is not kept with the rows of a step
    with np.errstate(all="ignore"):
        return {
            name: _result(plan, name, correction, rows, k_hats or {}, mismatch)
            for name, correction in plan.corrections.items()
        }


def _result(
    plan: Plan,
    name: str,
    correction: Correction,
    rows: Rows,
    k_hats: KHats,
    mismatch: str | None,
) -> CorrectionResult:
    if correction.needs_whole_batch:
        rows = rows.reduced_again(_read_by(plan, name, correction))
    whole, trainer = rows, plan.trainer_of(name)
    rows = whole.under(correction.guard)
    left = outcome(rows, correction)
    weighting = correction.loss_weighting
    k_hat = None if weighting is None else k_hats.get(weighting.level)
    numbers = {**honest(rows, correction, left), "khat": k_hat}
    rounded = None
    if plan.dtype == np.float64 and correction.decides:
        rounded = _where_float32_decides(whole, correction, left)
    levels = [correction_level(numbers, correction, left)]
    if correction.leaves_loss_alone and mismatch is not None:
        levels.append(mismatch)
    return CorrectionResult(
        trainer=trainer.name,
        config=dict(plan.configs[name]),
        kept_tokens=left.kept_tokens,
        kept_sequences=left.kept_sequences,
        weight_sum=None if left.weights is None else float(left.weights.sum.sum()),
        metrics=trainer.metrics(Batch(rows), correction),
        actual=numbers,
        log_bounds=log_bounds(correction),
        level=worst(levels),
        in_float32=rounded,
    )


def _where_float32_decides(
    rows: Rows, correction: Correction, left: Outcome
) -> dict[str, Any] | None:
    """Return what is kept in the trainer's arithmetic, where that is not what is kept in float64.

    Weight sums that agree to 1e-5 differ by the rounding of weights, not by a decision.
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
