"""Tests hypotheses about the recorded column of one side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field

from rcdiag.diagnosis.case import Array, Counts, Flags, spread_over
from rcdiag.diagnosis.experiments.fit import Residual, fit_residual, margin
from rcdiag.diagnosis.experiments.rescored_sample import RescoredSample, Side
from rcdiag.diagnosis.experiments.thresholds import (
    CONFIRM_ROWS,
    FAR_OFF,
    GAIN,
    LEAST_GAIN,
    SCREEN_ROWS,
)
from rcdiag.diagnosis.experiments.trainer_distribution import TrainerDistribution
from rcdiag.diagnosis.features.log_ratios import ENGINE_NOISE
from rcdiag.diagnosis.thresholds import HALF, MOST, SURELY
from rcdiag.engines.changes import Change, Forward, Passage

Encode = Callable[[str], list[int]]
Decode = Callable[[Sequence[int]], str]
Coders = Callable[[], tuple[Encode | None, Decode | None]]
Edit = Callable[[int], Passage | None]  # row -> edited passage for the model; None: not possible

CHEAP = 1.0  # an experiment of fewer passes counts as one without forward passes


def no_coders() -> tuple[Encode | None, Decode | None]:
    """Return no encoder and no decoder, for a checkpoint without a tokenizer."""
    return None, None


class HypothesisTest(Struct, frozen=True, kw_only=True):
    """The comparison of a recorded column with the column that a hypothesis predicts."""

    experiment: str = ""  # name, which the experiment's runner sets
    slug: str
    side: str
    setting: str  # what was tried, in a few words: "repetition penalty 1.1 (1.09 to 1.11)"
    values: Mapping[str, float] = field(default_factory=dict)  # estimates by name
    at: Counts  # [tokens] index in the sample
    predicted: Array  # [tokens]
    residual: Residual
    baseline: Residual  # of the unchanged model, on the same tokens
    z: float  # gain over the baseline, in standard errors
    change: Change | None = None  # the change of the model that the forward pass was run with
    edit: Edit | None = None  # the edit of the rows that the forward pass read
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
        """Tell whether the hypothesis explains much more than the baseline, and significantly.

        It explains half of the squared residuals, or halves their scale.
        """
        much = self.explained > HALF or self.residual.scale < HALF * self.baseline.scale
        return much and self.gain > LEAST_GAIN and self.z > SURELY


def smallest(tests: Iterable[HypothesisTest | None]) -> HypothesisTest | None:
    """Return the test with the smallest loss, the first of equal ones; None without a test."""
    made = (test for test in tests if test is not None)
    return min(made, key=lambda test: test.residual.nats, default=None)


class HypothesisTester(Struct, dict=True):
    """One side's recorded column, the trainer's model, and the inputs of experiments."""

    sample: RescoredSample
    side: Side
    forward: Forward
    checkpoints: Sequence[Path] = ()
    coders: Coders = no_coders  # of the checkpoint's tokenizer, loaded when asked for
    deadline: float | None = None  # time.monotonic() at which no further pass begins

    @property
    def out_of_time(self) -> bool:
        """Tell whether the budget is spent."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def has_time_for(self, passes: float) -> bool:
        """Tell whether forward passes over a few rows are likely to end before the deadline."""
        if self.deadline is None or passes < CHEAP or self.out_of_time:
            return not self.out_of_time
        return self.deadline - time.monotonic() > passes * self._pass_time

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

    @property
    def far_off(self) -> Flags:
        """Flag tokens that deviate by far more than an engine's noise, [known tokens]."""
        side, at = self.side, self.side.known_at
        off = np.abs(side.recorded[at] - side.expected[at])
        noise = FAR_OFF * self.sample.noise * side.sensitivity[at]
        flags: Flags = off > noise + ENGINE_NOISE
        return flags

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
        """Return a few rows for screening, spread over the half with the largest loss."""
        lengths = self.sample.case.lengths[self.sample.rows]
        return self._rows(SCREEN_ROWS, lengths <= np.quantile(lengths, MOST))

    @cached_property
    def confirm(self) -> Counts:
        """Return more rows, those of `screen` among them."""
        whole = np.ones(len(self.sample.rows), np.bool_)
        return np.unique(np.concatenate([self.screen, self._rows(CONFIRM_ROWS, whole)]))

    def _rows(self, count: int, of: Flags) -> Counts:
        order = np.argsort(-self.row_loss, kind="stable")
        order = order[np.isfinite(self.row_loss[order]) & of[order]]
        bad = order[: max(len(order) // 2, min(count, len(order)))]
        return np.sort(self.sample.rows[bad[spread_over(len(bad), count)]])

    def temperature_of(self, row: int) -> float:
        """Return the temperature of the expected column of a row."""
        return float(self.side.temperature[self.sample.tokens_of([row])[0]])

    def passage(self, row: int) -> Passage:
        """Return a row as the model reads it."""
        return self.sample.passage(row, self.temperature_of(row))

    def passages(self, rows: Iterable[int]) -> list[Passage]:
        """Return rows as the model reads them."""
        return [self.passage(int(row)) for row in rows]

    def residual_of(self, predicted: Array, at: Counts | None = None) -> Residual:
        """Fit the residual of a prediction at tokens `at` (default: those of `distribution`)."""
        side, at = self.side, self.distribution_at if at is None else at
        return fit_residual(side.recorded[at], predicted, side.sensitivity[at], side.resolution[at])

    def test(
        self,
        slug: str,
        setting: str,
        predicted: Array,
        at: Counts | None = None,
        *,
        values: Mapping[str, float] | None = None,
        change: Change | None = None,
        edit: Edit | None = None,
    ) -> HypothesisTest:
        """Compare a prediction with the recorded column at tokens `at`.

        By default these are the tokens of `distribution`.
        """
        at = self.distribution_at if at is None else at
        known = self.side.known[at]
        at, predicted = at[known], predicted[known]
        residual = self.residual_of(predicted, at)
        baseline = self.residual_of(self.side.expected[at], at)
        return HypothesisTest(
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
            edit=edit,
        )

    def test_pass(
        self,
        slug: str,
        setting: str,
        *,
        change: Change | None = None,
        edit: Edit | None = None,
        values: Mapping[str, float] | None = None,
        rows: Sequence[int] | Counts | None = None,
    ) -> HypothesisTest | None:
        """Test a forward pass with a changed model or edited rows; by default on `screen`.

        None where no row could be edited. All response tokens of an edited row are scored.
        """
        chosen, passages = [], []
        for row in self.screen if rows is None else rows:
            made = self.passage(int(row)) if edit is None else edit(int(row))
            if made is not None and self.fits(made):
                chosen.append(int(row))
                passages.append(made)
        if not passages:
            return None
        predicted = self.forward.log_probs(passages, change)
        at = self.sample.tokens_of(chosen)
        return self.test(slug, setting, predicted, at, values=values, change=change, edit=edit)

    def repeated(self, test: HypothesisTest, rows: Sequence[int] | Counts) -> HypothesisTest:
        """Run the forward pass of a test on other rows."""
        made = self.test_pass(
            test.slug,
            test.setting,
            change=test.change,
            edit=test.edit,
            values=test.values,
            rows=rows,
        )
        return made or test

    def confirmed(self, test: HypothesisTest, least: float = GAIN) -> HypothesisTest:
        """Repeat a test on more rows where it gains more than `least` nats per token."""
        return self.repeated(test, self.confirm) if test.gain > least else test

    def best_of(
        self,
        tests: Iterable[HypothesisTest | None],
        enough: Callable[[HypothesisTest], bool] = lambda test: False,
    ) -> HypothesisTest | None:
        """Return the test with the smallest loss; None without a test.

        `tests` run one by one, until `enough` accepts the best one or the time is over.
        """
        best: HypothesisTest | None = None
        for test in tests:
            if test is not None and (best is None or test.residual.nats < best.residual.nats):
                best = test
            if self.out_of_time or (best is not None and enough(best)):
                break
        return best

    def fits(self, passage: Passage) -> bool:
        """Tell whether a passage is not much longer than the model's context."""
        context = self.forward.tensors.context
        return context is None or len(passage.ids) <= 2 * context


class Experiment(Struct, frozen=True, kw_only=True):
    """A question about one side's column, with its cost and its chance of success.

    Experiments run in the order of worth / passes. `worth` is the relative probability of a yes,
    given how the baseline fails; `passes` is the cost in forward passes over a few rows.
    """

    name: str
    slugs: tuple[str, ...]  # causes that its tests can name
    run: Callable[[HypothesisTester], Iterator[HypothesisTest]]
    passes: Callable[[HypothesisTester], float] = lambda tester: 0.1
    worth: Callable[[HypothesisTester], float] = lambda tester: 1.0
    sides: tuple[str, ...] = ("sampler", "trainer")
    # whether its causes depend on the other rows of a batch, which may give one context several
    # values
    of_batch: bool = False


Run = Callable[[HypothesisTester], Iterator[HypothesisTest]]


def experiment(*, slugs: tuple[str, ...], **more: Any) -> Callable[[Run], Experiment]:
    """Make an experiment from the function that runs it; its name is the function's, hyphenated.

    `more` are further fields of `Experiment`.
    """

    def of(run: Run) -> Experiment:
        name = run.__name__.replace("_", "-")
        return Experiment(name=name, run=run, slugs=slugs, **more)

    return of
