"""How the losses of tokens become one number: sum of within x loss, over a count.

Formulas: verl's `agg_loss`, as in reference/verl.md 3, and slime's `get_sum_of_sample_mean`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from rcdiag.errors import RcdiagError
from rcdiag.losses.batch import EPSILON, LossBatch
from rcdiag.losses.settings import Denominator, LossSettings

Unit = Literal["tokens", "sequences", "nothing"]


@dataclass(frozen=True, slots=True)
class Count:
    """Of what the loss is a mean: how many of them there are."""

    unit: Unit
    kept: Callable[[LossBatch], float]
    all: Callable[[LossBatch], float]

    def of(self, batch: LossBatch, settings: LossSettings, which: Denominator) -> float:
        if which != "constant":
            return self.kept(batch) if which == "kept" else self.all(batch)
        if self.unit == "nothing":
            raise RcdiagError(
                "denominator constant: this aggregation is a sum, it counts nothing",
                "choose another aggregation",
            )
        return _given(settings.constant, "denominator constant")


def _given(value: float | None, name: str) -> float:
    if value is None or not value > 0 or not math.isfinite(value):
        raise RcdiagError(
            f"{name}: wanted a number above 0, got {value}", "the loss is divided by it"
        )
    return float(value)


def _kept_tokens(batch: LossBatch) -> float:
    return float(batch.kept.sum())


def _kept_sequences(batch: LossBatch) -> float:
    return float((batch.kept_counts > 0).sum())


TOKENS = Count("tokens", _kept_tokens, lambda batch: float(len(batch.kept)))
# Of all, a row without a token counts as one.
SLIME_TOKENS = Count("tokens", _kept_tokens, lambda batch: float(batch.lengths.clamp(min=1).sum()))
# Of all, rows without any token too.
SEQUENCES = Count("sequences", _kept_sequences, lambda batch: float(len(batch.lengths)))
NOTHING = Count("nothing", lambda batch: 1.0, lambda batch: 1.0)


def each(batch: LossBatch, which: Denominator) -> Tensor | float:
    """Every token counts alike."""
    return 1.0


def row_mean(batch: LossBatch, which: Denominator) -> Tensor:
    """1 / (T + 1e-8) for the T kept tokens of the row; verl's, whatever the denominator."""
    return (1.0 / (batch.kept_counts + EPSILON))[batch.rows]


def slime_row_mean(batch: LossBatch, which: Denominator) -> Tensor:
    """1 / T for the T tokens of the row; rejected ones count unless it is `kept`."""
    # 1 / an integer tensor would be float32.
    counts = batch.kept_counts if which == "kept" else batch.lengths.to(torch.float64)
    return (1.0 / counts.clamp(min=1))[batch.rows]


@dataclass(frozen=True, slots=True)
class Aggregation:
    """loss = sum of within x loss / ((count + epsilon) x horizon)."""

    within: Callable[[LossBatch, Denominator], Tensor | float]
    count: Count
    default: Denominator = "kept"  # what the trainer's function itself takes
    epsilon: float = 0.0
    horizon: Literal["none", "width", "scale"] = "none"  # scale: scale_factor, else the width
    empty_rows_spoil: bool = False  # a row without a kept token has the mean 0/0

    def denominator(self, settings: LossSettings) -> Denominator:
        return settings.denominator or self.default

    def counted(self, batch: LossBatch, settings: LossSettings) -> float:
        """How many tokens or rows the sum is divided by, of the whole batch."""
        return self.count.of(batch, settings, self.denominator(settings))

    def divisor(self, batch: LossBatch, settings: LossSettings) -> float:
        """What the sum is divided by; 0 where there is no loss."""
        return (self.counted(batch, settings) + self.epsilon) * self._length(batch, settings)

    def _length(self, batch: LossBatch, settings: LossSettings) -> float:
        if self.horizon == "none":
            return 1.0
        if settings.scale_factor is None:
            return float(batch.padded_width)
        if self.horizon == "width":
            raise RcdiagError(
                "scale_factor: this generation always divides by the padded width",
                "leave it out, or take verl-0.7.0 or later",
            )
        return _given(settings.scale_factor, "scale_factor")


# verl 0.9; each older table says what was otherwise.
AGGREGATIONS = {
    "token-mean": Aggregation(each, TOKENS),
    "token-sum": Aggregation(each, NOTHING),
    "seq-mean-token-sum": Aggregation(each, SEQUENCES),
    "seq-mean-token-mean": Aggregation(row_mean, SEQUENCES),
    "seq-mean-token-sum-norm": Aggregation(each, SEQUENCES, horizon="scale"),
}
IN_071 = {name: value for name, value in AGGREGATIONS.items() if name != "token-sum"}
IN_070 = IN_071 | {"seq-mean-token-sum-norm": Aggregation(each, NOTHING, horizon="scale")}
# With its epsilon a mean of nothing is 0.
IN_061 = {name: replace(value, epsilon=EPSILON) for name, value in IN_070.items()} | {
    "seq-mean-token-sum-norm": Aggregation(each, NOTHING, horizon="width")
}
IN_060 = IN_061 | {
    "seq-mean-token-sum": Aggregation(each, SEQUENCES, "all"),
    "seq-mean-token-mean": Aggregation(row_mean, SEQUENCES, "all", empty_rows_spoil=True),
}
# `rollout_mask_sums` is taken for one sample per rollout. token-mean: --calculate-per-token-loss.
IN_SLIME = {
    "seq-mean-token-mean": Aggregation(slime_row_mean, SEQUENCES, "all"),
    "token-mean": Aggregation(each, SLIME_TOKENS, "all"),
}
# Of losses that have one number per row: the mean over all rows.
OF_ROWS = Aggregation(each, SEQUENCES, "all")
