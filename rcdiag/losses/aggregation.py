"""Reduction of token losses to one number: the sum of weight x loss, divided by a count.

The aggregations are those of verl 0.9.1: `agg_loss` in verl/trainer/ppo/core_algos.py. Where other
generations and trainers differ under the same name, their own folder has the definition.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from rcdiag.entry import Entry
from rcdiag.errors import RcdiagError
from rcdiag.losses.batch import EPSILON, LossBatch
from rcdiag.losses.settings import Denominator, LossSetting, LossSettings
from rcdiag.losses.tensor import Tensor

Unit = Literal["tokens", "sequences", "prompts", "nothing"]


class Count(Struct, frozen=True):
    """The unit that a loss averages over, and functions that count it in a batch."""

    unit: Unit
    kept: Callable[[LossBatch], float]
    all: Callable[[LossBatch], float]

    def of(self, batch: LossBatch, settings: LossSettings, which: Denominator) -> float:
        """Return the count of a batch for a denominator: kept, all, or a constant."""
        if which != "constant":
            return self.kept(batch) if which == "kept" else self.all(batch)
        if self.unit == "nothing":
            raise RcdiagError(
                "denominator constant: this aggregation is a sum without a denominator",
                "choose another aggregation",
            )
        return _positive(settings.constant, "denominator constant")


def _positive(value: float | None, name: str) -> float:
    if value is None or not value > 0 or not math.isfinite(value):
        raise RcdiagError(
            f"{name}: wanted a number above 0, got {value}", "the loss is divided by this number"
        )
    return float(value)


TOKENS = Count(
    "tokens", lambda batch: float(batch.kept.sum()), lambda batch: float(len(batch.kept))
)
# `all` also counts rows without tokens.
SEQUENCES = Count(
    "sequences",
    lambda batch: float((batch.kept_counts > 0).sum()),
    lambda batch: float(len(batch.lengths)),
)
# A prompt counts if at least one of its rows has a sampled token.
PROMPTS = Count(
    "prompts",
    lambda batch: float((batch.prompt_sums(batch.kept.double()) > 0).sum()),
    lambda batch: float(len(batch.prompts[batch.prompts >= 0].unique())),
)
NOTHING = Count("nothing", lambda batch: 1.0, lambda batch: 1.0)


def equal_weights(batch: LossBatch, which: Denominator) -> Tensor | float:
    """Return 1 for every token."""
    return 1.0


def row_mean(batch: LossBatch, which: Denominator) -> Tensor:
    """Return 1 / (T + 1e-8) for the row's T kept tokens, as verl does for every denominator."""
    return (1.0 / (batch.kept_counts + EPSILON))[batch.rows]


def counted_row_mean(batch: LossBatch, which: Denominator) -> Tensor:
    """Return 1 / T; T are the row's kept tokens for denominator `kept`, else all its tokens."""
    counts = batch.kept_counts if which == "kept" else batch.lengths.double()
    return (1.0 / counts.clamp(min=1))[batch.rows]


def prompt_mean(batch: LossBatch, which: Denominator) -> Tensor:
    """Return 1 / T for the T tokens of all responses to the token's prompt; T is at least 1."""
    counted = batch.kept.double()
    if which != "kept":
        counted = counted.new_ones(counted.shape)
    sums = batch.prompt_sums(counted).clamp(min=1.0)
    return (1.0 / sums)[batch.prompts[batch.rows]]


class Aggregation(Struct, frozen=True):
    """A reduction: loss = sum of within(token) x loss(token) / ((count + epsilon) x horizon)."""

    name: str
    says: str
    formula: str
    within: Callable[[LossBatch, Denominator], Tensor | float]
    count: Count
    default: Denominator = "kept"  # the denominator of the trainer's own function
    epsilon: float = 0.0
    horizon: Literal["none", "width", "scale"] = "none"  # scale: scale_factor, or the padded width
    empty_rows_spoil: bool = False  # a row without a kept token makes the loss 0/0
    see: tuple[str, ...] = ()

    def entry(self) -> Entry:
        """Answer `rcdiag explain`: how token losses become one number."""
        example = f"rcdiag replay rollouts.parquet --aggregation {self.name}"
        return Entry(what=self.says, formula=self.formula, example=example, see=self.see)

    def denominator(self, settings: LossSettings) -> Denominator:
        """Return the denominator that is set, or the trainer's own."""
        return settings.denominator or self.default

    def counted(self, batch: LossBatch, settings: LossSettings) -> float:
        """Return the number of tokens, rows or prompts that the sum is divided by."""
        return self.count.of(batch, settings, self.denominator(settings))

    def divisor(self, batch: LossBatch, settings: LossSettings) -> float:
        """Return the divisor of the sum, horizon included; 0 if the loss is undefined."""
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
        return _positive(settings.scale_factor, "scale_factor")


