"""How the losses of tokens become one number: sum of within x loss, over a count.

Formulas: verl's `agg_loss`, as in reference/verl.md 3, and slime's `get_sum_of_sample_mean`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from rcdiag.errors import RcdiagError
from rcdiag.losses.batch import EPSILON, LossBatch
from rcdiag.losses.settings import Denominator, LossSettings

Count = Callable[[LossBatch, LossSettings, Denominator], float]


def _given(value: float | None, name: str) -> float:
    if value is None or not value > 0:
        raise RcdiagError(
            f"{name}: wanted a number above 0, got {value}", "the loss is divided by it"
        )
    return float(value)


def tokens(batch: LossBatch, settings: LossSettings, which: Denominator) -> float:
    """Tokens of the batch: those that are kept, all, or a number that is given."""
    if which == "constant":
        return _given(settings.tokens, "tokens")
    return float(batch.kept.sum() if which == "kept" else len(batch.kept))


def sequences(batch: LossBatch, settings: LossSettings, which: Denominator) -> float:
    """Rows with a kept token, all rows (those without any token too), or a number given."""
    if which == "constant":
        return _given(settings.sequences, "sequences")
    return float((batch.kept_counts > 0).sum() if which == "kept" else len(batch.lengths))


def slime_tokens(batch: LossBatch, settings: LossSettings, which: Denominator) -> float:
    """As `tokens`; of all, a row without a token counts as one."""
    if which == "all":
        return float(batch.lengths.clamp(min=1).sum())
    return tokens(batch, settings, which)


def one(batch: LossBatch, settings: LossSettings, which: Denominator) -> float:
    """A sum is divided by nothing."""
    return 1.0


def each(batch: LossBatch, which: Denominator) -> Tensor | float:
    """Every token counts alike."""
    return 1.0


def row_mean(batch: LossBatch, which: Denominator) -> Tensor:
    """1 / (T + 1e-8) for the T kept tokens of the row; verl's, whatever the denominator."""
    return (1.0 / (batch.kept_counts + EPSILON))[batch.rows]


def slime_row_mean(batch: LossBatch, which: Denominator) -> Tensor:
    """1 / T for the T tokens of the row; rejected ones count unless it is `kept`."""
    counts = batch.kept_counts if which == "kept" else batch.lengths
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
        return self.count(batch, settings, self.denominator(settings))

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
    "token-mean": Aggregation(each, tokens),
    "token-sum": Aggregation(each, one),
    "seq-mean-token-sum": Aggregation(each, sequences),
    "seq-mean-token-mean": Aggregation(row_mean, sequences),
    "seq-mean-token-sum-norm": Aggregation(each, sequences, horizon="scale"),
}
IN_071 = {name: value for name, value in AGGREGATIONS.items() if name != "token-sum"}
IN_070 = IN_071 | {"seq-mean-token-sum-norm": Aggregation(each, one, horizon="scale")}
# With its epsilon a mean of nothing is 0.
IN_061 = {name: replace(value, epsilon=EPSILON) for name, value in IN_070.items()} | {
    "seq-mean-token-sum-norm": Aggregation(each, one, horizon="width")
}
IN_060 = IN_061 | {
    "seq-mean-token-sum": Aggregation(each, sequences, "all"),
    "seq-mean-token-mean": Aggregation(row_mean, sequences, "all", empty_rows_spoil=True),
}
# `rollout_mask_sums` is taken for one sample per rollout. token-mean: --calculate-per-token-loss.
IN_SLIME = {
    "seq-mean-token-mean": Aggregation(slime_row_mean, sequences, "all"),
    "token-mean": Aggregation(each, slime_tokens, "all"),
}
# Of losses that have one number per row: the mean over all rows.
OF_ROWS = Aggregation(each, sequences, "all")
