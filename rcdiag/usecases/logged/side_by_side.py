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

# Numbers agree where they are this near, relative to the larger.
NEAR = 1e-6
# A trainer may count its steps from 1 where the table counts from 0, or the other way round.
OFFSETS = (0, 1, -1)
# Steps that are one apart are taken where this many times as many digits agree.
MUCH_NEARER = 1.5
# Digits that two numbers may share, where nearness is counted in digits.
DIGITS = 9.0


class OurBatch(Struct, frozen=True):
    """What rcdiag computed of one batch of the table: a training step, or the whole table."""

    step: Step  # of the table; None without the column
    mismatch: Mapping[str, MetricValue]
    corrections: Mapping[str, CorrectionResult]

    def numbers(self, names: KeyNames, preset: str | None) -> dict[str, float]:
        """Return every number that the trainer logs, by the key under which it does."""
        numbers = {}
        for key in names.words:
            metric = names.metric(key)
            if metric is not None and metric in self.mismatch:
                value = self.mismatch[metric].value
                if value is not None:
                    numbers[key] = value
        return numbers if preset is None else numbers | self.corrections[preset].metrics


class Pair(Struct, frozen=True):
    """A step of the log beside a batch of the table."""

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
    """Which steps and which preset are compared, and why."""

    pairs: tuple[Pair, ...]
    step_reason: str | None
    preset: str | None
    preset_reason: str


def batches_of(result: ScoreResult, step: Step) -> list[OurBatch]:
    """Return the batches of a result; `step` is that of a table which has one step alone."""
    if not result.steps:
        return [OurBatch(step, result.mismatch, result.corrections)]
    return [
        OurBatch(int(name), part.mismatch, part.corrections) for name, part in result.steps.items()
    ]


def agree(log: Log, key: str, theirs: LoggedNumber, ours: float) -> bool:
    """Tell whether two numbers are the same, to the digits that the log shows or to 1e-6."""
    one = theirs.value
    if one == ours or (math.isnan(one) and math.isnan(ours)):
        return True
    if not (math.isfinite(one) and math.isfinite(ours)):
        return False
    return abs(one - ours) <= max(NEAR * max(abs(one), abs(ours)), log.rounding(key, theirs))


class Nearness(Struct, frozen=True):
    """How near a log and a table are, with the keys and the log of both."""

    log: Log
    names: KeyNames

    def of(self, pair: Pair, preset: str | None) -> float:
        """Return the digits that numbers of both have in common, added up over their keys."""
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
        """Return how near pairs are with the preset that is nearest, on average."""
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
        counted = "the log names no steps: its rows are counted from 0"
        reason = f"{counted}; {reason}" if reason else counted
    preset, preset_reason = _preset(pairs, nearness)
    return Sides(tuple(pairs), reason, preset, preset_reason)


def _of_one_batch(
    log: Log, batch: OurBatch, nearness: Nearness, *, given: bool
) -> tuple[list[Pair], str | None]:
    """Take the table's own step, or else the one of the log whose numbers are nearest."""
    if batch.step is not None and not given and _common(log, [batch]):
        return _of_common_steps(log, [batch], nearness)
    if batch.step in log.rows:
        return [Pair(batch.step, batch)], None
    steps = list(log.rows)
    if given:
        option = mapping_setting("given", {"step": batch.step}, "--given")
        raise RcdiagError(
            f"{log.path}: no step {batch.step} in it, which {option} names",
            hint=f"it has {_range(steps)}",
        )
    table = (
        "the table names no step" if batch.step is None else f"the table is of step {batch.step}"
    )
    if len(steps) == 1:
        only = "" if steps[0] is None else f", the log has step {steps[0]} alone"
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
    """Take the steps that both have, or those that are one apart where these agree better."""
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
    beside = f"step {batches[0].step} of the table stands beside step {batches[0].step + offset}"  # type: ignore[operator]
    return by_offset[
        offset
    ], f"the log counts steps otherwise: {beside}, where the numbers are nearer"


def _common(log: Log, batches: Sequence[OurBatch]) -> dict[int, list[Pair]]:
    """Return the steps that log and table have in common, by the offset between their counts."""
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
    """Choose the preset whose numbers are nearest to the log's, the first of equals."""
    presets = list(pairs[0].batch.corrections)
    if not presets:
        return None, "no correction is computed"
    if len(presets) == 1:
        return presets[0], "it is the only one that is computed"
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
    verdicts = [
        agree(nearness.log, key, theirs, ours)
        for pair in pairs
        for key, _, theirs, ours in pair.numbers(nearness.log, nearness.names, best)
    ]
    reason = (
        f"its numbers are the nearest of {len(presets)} presets: "
        f"{sum(verdicts)} of {len(verdicts)} agree"
    )
    if equal:
        reason += f"; {', '.join(equal)} {'has' if len(equal) == 1 else 'have'} the same numbers"
    return best, reason


def _range(steps: Iterable[Step]) -> str:
    numbers = [step for step in steps if step is not None]
    if len(numbers) == 1:
        return f"step {numbers[0]}"
    return f"{len(numbers)} steps, {numbers[0]} to {numbers[-1]}" if numbers else "no steps"
