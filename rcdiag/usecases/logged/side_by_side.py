"""Match steps of the log with batches of the table, and choose the preset."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from rcdiag.errors import RcdiagError, mapping_setting
from rcdiag.logs import Log, LoggedNumber
from rcdiag.results import CorrectionResult, MetricValue, ScoreResult
from rcdiag.statistics.accumulator import Step
from rcdiag.usecases.logged.keys import KeyNames

# Numbers agree if their difference is at most this share of the larger one.
NEAR = 1e-6
# A trainer may count its steps from 1 while the table counts from 0, or the other way round.
OFFSETS = (0, 1, -1)
# An offset of one step is used if it makes this many times as many digits agree.
MUCH_NEARER = 1.5
# Nearness is the number of common digits; two numbers have at most this many.
DIGITS = 9.0


class OurBatch(Struct, frozen=True):
    """What rcdiag computed for one batch of the table: a training step, or the whole table."""

    step: Step  # in the table; None without a column `step`
    mismatch: Mapping[str, MetricValue]
    corrections: Mapping[str, CorrectionResult]

    def numbers(self, names: KeyNames, preset: str | None) -> dict[str, float]:
        """Return every number that the trainer logs, by the trainer's key."""
        numbers = {}
        for key in names.words:
            metric = names.metric(key)
            if metric is not None and metric in self.mismatch:
                value = self.mismatch[metric].value
                if value is not None:
                    numbers[key] = value
        return numbers if preset is None else numbers | self.corrections[preset].metrics


class Pair(Struct, frozen=True):
    """A step of the log and the batch of the table that it is compared with."""

    log_step: int | None
    batch: OurBatch

    def numbers(
        self, log: Log, names: KeyNames, preset: str | None
    ) -> Iterator[tuple[str, str, LoggedNumber, float]]:
        """Yield each number that both have: its key in the log and in the trainer, theirs, ours."""
        ours = self.batch.numbers(names, preset)
        for key, theirs in log.rows[self.log_step].items():
            own = names.ours(key)
            if own is not None and own in ours:
                yield key, own, theirs, ours[own]


class Sides(Struct, frozen=True):
    """The steps and the preset that are compared, with the reasons of the choice."""

    pairs: tuple[Pair, ...]
    step_reason: str | None
    preset: str | None
    preset_reason: str


def batches_of(result: ScoreResult, step: Step) -> list[OurBatch]:
    """Return the batches of a result; `step` is the step of a table with only one."""
    if not result.steps:
        return [OurBatch(step, result.mismatch, result.corrections)]
    return [
        OurBatch(int(name), part.mismatch, part.corrections) for name, part in result.steps.items()
    ]


def agree(log: Log, key: str, theirs: LoggedNumber, ours: float) -> bool:
    """Tell whether two numbers agree to the digits that the log shows, or to a relative 1e-6."""
    one = theirs.value
    if one == ours or (math.isnan(one) and math.isnan(ours)):
        return True
    if not (math.isfinite(one) and math.isfinite(ours)):
        return False
    return abs(one - ours) <= max(NEAR * max(abs(one), abs(ours)), log.rounding(key, theirs))


class Nearness(Struct, frozen=True):
    """Measures how near the numbers of a log and of a table are."""

    log: Log
    names: KeyNames

    def of(self, pair: Pair, preset: str | None) -> float:
        """Return the number of digits in which log and table agree, summed over their keys."""
        numbers = pair.numbers(self.log, self.names, preset)
        return sum(self._digits(key, theirs, ours) for key, _, theirs, ours in numbers)

    def _digits(self, key: str, theirs: LoggedNumber, ours: float) -> float:
        if agree(self.log, key, theirs, ours):
            return DIGITS
        apart = abs(theirs.value - ours)
        size = max(abs(theirs.value), abs(ours))
        if not (math.isfinite(apart) and size):
            return 0.0
        return min(max(-math.log10(apart / size), 0.0), DIGITS)

    def of_any(self, pairs: Sequence[Pair]) -> float:
        """Return the mean nearness of pairs under the preset for which it is largest."""
        presets: list[str | None] = [*pairs[0].batch.corrections] or [None]
        return max(sum(self.of(pair, preset) for pair in pairs) for preset in presets) / len(pairs)


def side_by_side(log: Log, batches: Sequence[OurBatch], names: KeyNames, *, given: bool) -> Sides:
    """Choose the steps of the log and the preset; `given` says that the user named the step."""
    nearness = Nearness(log, names)
    if len(batches) == 1:
        pairs, reason = _of_one_batch(log, batches[0], nearness, given=given)
    elif list(log.rows) == [None]:
        pairs, reason = _of_one_row(batches, nearness)
    else:
        pairs, reason = _of_common_steps(log, batches, nearness)
    if log.counted:
        counted = "the log has no step numbers: its rows are counted from 1"
        reason = f"{counted}; {reason}" if reason else counted
    preset, preset_reason = _preset(pairs, nearness)
    return Sides(tuple(pairs), reason, preset, preset_reason)


