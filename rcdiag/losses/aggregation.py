"""How token losses are reduced to one number: sum of weight x loss, divided by a count.

The aggregations are those of verl 0.9.1: `agg_loss` in verl/trainer/ppo/core_algos.py. Where other
generations and trainers do otherwise under the same name, their folder defines it.
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
    """What a loss averages over (tokens, sequences, prompts or nothing), and how to count it."""

    unit: Unit
    kept: Callable[[LossBatch], float]
    all: Callable[[LossBatch], float]

    def of(self, batch: LossBatch, settings: LossSettings, which: Denominator) -> float:
        """Count a batch by a denominator."""
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
# `all` counts rows without any token too.
SEQUENCES = Count("sequences", _kept_sequences, lambda batch: float(len(batch.lengths)))
# A prompt counts if at least one of its rows has a sampled token.
PROMPTS = Count(
    "prompts",
    lambda batch: float((batch.prompt_sums(batch.kept.double()) > 0).sum()),
    lambda batch: float(len(batch.prompts[batch.prompts >= 0].unique())),
)
NOTHING = Count("nothing", lambda batch: 1.0, lambda batch: 1.0)


def alike(batch: LossBatch, which: Denominator) -> Tensor | float:
    """Return 1 for every token."""
    return 1.0


def row_mean(batch: LossBatch, which: Denominator) -> Tensor:
    """Return 1 / (T + 1e-8) for the row's T kept tokens; verl's, whatever the denominator."""
    return (1.0 / (batch.kept_counts + EPSILON))[batch.rows]


def counted_row_mean(batch: LossBatch, which: Denominator) -> Tensor:
    """Return 1 / T for the row's T tokens; rejected ones count but under denominator `kept`."""
    counts = batch.kept_counts if which == "kept" else batch.lengths.double()
    return (1.0 / counts.clamp(min=1))[batch.rows]


def prompt_mean(batch: LossBatch, which: Denominator) -> Tensor:
    """Return 1 / T for the T tokens of all responses to the token's prompt, 1 at least."""
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
    default: Denominator = "kept"  # what the trainer's function itself takes
    epsilon: float = 0.0
    horizon: Literal["none", "width", "scale"] = "none"  # scale: scale_factor, else the width
    empty_rows_spoil: bool = False  # a row without a kept token has the mean 0/0
    see: tuple[str, ...] = ()

    def entry(self) -> Entry:
        """Say how losses of tokens become one number."""
        example = f"rcdiag replay rollouts.parquet --aggregation {self.name}"
        return Entry(what=self.says, formula=self.formula, example=example, see=self.see)

    def denominator(self, settings: LossSettings) -> Denominator:
        """Return the denominator that is set, else the trainer's own."""
        return settings.denominator or self.default

    def counted(self, batch: LossBatch, settings: LossSettings) -> float:
        """Count the tokens or rows of the whole batch that divide the sum."""
        return self.count.of(batch, settings, self.denominator(settings))

    def divisor(self, batch: LossBatch, settings: LossSettings) -> float:
        """Return what the sum is divided by; 0 where there is no loss."""
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


TOKEN_MEAN = Aggregation(
    "token-mean",
    "Every token counts alike, so long sequences count more.",
    "sum of token losses / tokens",
    alike,
    TOKENS,
    see=("denominator", "by_length"),
)
TOKEN_SUM = Aggregation(
    "token-sum",
    "Sum over tokens, divided by nothing: the step grows with the batch.",
    "sum of token losses",
    alike,
    NOTHING,
    see=("token-mean",),
)
SEQ_MEAN_TOKEN_SUM = Aggregation(
    "seq-mean-token-sum",
    "Mean over sequences of their sums: long sequences count more.",
    "sum of token losses / sequences",
    alike,
    SEQUENCES,
    see=("denominator", "seq-mean-token-sum-norm"),
)
SEQ_MEAN_TOKEN_MEAN = Aggregation(
    "seq-mean-token-mean",
    "Mean over sequences of their means: every sequence counts alike, so tokens of long ones "
    "count less.",
    "mean over sequences of sum of token losses / (kept tokens + 1e-8)",
    row_mean,
    SEQUENCES,
    see=("denominator", "by_length", "gspo", "sapo"),
)
SEQ_MEAN_TOKEN_SUM_NORM = Aggregation(
    "seq-mean-token-sum-norm",
    "As seq-mean-token-sum, over a constant length too; up to verl-0.7.0 without the mean over "
    "sequences.",
    "sum of token losses / (sequences x scale_factor), scale_factor else the padded width",
    alike,
    SEQUENCES,
    horizon="scale",
    see=("seq-mean-token-sum", "scale_factor"),
)
PROMPT_MEAN_TOKEN_MEAN = Aggregation(
    "prompt-mean-token-mean",
    "Mean over prompts of the mean over all tokens of a prompt's responses: every prompt counts "
    "alike, and inside it long responses count more.",
    "mean over prompts of sum of token losses / tokens of the prompt's responses",
    prompt_mean,
    PROMPTS,
    see=("token-mean", "seq-mean-token-mean", "denominator"),
)
PROMPT_MEAN_TOKEN_SUM = Aggregation(
    "prompt-mean-token-sum",
    "Mean over prompts of what the responses to a prompt add up to.",
    "sum of token losses / prompts",
    alike,
    PROMPTS,
    see=("prompt-mean-token-mean", "seq-mean-token-sum"),
)
SCALE_FACTOR = LossSetting(
    name="scale_factor",
    says="The constant length of seq-mean-token-sum-norm; the padded width without it.",
    default=None,
    above=0.0,
    example="rcdiag explain seq-mean-token-sum-norm",
    see=("seq-mean-token-sum-norm",),
)
# For losses with one number per row: the mean over all rows.
ROW_MEAN = Aggregation(
    "row-mean", "Mean over all rows.", "sum of row losses / rows", alike, SEQUENCES, "all"
)
# The token losses of the worked examples.
WORKED = "token losses [1, 1, 1], [2, 2]"


class DenominatorWords(Struct, frozen=True, kw_only=True):
    """The meaning of one way to count, for a loss."""

    name: Denominator
    says: str
    formula: str
    example: str
    see: tuple[str, ...] = ()

    def entry(self) -> Entry:
        """Say what the denominator counts."""
        return Entry(what=self.says, formula=self.formula, example=self.example, see=self.see)


_DECIDES = "It decides how rejection changes the learning rate (verl #4852)."
_FIVE = "token losses 1 of 5 tokens, 2 of them rejected"
KEPT = DenominatorWords(
    name="kept",
    says="Denominator of what is kept alone: rejected tokens, and rows without any other, are left "
    f"out. {_DECIDES}",
    formula="count of kept tokens, or of rows with a kept token",
    example=f"{_FIVE}: 3 / 3 = 1",
    see=("denominator", "denominator_kept", "kept"),
)
ALL = DenominatorWords(
    name="all",
    says=f"Denominator that rejected tokens and rows are counted in. {_DECIDES}",
    formula="count of unmasked tokens, or of all rows",
    example=f"{_FIVE}: 3 / 5 = 0.6",
    see=("denominator", "denominator_all", "rejected-in-denominator"),
)
CONSTANT = DenominatorWords(
    name="constant",
    says="Denominator that is given: a number of tokens or sequences, by the aggregation, for each "
    "optimizer step, whatever is rejected. A sum has none.",
    formula="the number of --constant",
    example=f"{_FIVE}, --denominator constant --constant 4: 3 / 4 = 0.75",
    see=("denominator", "all"),
)