TOKEN_MEAN = Aggregation(
    "token-mean",
    "Every token has the same weight, so long sequences count more.",
    "sum of token losses / tokens",
    equal_weights,
    TOKENS,
    see=("denominator", "by_length"),
)
TOKEN_SUM = Aggregation(
    "token-sum",
    "The sum over tokens without a divisor: the size of the update grows with the batch.",
    "sum of token losses",
    equal_weights,
    NOTHING,
    see=("token-mean",),
)
SEQ_MEAN_TOKEN_SUM = Aggregation(
    "seq-mean-token-sum",
    "Mean over sequences of the sum over their tokens: long sequences count more.",
    "sum of token losses / sequences",
    equal_weights,
    SEQUENCES,
    see=("denominator", "seq-mean-token-sum-norm"),
)
SEQ_MEAN_TOKEN_MEAN = Aggregation(
    "seq-mean-token-mean",
    "Mean over sequences of the mean over their tokens: every sequence has the same weight, so "
    "tokens of long sequences count less.",
    "mean over sequences of sum of token losses / (kept tokens + 1e-8)",
    row_mean,
    SEQUENCES,
    see=("denominator", "by_length", "gspo", "sapo"),
)
SEQ_MEAN_TOKEN_SUM_NORM = Aggregation(
    "seq-mean-token-sum-norm",
    "As seq-mean-token-sum, and also divided by a constant length; up to verl-0.7.0 without the "
    "mean over sequences.",
    "sum of token losses / (sequences x scale_factor); scale_factor defaults to the padded width",
    equal_weights,
    SEQUENCES,
    horizon="scale",
    see=("seq-mean-token-sum", "scale_factor"),
)
PROMPT_MEAN_TOKEN_MEAN = Aggregation(
    "prompt-mean-token-mean",
    "Mean over prompts of the mean over all tokens of a prompt's responses: every prompt has the "
    "same weight, and within a prompt long responses count more.",
    "mean over prompts of sum of token losses / tokens of the prompt's responses",
    prompt_mean,
    PROMPTS,
    see=("token-mean", "seq-mean-token-mean", "denominator"),
)
PROMPT_MEAN_TOKEN_SUM = Aggregation(
    "prompt-mean-token-sum",
    "Mean over prompts of the sum over all tokens of a prompt's responses.",
    "sum of token losses / prompts",
    equal_weights,
    PROMPTS,
    see=("prompt-mean-token-mean", "seq-mean-token-sum"),
)
SCALE_FACTOR = LossSetting(
    name="scale_factor",
    says="The constant length of seq-mean-token-sum-norm; by default the padded width.",
    default=None,
    above=0.0,
    example="rcdiag explain seq-mean-token-sum-norm",
    see=("seq-mean-token-sum-norm",),
)
# For losses that have one value per row: the mean over all rows.
ROW_MEAN = Aggregation(
    "row-mean", "Mean over all rows.", "sum of row losses / rows", equal_weights, SEQUENCES, "all"
)
# The token losses of the worked examples.
WORKED = "token losses [1, 1, 1], [2, 2]"


class DenominatorWords(Struct, frozen=True, kw_only=True):
    """The description of one denominator."""

    name: Denominator
    says: str
    formula: str
    example: str
    see: tuple[str, ...] = ()

    def entry(self) -> Entry:
        """Answer `rcdiag explain`: what the denominator counts."""
        return Entry(what=self.says, formula=self.formula, example=self.example, see=self.see)


_DECIDES = "The choice determines how rejection changes the effective learning rate (verl #4852)."
_FIVE = "token losses 1 of 5 tokens, 2 of them rejected"
KEPT = DenominatorWords(
    name="kept",
    says="The loss is divided by what is kept: rejected tokens, and rows in which every token is "
    f"rejected, are not counted. {_DECIDES}",
    formula="count of kept tokens, or of rows with a kept token",
    example=f"{_FIVE}: 3 / 3 = 1",
    see=("denominator", "denominator_kept", "kept"),
)
ALL = DenominatorWords(
    name="all",
    says=f"The loss is divided by all tokens or rows, rejected ones included. {_DECIDES}",
    formula="count of unmasked tokens, or of all rows",
    example=f"{_FIVE}: 3 / 5 = 0.6",
    see=("denominator", "denominator_all", "rejected-in-denominator"),
)
CONSTANT = DenominatorWords(
    name="constant",
    says="The loss is divided by a given number of tokens or sequences (which one depends on the "
    "aggregation) at each optimizer step, whatever is rejected. A sum has no denominator.",
    formula="the number of --constant",
    example=f"{_FIVE}, --denominator constant --constant 4: 3 / 4 = 0.75",
    see=("denominator", "all"),
)