def _of_one_batch(
    log: Log, batch: OurBatch, nearness: Nearness, *, given: bool
) -> tuple[list[Pair], str | None]:
    """Take the log's step that the table names, or else the one with the nearest numbers."""
    if batch.step is not None and not given and _common(log, [batch]):
        return _of_common_steps(log, [batch], nearness)
    if batch.step in log.rows:
        return [Pair(batch.step, batch)], None
    steps = list(log.rows)
    if given:
        option = mapping_setting("given", {"step": batch.step}, "--given")
        raise RcdiagError(
            f"{log.path}: has no step {batch.step}, which {option} names",
            hint=f"it has {_range(steps)}",
        )
    table = (
        "the table names no step" if batch.step is None else f"the table is of step {batch.step}"
    )
    if len(steps) == 1:
        only = "" if steps[0] is None else f", the log has only step {steps[0]}"
        return [Pair(steps[0], batch)], f"{table}{only}" if only else None
    pairs = [Pair(step, batch) for step in steps]
    best = max(pairs, key=lambda pair: nearness.of_any([pair]))
    reason = (
        f"{table}, the log has {_range(steps)}: step {best.log_step} has the nearest numbers "
        "(--given step=N takes another)"
    )
    return [best], reason


def _of_one_row(batches: Sequence[OurBatch], nearness: Nearness) -> tuple[list[Pair], str]:
    """Take the step of the table whose numbers are nearest to the only row of the log."""
    best = max((Pair(None, batch) for batch in batches), key=lambda one: nearness.of_any([one]))
    steps = [batch.step for batch in batches]
    return [best], (
        f"the log has one row without a step, the table has {_range(steps)}: step "
        f"{best.batch.step} of the table has the nearest numbers"
    )


def _of_common_steps(
    log: Log, batches: Sequence[OurBatch], nearness: Nearness
) -> tuple[list[Pair], str | None]:
    """Take the steps that both have, or steps with an offset of one if these agree much better."""
    by_offset = _common(log, batches)
    if not by_offset:
        steps = [batch.step for batch in batches]
        raise RcdiagError(
            f"{log.path}: has {_range(list(log.rows))}, the table has {_range(steps)}: no step is "
            "in both",
            hint="give the log of the run that the table was recorded in",
        )
    near = {offset: nearness.of_any(pairs) for offset, pairs in by_offset.items()}
    offset = max(near, key=near.__getitem__)
    if 0 in near and near[offset] <= MUCH_NEARER * near[0]:
        return by_offset[0], None
    beside = f"step {batches[0].step} of the table is compared with {batches[0].step + offset}"  # type: ignore[operator]
    reason = f"the log counts steps differently: {beside}, where the numbers are nearer"
    return by_offset[offset], reason


def _common(log: Log, batches: Sequence[OurBatch]) -> dict[int, list[Pair]]:
    """Return the steps that log and table have in common, for each offset between their numbers."""
    by_offset = {}
    for offset in OFFSETS:
        pairs = [
            Pair(batch.step + offset, batch)
            for batch in batches
            if batch.step is not None and batch.step + offset in log.rows
        ]
        if pairs:
            by_offset[offset] = pairs
    return by_offset


def _preset(pairs: Sequence[Pair], nearness: Nearness) -> tuple[str | None, str]:
    """Choose the preset whose numbers are nearest to the log's; of equal ones the first."""
    presets = list(pairs[0].batch.corrections)
    if not presets:
        return None, "no correction is computed"
    if len(presets) == 1:
        return presets[0], "it is the only computed one"
    row_keys = {
        nearness.names.ours(key) for pair in pairs for key in nearness.log.rows[pair.log_step]
    }

    def rank(preset: str) -> tuple[float, int]:
        near = sum(nearness.of(pair, preset) for pair in pairs)
        more = pairs[0].batch.corrections[preset].metrics.keys() - row_keys
        return round(near, 3), -len(more)

    ranks = {preset: rank(preset) for preset in presets}
    best = max(presets, key=ranks.__getitem__)
    equal = [preset for preset in presets if ranks[preset] == ranks[best] and preset != best]
    reason = f"its numbers are the nearest of {len(presets)} presets"
    if equal:
        reason += f"; {', '.join(equal)} {'has' if len(equal) == 1 else 'have'} the same numbers"
    return best, reason


def _range(steps: Iterable[Step]) -> str:
    numbers = [step for step in steps if step is not None]
    if len(numbers) == 1:
        return f"step {numbers[0]}"
    return f"{len(numbers)} steps, {numbers[0]} to {numbers[-1]}" if numbers else "no steps"
