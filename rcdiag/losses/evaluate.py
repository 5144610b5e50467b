"""The loss, metrics and exact gradient that a trainer would compute on a batch."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.losses.aggregation import ROW_MEAN, Aggregation
from rcdiag.losses.batch import EPSILON, LossBatch, TokenLosses
from rcdiag.losses.clipped import geometric_row_weights
from rcdiag.losses.rules import UpdateRules
from rcdiag.losses.settings import LossSettings
from rcdiag.losses.tensor import Tensor

Array = NDArray[np.float64]


class DivisorCounts(Struct, frozen=True):
    """The denominator of a loss: its unit, the count that was used, and the alternatives."""

    which: str  # kept, all, constant
    unit: str  # tokens, sequences, nothing
    used: float
    kept: float
    all: float


class RowParts(Struct, frozen=True, eq=False):
    """Each row's contribution to the sum of a loss and to the count that divides it, [rows]."""

    sums: Array
    counts: Array | None  # None: the divisor does not depend on the rows
    divisor: float
    epsilon: float  # added to the count

    def without_groups(self, group: NDArray[np.int64]) -> Array:
        """Return the loss with each group of rows left out in turn, [groups].

        `group` [rows with a token] has group indices from 0; rows without tokens come after them
        and are never left out. With a constant divisor the remaining sum is scaled up to all
        groups.
        """
        groups = int(group.max()) + 1
        sums = np.bincount(group, self.sums[: len(group)], groups)
        left = self.sums.sum() - sums
        if self.counts is None:
            losses: Array = left / self.divisor * groups / max(groups - 1, 1)
            return losses
        whole = self.counts.sum()
        counts = whole - np.bincount(group, self.counts[: len(group)], groups)
        per_count = self.divisor / (whole + self.epsilon)
        with np.errstate(divide="ignore", invalid="ignore"):
            losses = left / ((counts + self.epsilon) * per_count)
        return losses


class LossResult(Struct, frozen=True, eq=False):
    """The loss, metrics and gradient that the trainer would have computed on the batch."""

    loss: float  # as the trainer logs it, which is NaN or 0 if it is undefined
    metrics: dict[str, float]  # under the trainer's own keys
    coefficients: Array  # d loss / d current, of each token of the batch
    divided: DivisorCounts
    rows: RowParts
    undefined: str | None = None  # why the loss is undefined; all coefficients are then 0


def evaluate(batch: LossBatch, loss: str, settings: LossSettings, rules: UpdateRules) -> LossResult:
    """Compute a loss by its name under the rules of a trainer, with its exact gradient.

    `settings` replace the trainer's own, `rules.defaults`.
    """
    policy_loss = rules.loss(loss)
    current = batch.current.detach().double().leaf()
    batch = replace(batch, current=current)
    seen = batch if rules.sees_rejected else batch.only_kept()
    losses = policy_loss(seen, settings)
    reduction = ROW_MEAN if losses.by_row else rules.aggregation(loss, settings)
    weighted = losses.values
    if seen.weights is not None and not losses.weighted:  # by_row: a row's geometric mean
        weights = seen.weights
        weighted = weighted * (geometric_row_weights(seen, weights) if losses.by_row else weights)
    total = _total(reduction, batch, seen, weighted, settings)
    if rules.logged is not None:
        metrics = rules.logged(seen, losses, settings)
    else:
        metrics = _metrics(rules, reduction, batch, losses, settings)
        if rules.sees_rejected:
            metrics["pg_loss"] = total.item()
    reason = None
    if not reduction.counted(batch, settings) or not reduction.divisor(batch, settings):
        reason = "no token is kept, so there is nothing to average"
    elif reduction.empty_rows_spoil and _empty_rows_counted(reduction, batch, settings):
        reason = "a row has no kept token, and this generation includes its mean, which is 0/0"
    return LossResult(
        loss=total.item(),
        metrics={rules.prefix + name: value for name, value in metrics.items()},
        coefficients=np.zeros(len(current)) if reason else total.derivative(current),
        divided=DivisorCounts(
            which=reduction.denominator(settings),
            unit=reduction.count.unit,
            used=reduction.counted(batch, settings),
            kept=reduction.count.kept(batch),
            all=reduction.count.all(batch),
        ),
        rows=_row_parts(reduction, batch, seen, weighted, losses.by_row, settings),
        undefined=reason,
    )


def _total(
    reduction: Aggregation,
    batch: LossBatch,
    seen: LossBatch,
    losses: Tensor,
    settings: LossSettings,
) -> Tensor:
    """Return the sum of within x loss / divisor; NaN if the divisor is 0, as in the trainer."""
    divisor = reduction.divisor(batch, settings)
    summed = (reduction.within(seen, reduction.denominator(settings)) * losses).sum()
    spoiled = reduction.empty_rows_spoil and _empty_rows_counted(reduction, batch, settings)
    return summed / divisor if divisor and not spoiled else Tensor(math.nan)


def _empty_rows_counted(reduction: Aggregation, batch: LossBatch, settings: LossSettings) -> bool:
    return reduction.denominator(settings) != "kept" and bool((batch.kept_counts == 0).any())


def _row_parts(
    reduction: Aggregation,
    batch: LossBatch,
    seen: LossBatch,
    losses: Tensor,
    by_row: bool,
    settings: LossSettings,
) -> RowParts:
    """Split a loss by rows, for the jackknife over prompt groups."""
    which = reduction.denominator(settings)
    values = (reduction.within(seen, which) * losses).detach()
    counts = None
    if which != "constant" and reduction.count.unit != "nothing":
        tokens = batch.kept_counts if which == "kept" else batch.lengths
        of_rows = tokens > 0 if which == "kept" else tokens.new_ones(tokens.shape)
        counts = (tokens if reduction.count.unit == "tokens" else of_rows).double().numpy()
    return RowParts(
        sums=(values if by_row else seen.row_sums(values)).numpy(),
        counts=counts,
        divisor=reduction.divisor(batch, settings),
        epsilon=reduction.epsilon,
    )


def _metrics(
    rules: UpdateRules,
    reduction: Aggregation,
    batch: LossBatch,
    losses: TokenLosses,
    settings: LossSettings,
) -> dict[str, float]:
    """Return the metrics that a trainer logs of a loss, by its keys without prefix."""
    logged = {name: values.detach().double() for name, values in losses.logged.items()}
    if rules.sees_rejected:
        # Aggregated like the trainer's loss, with the trainer's own denominator.
        own = replace(settings, denominator=None)
        return {
            name: _total(reduction, batch, batch, values, own).item()
            for name, values in logged.items()
        }
    # The masked means of verl: sum / (kept tokens + 1e-8).
    means = {
        name: (values.sum() / (len(values) + EPSILON)).item() for name, values in logged.items()
    }
    return dict.fromkeys(rules.zeros, 0.0) | means
