"""AReaL's numbers of a correction, of one minibatch that is the table.

Sources: areal 1.0.4, areal/trainer/ppo/actor.py (`grpo_loss_fn`),
areal/utils/functional/functional.py and areal/utils/stats_tracker.py.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.corrections.apply import applied_weights, bounded_quantity, raw_weights
from rcdiag.corrections.arithmetic import Array, Tokens
from rcdiag.corrections.correction import Correction, Rejection
from rcdiag.corrections.quantities import SUM, Quantity, Reduction, Within
from rcdiag.corrections.reduced import Reduced
from rcdiag.corrections.rejections import tokens_kept
from rcdiag.corrections.trainer_means import Batch

Metrics = dict[str, float]
PREFIX = "ppo_actor/update/"
M2PO = "token_tail_second_moment"


class Change(Struct, frozen=True):
    """The log-ratio as it is logged: no number stays what it is, nats."""

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        return tokens.log_ratio if tokens.guard.before_sums else tokens.raw_log_ratio


class One(Struct, frozen=True):
    """1 at every token."""

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        return np.ones(len(tokens.raw_log_ratio))


class Weighed(Struct, frozen=True):
    """`quantity` at tokens that are kept and whose `weight` is above 0, elsewhere a constant."""

    over: tuple[Rejection, ...]
    weight: Quantity | None  # None: that of the sequence, which is not looked at
    quantity: Quantity
    elsewhere: float = 0.0

    keeps: ClassVar[tuple[Reduction, ...]] = ("sum", "max", "min")

    def of(self, tokens: Tokens) -> Array:
        counted = tokens_kept(tokens, self.over)
        if self.weight is not None:
            counted = counted & (self.weight.of(tokens) > 0)
        return np.where(counted, self.quantity.of(tokens), self.elsewhere)


class Moved(Struct, frozen=True):
    """1 at tokens that `over` leaves and whose weight the bounds change."""

    over: tuple[Rejection, ...]
    weight: Quantity

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        moved = self.weight.of(tokens) != tokens.ratio
        return (moved & tokens_kept(tokens, self.over)).astype(np.float64)


class Numbers(Struct, frozen=True):
    """The numbers of one correction on one batch."""

    batch: Batch
    correction: Correction

    @property
    def first(self) -> tuple[Rejection, ...]:
        """Return M2PO, which comes before everything."""
        return _first(self.correction)

    @property
    def valid(self) -> float:
        """Count the tokens that M2PO leaves."""
        return float(self.batch.rows.columns[Within(self.first)].sum.sum())

    @property
    def kept(self) -> float:
        return float(self.batch.rows.columns[Within(self.correction.rejections)].sum.sum())

    def column(self, quantity: Quantity, elsewhere: float = 0.0) -> Reduced:
        """Return a quantity at the tokens that are counted."""
        over, weight = self.correction.rejections, _token_weight(self.correction)
        return self.batch.rows.columns[Weighed(over, weight, quantity, elsewhere)]

    @property
    def row_weights(self) -> NDArray[np.float64]:
        """Return the weight of each sequence, where its tokens share one, [sequences]."""
        assert self.correction.weighting is not None
        return applied_weights(self.batch.rows, self.correction.weighting).max

    @property
    def counted(self) -> NDArray[np.float64]:
        """Count the tokens of each sequence that are kept and have a weight above 0."""
        counts = self.column(One()).sum
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
        return self._of_tokens("behave_imp_weight", weight, counts)

    def of_changes(self) -> Metrics:
        """Return mean and extremes of the log-ratios."""
        return self._of_tokens("behave_approx_kl", Change(), self.counted)

    def _of_tokens(self, name: str, quantity: Quantity, counts: NDArray) -> Metrics:
        some = counts > 0
        total = self.column(quantity).sum[some].sum()
        least, most = self.column(quantity, np.inf).min, self.column(quantity, -np.inf).max
        return _three(name, total, counts.sum(), least[some], most[some])

    def filtered(self) -> float:
        """Return the share of tokens that are rejected, or clamped where nothing is rejected."""
        weighting, rows = self.correction.weighting, self.batch.rows
        assert weighting is not None
        if weighting.outside != "clip":
            return (self.valid - self.kept) / max(self.valid, 1.0)
        weight = _token_weight(self.correction)
        if weight is not None:
            moved = rows.columns[Moved(self.first, weight)].sum.sum()
        else:
            changed = self.row_weights != raw_weights(rows, weighting).max
            moved = rows.columns[Within(self.first)].sum[changed].sum()
        return float(moved) / max(self.valid, 1.0)


def _three(name: str, total: float, count: float, least: NDArray, most: NDArray) -> Metrics:
    """Return mean and extremes; the trainer leaves out what is not there or infinite."""
    if not count:
        return {}
    extremes = {"min": float(least.min()), "max": float(most.max())}
    finite = {f"{name}/{how}": value for how, value in extremes.items() if not np.isinf(value)}
    return {f"{name}/avg": float(total / count), **finite}


def _first(correction: Correction) -> tuple[Rejection, ...]:
    return tuple(one for one in correction.rejections if one.statistic == M2PO)


def _token_weight(correction: Correction) -> Quantity | None:
    """Return the weight of tokens before rejection; None where sequences have one each."""
    weighting = correction.weighting
    if weighting is None or not weighting.by_token:
        return None
    return bounded_quantity(weighting)


def quantities(correction: Correction) -> list[Quantity]:
    """Return the quantities of tokens that `metrics` reads."""
    first = _first(correction)
    needed: list[Quantity] = [Within(first)]
    if correction.weighting is None:
        return needed
    over, weight = correction.rejections, _token_weight(correction)
    read: list[Quantity] = [Change(), *([] if weight is None else [weight])]
    needed += [Within(over), Weighed(over, weight, One())]
    needed += [
        Weighed(over, weight, quantity, elsewhere)
        for quantity in read
        for elsewhere in (0.0, np.inf, -np.inf)
    ]
    return [*needed, *([] if weight is None else [Moved(first, weight)])]


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return all logged numbers under their keys."""
    numbers = Numbers(batch, correction)
    logged: Metrics = {"n_valid_tokens": numbers.valid}
    if correction.weighting is not None:
        logged["unclipped_behave_tokens"] = float(numbers.counted.sum())
        logged["rs_filtered_fraction"] = numbers.filtered()
        logged |= numbers.of_weights() | numbers.of_changes()
    return {PREFIX + name: value for name, value in logged.items()}
