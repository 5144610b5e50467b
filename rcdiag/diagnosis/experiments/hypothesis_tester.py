"""Tests hypotheses on the recorded column of one side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from rcdiag.diagnosis.experiments.fit import Residual, fit_residual, margin
from rcdiag.diagnosis.experiments.rescored_sample import RescoredSample, Side
from rcdiag.diagnosis.experiments.trainer_distribution import TrainerDistribution
from rcdiag.engines.changes import Change, Forward, Passage

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

Encode = Callable[[str], list[int]]
Decode = Callable[[Sequence[int]], str]
Coders = Callable[[], tuple[Encode | None, Decode | None]]

SCREEN_ROWS = 6
CONFIRM_ROWS = 32


GAIN = 0.3  # nats per token from which on a test on few rows is repeated on more


def no_coders() -> tuple[Encode | None, Decode | None]:
    """Stand for a checkpoint without a tokenizer."""
    return None, None


class HypothesisTest(Struct, frozen=True, kw_only=True):
    """One hypothesis: the recorded column against the column that a cause would have produced."""

    experiment: str
    slug: str
    side: str
    setting: str  # what was tried, in a few words: "repetition penalty 1.1 (1.09 to 1.11)"
    values: Mapping[str, float] = field(default_factory=dict)  # estimates by name
    at: Counts  # [tokens] index in the sample
    predicted: Array  # [tokens]
    residual: Residual
    baseline: Residual  # of the unchanged model, on the same tokens
    z: float  # standard errors by which the hypothesis beats the baseline
    change: Change | None = None  # of the model, where the test was a forward pass under one
    seconds: float = 0.0

    @property
    def gain(self) -> float:
        """Return the gain over the baseline, nats per token."""
        return self.baseline.nats - self.residual.nats

    @property
    def explained(self) -> float:
        """Return 1 - sum of squared residuals / that of the baseline."""
        baseline = self.baseline.rms**2
        return 1.0 - self.residual.rms**2 / baseline if baseline > 0 else 0.0

    @property
    def is_significant(self) -> bool:
        """Tell whether the hypothesis explains much more than the baseline, with z above 4."""
        much = self.explained > 0.5 or self.residual.scale < 0.4 * self.baseline.scale
        return much and self.gain > 0.01 and self.z > 4.0


class HypothesisTester(Struct, dict=True):
    """One side's recorded column, the trainer's model, and the inputs of experiments."""

    sample: RescoredSample
    side: Side
    forward: Forward
    other: Side | None = None  # the other side, where it is explained
    checkpoints: Sequence[Path] = ()
    coders: Coders = no_coders  # of the checkpoint's tokenizer, loaded when asked for
    deadline: float | None = None  # time.monotonic() at which no further pass begins

    @property
    def out_of_time(self) -> bool:
        """Tell whether the budget is spent."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def has_time_for(self, passes: float) -> bool:
        """Tell whether `passes` forward passes over a few rows are likely to end before the
        deadline.
        """
        if self.deadline is None:
            return True
        return not self.out_of_time and self.deadline - time.monotonic() > passes * self._pass_time

    @cached_property
    def _pass_time(self) -> float:
        """Return the seconds that one pass over a few rows takes, measured once."""
        began = time.monotonic()
        self.forward.log_probs(self.passages(self.screen))
        return time.monotonic() - began

    @cached_property
    def _coders(self) -> tuple[Encode | None, Decode | None]:
        return self.coders()

    @property
    def encode(self) -> Encode | None:
        """Return the function from text to token ids; None without a tokenizer."""
        return self._coders[0]

    @property
    def decode(self) -> Decode | None:
        """Return the function from token ids to text; None without a tokenizer."""
        return self._coders[1]

    @cached_property
    def distribution_known(self) -> Counts:
        """Return the indices of contexts with logits at which the side recorded a number."""
        return np.flatnonzero(self.side.known[self.sample.distribution_at])

    @cached_property
    def distribution(self) -> TrainerDistribution:
        """Return the trainer's distribution at tokens with a recorded number."""
        return self.sample.distribution.take(self.distribution_known)

    @cached_property
    def distribution_at(self) -> Counts:
        """Return the index in the sample of the tokens of `distribution`."""
        return self.sample.distribution_at[self.distribution_known]

    @cached_property
    def distribution_temperature(self) -> Array:
        """Return the temperature of the expected column at the tokens of `distribution`."""
        return self.side.temperature[self.distribution_at]

    @cached_property
    def row_loss(self) -> Array:
        """Return the mean baseline loss of each row of the sample, [rows]."""
        at = self.side.known_at
        rows = np.searchsorted(self.sample.rows, self.sample.owner[at])
        total = np.bincount(rows, self.side.residual.loss, minlength=len(self.sample.rows))
        count = np.bincount(rows, minlength=len(self.sample.rows))
        return np.where(count > 0, total / np.maximum(count, 1), -np.inf)

    @cached_property
    def screen(self) -> Counts:
        """Return a few rows for screening, spread over the badly explained half."""
        lengths = self.sample.case.lengths[self.sample.rows]
        return self._rows(SCREEN_ROWS, lengths <= np.quantile(lengths, 0.7))

    @cached_property
    def confirm(self) -> Counts:
        """Return more rows, those of `screen` among them."""
        whole = np.ones(len(self.sample.rows), np.bool_)
        return np.unique(np.concatenate([self.screen, self._rows(CONFIRM_ROWS, whole)]))

    def _rows(self, count: int, of: NDArray[np.bool_]) -> Counts:
        order = np.argsort(-self.row_loss, kind="stable")
        order = order[np.isfinite(self.row_loss[order]) & of[order]]
        bad = order[: max(len(order) // 2, min(count, len(order)))]
        chosen = bad[np.linspace(0, len(bad) - 1, min(count, len(bad))).astype(np.int64)]
        return np.sort(self.sample.rows[np.unique(chosen)])

    def temperature_of(self, row: int) -> float:
        """Return the temperature of the expected column of a row."""
        return float(self.side.temperature[self.sample.tokens_of([row])[0]])

    def passage(self, row: int) -> Passage:
        """Return a row as the model reads it."""
        return self.sample.passage(row, self.temperature_of(row))

    def passages(self, rows: Iterable[int]) -> list[Passage]:
        """Return rows as the model reads them."""
        return [self.passage(int(row)) for row in rows]

    def residual_of(self, predicted: Array, at: Counts) -> Residual:
        """Fit the residual of a prediction on the side's column."""
        side = self.side
        return fit_residual(side.recorded[at], predicted, side.sensitivity[at], side.resolution[at])

    def test(
        self,
        experiment: str,
        slug: str,
        setting: str,
        predicted: Array,
        at: Counts,
        *,
        values: Mapping[str, float] | None = None,
        change: Change | None = None,
        seconds: float = 0.0,
    ) -> HypothesisTest:
        """Compare a prediction at some tokens with the side's column."""
        known = self.side.known[at]
        at, predicted = at[known], predicted[known]
        residual = self.residual_of(predicted, at)
        baseline = self.residual_of(self.side.expected[at], at)
        return HypothesisTest(
            experiment=experiment,
            slug=slug,
            side=self.side.name,
            setting=setting,
            values=values or {},
            at=at,
            predicted=predicted,
            residual=residual,
            baseline=baseline,
            z=margin(residual.loss, baseline.loss, self.sample.owner[at]),
            change=change,
            seconds=seconds,
        )

    def test_pass(
        self,
        experiment: str,
        slug: str,
        setting: str,
        rows: Sequence[int] | Counts,
        change: Change | None = None,
        edit: Callable[[int], Passage | None] | None = None,
        values: Mapping[str, float] | None = None,
    ) -> HypothesisTest | None:
        """Score rows under a change, or with edited passages, and compare; None without tokens.

        `edit` gives the passage of a row, whose scored places are all its response tokens, or None
        where a row cannot be edited so.
        """
        began = time.monotonic()
        chosen, passages = [], []
        for row in rows:
            made = self.passage(int(row)) if edit is None else edit(int(row))
            if made is not None and self.fits(made):
                chosen.append(int(row))
                passages.append(made)
        if not passages:
            return None
        predicted = self.forward.log_probs(passages, change)
        return self.test(
            experiment,
            slug,
            setting,
            predicted,
            self.sample.tokens_of(chosen),
            values=values,
            change=change,
            seconds=time.monotonic() - began,
        )

    def fits(self, passage: Passage) -> bool:
        """Tell whether a passage is not much longer than the model's context."""
        context = self.forward.tensors.context
        return context is None or len(passage.ids) <= 2 * context


class Experiment(Struct, frozen=True, kw_only=True):
    """A question about one side's column, with its cost and its prospects.

    Experiments run in the order of worth / passes: relative probability of a yes, given how the
    baseline fails, over the cost in forward passes of a few rows.
    """

    name: str
    slugs: tuple[str, ...]  # causes that its tests can name
    asks: str
    run: Callable[[HypothesisTester], Iterator[HypothesisTest]]
    passes: Callable[[HypothesisTester], float] = lambda tester: 0.1
    worth: Callable[[HypothesisTester], float] = lambda tester: 1.0
    sides: tuple[str, ...] = ("sampler", "trainer")
    # depends on the other rows of a batch, so that one context may get several values
    of_batch: bool = False
