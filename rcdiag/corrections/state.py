"""All corrections of one trainer over a table: one pass, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from rcdiag.corrections.bounds import log_bounds
from rcdiag.corrections.config import Correction
from rcdiag.corrections.health import level
from rcdiag.corrections.honest import honest, needed
from rcdiag.corrections.outcome import outcome, quantities_of
from rcdiag.corrections.quantities import Quantity
from rcdiag.corrections.reductions import Batch
from rcdiag.corrections.rows import Rows, rows_of, union_of_rows
from rcdiag.corrections.plan import Plan
from rcdiag.results import CorrectionResult
from rcdiag.statistics.block import Block
from rcdiag.statistics.suite import bound_sketches

WAITING = 32

Step = int | None


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
        level=level(numbers, correction, done),
    )
