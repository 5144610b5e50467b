"""AReaL's metrics of a correction, with the table as one minibatch.

Sources: areal 1.0.4 and AReaL commit cbff54d6, areal/trainer/ppo/actor.py (`grpo_loss_fn`),
areal/utils/functional/functional.py and areal/utils/stats_tracker.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.corrections.apply import applied_weights, bounded_weight, raw_weights
from rcdiag.corrections.arithmetic import Array, Tokens
from rcdiag.corrections.correction import Correction, Rejection
from rcdiag.corrections.quantities import (
    RATIO,
    Quantity,
    differs,
    log_prob,
    quantity,
    stays,
)
from rcdiag.corrections.trainer_means import Batch, Metrics
from rcdiag.trainers.areal.correction import M2PO

PREFIX = "ppo_actor/update/"


@quantity
def change(tokens: Tokens) -> Array:
    """Return the log-ratio in the form in which it is logged, nats: NaN and infinity stay."""
    return tokens.log_ratio if tokens.guard.before_sums else tokens.raw_log_ratio


class Numbers(Struct, frozen=True):
    """The numbers of one correction on one batch."""

    batch: Batch
    correction: Correction

    @property
    def first(self) -> tuple[Rejection, ...]:
        """Return M2PO's rejections, which come before everything else."""
        return tuple(one for one in self.correction.rejections if one.statistic == M2PO)

    @property
    def valid(self) -> float:
        """Count the tokens that M2PO keeps."""
        return float(self.batch.rows.sum(stays(self.first)).sum())

    @property
    def kept(self) -> float:
        return float(self.batch.rows.sum(stays(self.correction.rejections)).sum())

    @property
    def is_counted(self) -> Quantity:
        """Return 1 at tokens that are kept and have a positive weight of their own."""
        kept, weight = stays(self.correction.rejections), _token_weight(self.correction)
        return kept if weight is None else kept & (weight > 0)

    @property
    def row_weights(self) -> NDArray[np.float64]:
        """Return the weight of each sequence, if its tokens share one, [sequences]."""
        assert self.correction.weighting is not None
        return self.batch.rows.max(applied_weights(self.batch.rows, self.correction.weighting))

    @property
    def counted(self) -> NDArray[np.float64]:
        """Count the tokens of each sequence that are kept and have a weight above 0."""
        counts = self.batch.rows.sum(self.is_counted)
        if _token_weight(self.correction) is None:
            counts = np.where(self.row_weights > 0, counts, 0.0)
        return counts

    def of_weights(self) -> Metrics:
        """Return mean and extremes of the weights."""
        weight, counts = _token_weight(self.correction), self.counted
        if weight is None:
            weights = self.row_weights[counts > 0]
            total = (weights * counts[counts > 0]).sum()
            return _three("behave_imp_weight", total, counts.sum(), weights, weights)
        return self._of_tokens("behave_imp_weight", weight, counts, self.is_counted)

    def of_changes(self) -> Metrics:
        """Return mean and extremes of the log-ratios."""
        return self._of_tokens("behave_approx_kl", change, self.counted, self.is_counted)

    def of_old(self) -> Metrics:
        """Return mean and extremes of `old_logp` over the tokens that M2PO keeps."""
        # Without the decoupled loss `recompute_logprob` overwrites the sampler's log-probs.
        one_policy = self.correction.guard.before_sums
        recomputed = one_policy and self.correction.mode == "decoupled"
        values = log_prob("target" if recomputed else "behavior")
        valid = stays(self.first)
        return self._of_tokens("old_logp", values, self.batch.rows.sum(valid), valid)

    def of_filtered(self) -> Metrics:
        """Return mean and extremes of the flag of tokens that the behave_* metrics leave out."""
        left_out = self.valid - float(self.counted.sum())
        if not self.valid:
            return {}
        marks = {"avg": left_out / self.valid, "min": float(left_out == self.valid)}
        marks["max"] = float(left_out > 0)
        return {f"behave_filtered_ratio/{how}": value for how, value in marks.items()}

    def _of_tokens(
        self, name: str, values: Quantity, counts: NDArray[Any], flags: Quantity
    ) -> Metrics:
        """Return mean and extremes over flagged tokens; `counts` are their numbers by sequence."""
        some, rows = counts > 0, self.batch.rows
        total = rows.sum(values.where(flags))[some].sum()
        least, most = (
            rows.min(values.where(flags, np.inf)),
            rows.max(values.where(flags, -np.inf)),
        )
        return _three(name, total, counts.sum(), least[some], most[some])

    def filtered(self) -> float:
        """Return the share of tokens that are rejected, or clamped if nothing is rejected."""
        weighting, rows = self.correction.weighting, self.batch.rows
        assert weighting is not None
        if weighting.outside != "clip":
            return (self.valid - self.kept) / max(self.valid, 1.0)
        weight = _token_weight(self.correction)
        if weight is not None:
            count = rows.sum(differs(weight, RATIO) & stays(self.first)).sum()
        else:
            changed = self.row_weights != rows.max(raw_weights(rows, weighting))
            count = rows.sum(stays(self.first))[changed].sum()
        return float(count) / max(self.valid, 1.0)


def _three(
    name: str, total: float, count: float, least: NDArray[Any], most: NDArray[Any]
) -> Metrics:
    """Return mean and extremes; the trainer leaves out missing and infinite ones."""
    if not count:
        return {}
    extremes = {"min": float(least.min()), "max": float(most.max())}
    finite = {f"{name}/{how}": value for how, value in extremes.items() if not np.isinf(value)}
    return {f"{name}/avg": float(total / count), **finite}


def _token_weight(correction: Correction) -> Quantity | None:
    """Return the weight of tokens before rejection; None if each sequence has one weight."""
    weighting = correction.weighting
    if weighting is None or not weighting.by_token:
        return None
    return bounded_weight(weighting)


def metrics(batch: Batch, correction: Correction, of_august: bool = False) -> Metrics:
    """Return all metrics under their keys; `of_august` adds those of the commit of 2026-08-22."""
    numbers = Numbers(batch, correction)
    logged: Metrics = {"n_valid_tokens": numbers.valid, **numbers.of_old()}
    if of_august:
        logged["n_valid_tokens_in_loss"] = numbers.valid
    if correction.weighting is not None:
        logged["unclipped_behave_tokens"] = float(numbers.counted.sum())
        logged["rs_filtered_fraction"] = numbers.filtered()
        logged |= numbers.of_weights() | numbers.of_changes()
        logged |= numbers.of_filtered() if of_august else {}
    return {PREFIX + name: value for name, value in logged.items()}
