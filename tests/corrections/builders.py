"""Padded batches as trainers hold them, and rcdiag's results on the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rcdiag.corrections.sequences import Questions
from rcdiag.results import CorrectionResult
from rcdiag.statistics.pair import pair_of
from rcdiag.table.trajectories import Ragged, Trajectories
from rcdiag.trainers import find_trainer
from rcdiag.trainers.plan import Plan, plan_corrections
from rcdiag.usecases.corrected import CorrectionRows, asked_by, correction_results
from tests.builders import summed

ASKED: dict[str, Questions] = {}  # of `asked_once`


@dataclass(frozen=True, slots=True)
class Padded:
    """Log-probs and mask [rows, longest]; values at masked positions are ignored."""

    old: np.ndarray
    rollout: np.ndarray
    mask: np.ndarray
    group: np.ndarray | None = None  # [rows]
    reward: np.ndarray | None = None  # [rows]

    def __len__(self) -> int:
        return len(self.old)

    @property
    def log_ratio(self) -> np.ndarray:
        """0 at masked places."""
        return np.where(self.mask, self.old, 0.0) - np.where(self.mask, self.rollout, 0.0)

    def rows(self, index: np.ndarray | slice) -> Padded:
        taken = {
            name: None if getattr(self, name) is None else getattr(self, name)[index]
            for name in self.__slots__
        }
        return Padded(**taken)

    def with_masked(self, old: float, rollout: float) -> Padded:
        """Return the same batch with other values at masked positions."""
        return replace(
            self,
            old=np.where(self.mask, self.old, old),
            rollout=np.where(self.mask, self.rollout, rollout),
        )


def padded(log_ratios: Sequence[Sequence[float]], **columns: Any) -> Padded:
    """Make a batch from ragged log-ratios; one policy's log-prob is 0, so they are exact."""
    width = max(1, *map(len, log_ratios))
    ratio = np.zeros((len(log_ratios), width))
    mask = np.zeros(ratio.shape, np.bool_)
    for row, values in enumerate(log_ratios):
        ratio[row, : len(values)] = values
        mask[row, : len(values)] = True
    return Padded(np.minimum(ratio, 0.0), -np.maximum(ratio, 0.0), mask, **columns)


def trajectories_of(batch: Padded) -> Trajectories:
    """Convert a padded batch to trajectories; masked tokens keep their positions."""
    rows, width = batch.old.shape
    return Trajectories(
        first_row=0,
        response_ids=Ragged(np.zeros(rows * width, np.int32), np.arange(rows + 1) * width),
        mask=batch.mask.ravel(),
        log_probs={"rollout": batch.rollout.ravel(), "old": batch.old.ravel()},
        group=None if batch.group is None else batch.group.astype(np.uint64),
        reward=None if batch.reward is None else batch.reward.astype(np.float64),
    )


def plan_of(trainer: str, config: dict[str, Any], **options: Any) -> Plan:
    """Make a plan with one correction, named `it`, from the trainer's own settings."""
    return plan_corrections(find_trainer(trainer), {"it": config}, **options)


def presets_of(trainer: str) -> Plan:
    """Make a plan with all presets of a trainer."""
    result = find_trainer(trainer)
    return plan_corrections(result, result.presets)


def asked_once(plan: Plan) -> Questions:
    """Return what a plan asks for; examples of one test have the same plan of all presets."""
    key = repr((plan.trainer.name, plan.dtype, plan.configs, plan.corrections))
    if key not in ASKED:
        ASKED[key] = asked_by(plan)
    return ASKED[key]


def correction_rows(plan: Plan, batch: Padded, cuts: int = 1) -> CorrectionRows:
    """Compute the row sums that corrections need, merged over this number of shards."""
    expected = asked_once(plan)
    pairs = [
        pair_of(trajectories_of(batch.rows(part)), "rollout", "old")
        for part in np.array_split(np.arange(len(batch)), cuts)
    ]
    return summed(CorrectionRows.of(pair.by_step(), plan, expected) for pair in pairs)


def results_of(plan: Plan, batch: Padded, cuts: int = 1) -> dict[str, CorrectionResult]:
    """Apply every correction of a plan to one batch."""
    return correction_results(plan, correction_rows(plan, batch, cuts).whole)


def result_of(
    trainer: str, config: dict[str, Any], batch: Padded, **options: Any
) -> CorrectionResult:
    """Apply one correction to one batch."""
    return results_of(plan_of(trainer, config, **options), batch)["it"]


def without_prefix(metrics: dict[str, float]) -> dict[str, float]:
    """Return metrics by their names without the prefix before the slash."""
    return {name.rpartition("/")[2]: value for name, value in metrics.items()}
