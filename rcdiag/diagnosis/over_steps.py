"""Changes over the training steps: which numbers change, and at which step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Array, Case, Counts
from rcdiag.diagnosis.change_of_mismatch import change_of_mismatch
from rcdiag.diagnosis.change_points import (
    FEWEST,
    ChangePoint,
    change_points,
    jump_gains,
    noise_of,
)
from rcdiag.diagnosis.features import Features, Onset
from rcdiag.diagnosis.features.location import LARGE_K3, MOST_PARTS, large_steps, trend
from rcdiag.diagnosis.thresholds import (
    COARSE,
    EQUAL,
    LARGER,
    SHOWN,
    SLIGHT,
    SURELY,
    TWICE,
)
from rcdiag.diagnosis.validity import LARGEST
from rcdiag.formats import from_to, listed
from rcdiag.results.diagnosis import Action, ChangeOfMismatch, MovedNumber, NamedCause, OverSteps
from rcdiag.statistics.ratios import TokenValues, outside

# Name of a per-step number -> (smallest change that counts, offset). Without an offset the change
# is in the number's own unit. With one it is a change of log(value + offset), so that values far
# below the offset count as equal.
LEAST_MOVED: dict[str, tuple[float, float | None]] = {
    "k3_kl": (TWICE, LARGE_K3),
    "prob_diff_mean": (TWICE, 1e-4),
    "ratio_outside_2": (1e-3, None),
    "ratio_mean": (SLIGHT, None),
    "behavior_ppl": (SLIGHT, None),  # of the mean surprisal, nats
    "response length": (COARSE, 1.0),
    "reward": (0.0, None),
    "entropy": (COARSE, 1e-3),
}
# How the sentence about a run with learning rate 0 begins.
AT_RATE_ZERO = "by no update (learning rate 0)"
# Causes by which updates make the mismatch grow, and the generic cause.
OF_UPDATES = ("weights-never-synced", "weights-differ", "forwards-differ")
MISMATCH_NUMBERS = ("k3_kl", "prob_diff_mean", "ratio_outside_2", "ratio_mean")


class StepSeries(Struct, frozen=True):
    """One number per step, with its standard error on the scale on which changes are measured."""

    name: str
    value: Array  # [steps]
    scale: Array  # [steps] the value, or its logarithm
    error: Array  # [steps] of `scale`

    def at(self, steps: NDArray[np.bool_]) -> StepSeries:
        """Return the series of some steps."""
        return StepSeries(self.name, self.value[steps], self.scale[steps], self.error[steps])


def over_steps(features: Features) -> OverSteps | None:
    """Describe changes over the training steps; None without several steps of two policies."""
    run = _Run.of(features)
    if run is None:
        return None
    moved = run.moved()
    onset = features.location.onset
    series = run.series[0]
    fall = series.scale[:-1] - series.scale[1:]
    error = np.nan_to_num(np.hypot(series.error[:-1], series.error[1:]), posinf=0.0)
    falls = np.flatnonzero(fall > LEAST_MOVED[series.name][0] + SURELY * error) + 1
    cleared = [at for at in features.location.resets if at in falls]
    change = None if cleared else _decomposed_change(features.case, run.steps, run.k3, moved)
    says = _of_resets(run.steps, run.k3, cleared) if cleared else _says(run, onset, moved, change)
    if features.declared.learning_rate == 0.0 and _grows(features, moved):
        says = f"{AT_RATE_ZERO}: {says}"
    if len(run.lost):
        lost = listed(run.lost.tolist(), SHOWN)
        says += f"; no row of step{'s' * (len(run.lost) > 1)} {lost} can be used"
    return OverSteps(
        says=says,
        large_from=None if onset is None else onset.step,
        large_to=None if onset is None else onset.last_step,
        moved=moved,
        resets=[int(run.steps[at]) for at in cleared],
        change=change,
    )


class _Run(Struct, frozen=True):
    """The numbers of a table by training step, of the steps that have tokens."""

    steps: Counts  # [steps] their numbers, ascending
    lost: Counts  # numbers of the steps none of whose rows has usable log-probs
    rows: Counts  # [steps] rows that have tokens
    series: list[StepSeries]  # of k3_kl first

    @classmethod
    def of(cls, features: Features) -> _Run | None:
        """Return the steps of a case; None without several steps of two policies."""
        case = features.case
        if case.trainer is None or case.facts.step is None or not len(case.tokens):
            return None
        steps, index = np.unique(case.facts.step, return_inverse=True)
        if not 2 <= len(steps) <= MOST_PARTS:
            return None
        known = np.bincount(index[case.tokens.owner], minlength=len(steps)) > 0
        if known.sum() < 2:
            return None
        rows = np.bincount(index[case.tokens.per_row > 0], minlength=len(steps))
        series = [one.at(known) for one in _series(case, index, len(steps))]
        return cls(steps[known], steps[~known], rows[known], series)

    @property
    def k3(self) -> Array:
        """k3_kl of each step, nats per token."""
        return self.series[0].value

    def moved(self) -> list[MovedNumber]:
        """Return the numbers that changed, by step; none if no number of the mismatch did."""
        moved = [
            MovedNumber(
                name=one.name,
                moved_at=int(self.steps[_begins(point)]),
                median_before=_rounded(before),
                median_after=_rounded(after),
            )
            for one in self.series
            for point in _moves(one)
            if self.rows[point.at : point.end].sum() > 1  # a single row is no change of the run
            for before, after in (point.levels(one.value),)
        ]
        if not any(one.name in MISMATCH_NUMBERS for one in moved):
            return []  # changes without a change of the mismatch are normal training
        return sorted(moved, key=lambda one: one.moved_at)


def _says(
    run: _Run, onset: Onset | None, moved: Sequence[MovedNumber], change: ChangeOfMismatch | None
) -> str:
    """Describe a run whose mismatch does not fall back and grow anew."""
    steps, k3 = run.steps, run.k3
    large = next(large_steps(k3), None)
    if onset is None and not moved and run.rows.max() < 2 and large is None:
        return f"one row of a step is too few to see a change over {len(steps)} steps"
    if onset is not None and onset.last_step is not None:
        if onset.step == onset.last_step:
            return f"k3_kl spikes at step {onset.step} only"
        return (
            f"k3_kl is large in steps {onset.step} to {onset.last_step} and falls back afterwards"
        )
    points = _points(run.series[0])
    # k3 drifts if it changes in no other way, and it does not stay small.
    if len(points) == 1 and points[0].shape == "creep" and k3.max() > LARGE_K3:
        small, high = points[0].levels(k3)
        if points[0].at == 0 or high < small:
            return _of_trend(k3)
        return f"k3_kl grows from step {steps[_begins(points[0])]} on ({from_to(small, high)})"
    if not moved:
        return _of_steps_alone(run, large) if large is not None else _of_no_jump(run, onset, change)
    if large is not None and large[0] == 0 and large[-1] == len(large) - 1:
        end = len(large)
        begin = f"step {steps[0]}" if end == 1 else f"steps {steps[0]} to {steps[end - 1]}"
        before, after = float(np.median(k3[large])), float(np.median(k3[end:]))
        drops = f"drops at step {steps[end]} ({from_to(before, after)})"
        return f"k3_kl is large in {begin} and {drops}"
    return _of_moved(moved)


def _of_steps_alone(run: _Run, large: Counts) -> str:
    """Name steps at which k3 is large, although no number changed its level."""
    named = listed(run.steps[large].tolist(), SHOWN)
    if len(large) == 1:
        return f"k3_kl spikes at step {named} only (of {len(run.steps)} steps)"
    verb = "is large" if 2 * len(large) > len(run.steps) else "spikes"
    return f"k3_kl {verb} in {len(large)} of {len(run.steps)} steps: {named}"


def _of_no_jump(run: _Run, onset: Onset | None, change: ChangeOfMismatch | None) -> str:
    """Describe a run without a number that jumps."""
    low, high = run.k3.min(), run.k3.max()
    if high > LARGE_K3 and not 1 / LARGER < trend(run.k3) < LARGER:
        return _of_trend(run.k3)
    if onset is not None:
        return f"k3_kl is larger from step {onset.step} on; no other number changes significantly"
    if change is not None:
        before, after = f"{change.k3_before:.2g}", f"{change.k3_after:.2g}"
        return f"k3_kl is {before} before step {change.changed_at} and {after} from there on"
    return f"no change over steps {run.steps[0]} to {run.steps[-1]}: k3_kl {from_to(low, high)}"


def _of_moved(moved: Sequence[MovedNumber]) -> str:
    """Name the numbers that changed first, and those that changed later."""
    first = moved[0].moved_at
    together = [one for one in moved if one.moved_at == first]
    later = [one for one in moved if one.moved_at > first]
    verb = "change" if len(together) > 1 else "changes"
    at = f" first, at step {first}" if later else f" at step {first}"
    *others, last = map(_numbers, together[:SHOWN])
    said = f"{' and '.join([', '.join(others), last] if others else [last])} {verb}{at}"
    if later:
        by_step = [f"{_numbers(one)} at step {one.moved_at}" for one in later[:SHOWN]]
        said += f"; then {', '.join(by_step)}"
    return said


def _of_resets(steps: Counts, k3: Array, cleared: Sequence[int]) -> str:
    """Describe a mismatch that grows, falls back and grows anew."""
    first = cleared[0]
    at = listed([steps[one] for one in cleared], SHOWN)
    return (
        f"k3_kl grows from step {steps[0]} to {steps[first - 1]} "
        f"({from_to(k3[0], k3[first - 1])}), falls back at step"
        f"{'s' * (len(cleared) > 1)} {at}: a restart, empty cache or weight sync"
    )


def _grows(features: Features, moved: Sequence[MovedNumber]) -> bool:
    """Tell whether the mismatch grows over the steps, gradually or at one of them."""
    parts = features.location.by_step
    if parts is None:
        return False
    larger = any(
        one.name in MISMATCH_NUMBERS and one.median_after > one.median_before for one in moved
    )
    return larger or (float(parts.k3.max()) > LARGE_K3 and trend(parts.k3) > LARGER)


def _decomposed_change(
    case: Case, steps: Counts, k3: Array, moved: Sequence[MovedNumber]
) -> ChangeOfMismatch | None:
    """Decompose a change of k3_kl by factor, at the step where k3_kl first changed.

    If no step is known, it is the one before and after which k3_kl differs most, provided that the
    difference is significant.
    """
    step, tokens = case.facts.step, case.tokens
    assert step is not None
    at = next((one.moved_at for one in moved if one.name == "k3_kl"), None)
    split = at
    if split is None:
        if moved:
            return None  # other numbers of the mismatch changed, not k3_kl
        logs = np.log(k3 + LARGE_K3)
        split = int(steps[np.argmax(jump_gains(logs, np.ones(len(logs))))])
    entropy = case.entropy.get(case.sampler)
    uncertainty = -tokens.sampler
    if entropy is not None:
        known = np.isfinite(entropy[tokens.place])
        uncertainty = np.where(known, entropy[tokens.place], uncertainty)
    change = change_of_mismatch(tokens, uncertainty, step >= split, case.cluster, split)
    if change is None or at is not None:
        return change
    # It must be significant although its step was searched for.
    smaller, larger = sorted((change.k3_before, change.k3_after))
    surely = larger - smaller > SURELY * change.k3_error
    return change if surely and larger > max(LARGE_K3, LARGER * smaller) else None


def experiment_at_rate_zero(
    features: Features, diagnosed: OverSteps | None, causes: Sequence[NamedCause]
) -> list[Action]:
    """Suggest a run at learning rate 0, which separates the effect of updates from other causes.

    It is suggested where the mismatch grows over the steps, and neither the learning rate nor the
    versions of the weights are known.
    """
    unknown = features.declared.learning_rate is None and features.case.facts.policy_version is None
    if diagnosed is None or diagnosed.resets or not unknown or not causes:
        return []
    if causes[0].slug not in OF_UPDATES or not _grows(features, diagnosed.moved):
        return []
    return [Action(text="run at learning rate 0 (--given learning_rate=0): does it still grow?")]


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _series(case: Case, index: Counts, steps: int) -> list[StepSeries]:
    """Return the numbers of each step: mismatch, response length, reward and entropy."""
    tokens = case.tokens
    values = TokenValues.of(
        tokens.sampler, tokens.trainer, np.clip(tokens.log_ratio, -LARGEST, LARGEST)
    )
    means = _Means(index, steps, case.cluster)
    of_tokens = tokens.owner
    excess = values.ratios.excess
    k3, beyond = excess - values.ratios.log_ratio, outside(2.0, values)
    made = [
        means.series("k3_kl", k3, of_tokens),
        means.series("prob_diff_mean", values.prob_diff, of_tokens),
        means.series("ratio_outside_2", beyond, of_tokens),
        means.series("ratio_mean", 1.0 + excess, of_tokens),
        means.series("behavior_ppl", -tokens.sampler, of_tokens, back=np.exp),
    ]
    facts = case.facts
    rows = np.arange(tokens.rows)
    lengths = tokens.per_row.astype(np.float64)
    made.append(means.series("response length", lengths, rows))
    if facts.reward is not None and np.isfinite(facts.reward).all():
        made.append(means.series("reward", facts.reward, rows))
    entropy = case.entropy.get(case.sampler)
    if entropy is not None:
        of_policy = np.nan_to_num(entropy[tokens.place])
        made.append(means.series("entropy", of_policy, of_tokens))
    return made


class _Means(Struct, frozen=True):
    """Means by step, with standard errors clustered by prompt group."""

    step: Counts  # [rows] index of the step
    steps: int
    cluster: Counts  # [rows]

    def series(
        self,
        name: str,
        values: Array,
        owner: Counts,
        *,
        back: Callable[[Array], Array] | None = None,
    ) -> StepSeries:
        """Return the mean of values [tokens or rows] by step; `owner` is the row of each.

        `back` maps the mean to the number that is shown, such as exp for a perplexity.
        """
        of_step = self.step[owner]
        count = np.maximum(np.bincount(of_step, minlength=self.steps), 1)
        mean = np.bincount(of_step, values, self.steps) / count
        # Clustered standard error: from the sum of residuals of each prompt group in each step.
        most = int(self.cluster.max(initial=0)) + 1
        part = of_step * most + self.cluster[owner]
        sums = np.bincount(part, values - mean[of_step], self.steps * most)
        seen = np.bincount(self.step * most + self.cluster, minlength=self.steps * most) > 0
        clusters = seen.reshape(self.steps, most).sum(axis=1)
        spread = np.square(sums).reshape(self.steps, most).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.sqrt(spread * clusters / np.maximum(clusters - 1, 1)) / count
            # One group alone gives no standard error.
            error = np.where(clusters > 1, error, np.inf)
        with np.errstate(over="ignore"):  # a perplexity beyond float64 is infinite
            shown = mean if back is None else back(mean)
        _, small = LEAST_MOVED[name]
        if small is None:
            return StepSeries(name, shown, mean, error)
        return StepSeries(name, shown, np.log(mean + small), error / (mean + small))


def _moves(series: StepSeries) -> list[ChangePoint]:
    """Return where a series jumps or, if it measures the mismatch, begins to grow.

    A growth counts only if it begins after the first step. Other numbers drift in every run that
    learns.
    """
    moves = []
    for point in _points(series):
        before, after = point.levels(series.scale)
        begins = series.name in MISMATCH_NUMBERS and point.at > 0 and after > before
        if point.shape == "jump" or begins:
            moves.append(point)
    return moves


def _begins(point: ChangePoint) -> int:
    """Return the index of the first changed step.

    `point.at` is that step of a jump; a drift grows from 0 at `point.at`.
    """
    return point.at + (point.shape == "creep")


def _points(series: StepSeries) -> list[ChangePoint]:
    """Return where a series changes by more than its standard errors and its noise explain."""
    known = np.isfinite(series.error)
    if len(series.scale) >= FEWEST:
        noise = noise_of(series.scale)
    elif known.any():
        noise = 0.0
    else:
        return []  # neither prompt groups nor other steps show how large the noise is
    # A step with one group has no error of its own: the median of the other steps is used.
    typical = float(np.median(series.error[known])) if known.any() else noise
    error = np.maximum(np.where(known, series.error, typical), max(noise, EQUAL))
    return change_points(series.scale, error, LEAST_MOVED[series.name][0], fewest=1)


def _of_trend(k3: Array) -> str:
    """Describe a mismatch that grows or falls gradually."""
    third = max(len(k3) // 3, 1)
    first, last = np.median(k3[:third]), np.median(k3[-third:])
    verb = "grows" if last > first else "falls"
    return (
        f"k3_kl {verb} steadily, from {from_to(float(first), float(last))} (medians of the first "
        f"and last third of {len(k3)} steps)"
    )


def _numbers(one: MovedNumber) -> str:
    return f"{one.name} ({from_to(one.median_before, one.median_after)})"
