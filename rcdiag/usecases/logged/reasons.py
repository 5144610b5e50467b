"""Compute each possible reason why a trainer's number differs from ours.

To add a reason: a function that yields `Reason`s, and its name in `REASONS`, where the likelier
ones come first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct, field

from rcdiag.corrections.sequences import Sequences
from rcdiag.logs import LoggedNumber
from rcdiag.statistics.accumulator import Step
from rcdiag.table.table import Table
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.corrected import answerable
from rcdiag.usecases.logged.keys import KeyNames
from rcdiag.usecases.logged.likely_plans import (
    GIVEN,
    OTHER_ARITHMETIC,
    OTHER_PRESETS,
    only,
    other_arithmetic,
)
from rcdiag.usecases.logged.read_again import Numbers, SecondReading, logged_by, read_again
from rcdiag.usecases.logged.side_by_side import Sides

# Micro-batch sizes are tried for which a step has at most this many micro-batches.
MOST_BATCHES = 4096


class Place(Struct, frozen=True):
    """Where a number was logged: the key in the log and in the trainer, the step in both."""

    log_key: str
    key: str
    log_step: int | None
    step: Step


class Differing(Struct, frozen=True):
    """A number of the log that differs from ours."""

    place: Place
    theirs: LoggedNumber
    ours: float


class Reason(Struct, frozen=True):
    """A way in which the trainer may have made its numbers, with the numbers that it gives."""

    name: str
    sentence: str
    numbers: Mapping[tuple[Step, str], float]  # step of the table, key of the trainer -> number
    details: Mapping[str, str] = {}  # key of the trainer -> what the sentence means for it

    def says(self, key: str) -> str:
        """Return the reason for the number of a key of the trainer, in one sentence."""
        detail = self.details.get(key, "")
        return f"{self.sentence}: {detail}" if detail else self.sentence


class LoggedEvidence(Struct, frozen=True):
    """The data from which reasons are computed."""

    plan: Plan
    names: KeyNames
    sides: Sides
    reading: SecondReading
    places: tuple[Place, ...]  # of the numbers that differ
    ours: Mapping[tuple[Step, str], float]
    single: dict[Step, list[Numbers]] = field(default_factory=dict)  # of each row by itself

    @property
    def steps(self) -> list[Step]:
        """Return the steps of the table that have a differing number."""
        return list(dict.fromkeys(place.step for place in self.places))

    def batch(self, step: Step) -> Sequences | None:
        """Return the rows of a step; None if the chosen preset needs the whole batch."""
        rows, chosen = (
            self.reading.rows.get(GIVEN),
            self.plan.corrections.get(self.sides.preset or ""),
        )
        if rows is None or (chosen is not None and chosen.needs_whole_batch):
            return None
        return rows.steps[step]

    def logged(self, rows: Sequences) -> Numbers:
        """Return what the trainer logs for some rows with the chosen preset."""
        assert self.sides.preset is not None
        return logged_by(self.plan, self.sides.preset, rows)


class Sought(Struct, frozen=True):
    """The input of the search for reasons: the table, its two policies, the plan, both sides."""

    dump: Table
    pair: tuple[str, str]
    plan: Plan
    names: KeyNames
    sides: Sides

    def evidence(
        self,
        differing: Sequence[Differing],
        plans: Mapping[str, Plan],
        preset: str | None = None,
        metrics: Collection[str] = (),
    ) -> LoggedEvidence:
        """Read the steps with differing numbers again, for all plans together."""
        places = tuple(one.place for one in differing)
        steps = {place.step for place in places}
        plans = {name: answerable(one, self.dump) for name, one in plans.items()}
        reading = read_again(self.dump, *self.pair, steps, plans, preset, metrics)
        ours = {(one.place.step, one.place.key): one.ours for one in differing}
        return LoggedEvidence(self.plan, self.names, self.sides, reading, places, ours)

    @property
    def given(self) -> Plan | None:
        """Return the plan with only the chosen preset; None without one."""
        return None if self.sides.preset is None else only(self.plan, [self.sides.preset])


def arithmetic(differing: Sequence[Differing], sought: Sought) -> Reason:
    """Compute the numbers in float32, or in float64 if ours are in float32 already."""
    given, names = sought.given, sought.names
    metrics = {metric for one in differing if (metric := names.metric(one.place.key)) is not None}
    plans = {} if given is None else {OTHER_ARITHMETIC: other_arithmetic(given)}
    evidence = sought.evidence(differing, plans, metrics=metrics)
    numbers: dict[tuple[Step, str], float] = {}
    for step in evidence.steps:
        if OTHER_ARITHMETIC in evidence.reading.rows:
            for logged in evidence.reading.of(step, OTHER_ARITHMETIC).values():
                numbers |= {(step, key): value for key, value in logged.items()}
    for place in evidence.places:
        metric = names.metric(place.key)
        value = None if metric is None else evidence.reading.rounded(place.step, metric)
        if value is not None:
            numbers[place.step, place.key] = value
    already = sought.plan.dtype == np.float32
    sentence = (
        "both are in float32, and the difference is rounding in another order of summation"
        if already
        else "the trainer computes in float32, and the difference is its rounding (--arithmetic "
        "float32)"
    )
    return Reason("float32", sentence, numbers)


def _other_generations(evidence: LoggedEvidence) -> Iterator[Reason]:
    """Compute the numbers by the definitions of other generations of the trainer."""
    for name, plan in evidence.reading.plans.items():
        if name in (GIVEN, OTHER_PRESETS):
            continue
        numbers = {}
        for step in evidence.steps:
            for logged in evidence.reading.of(step, name).values():
                for place in evidence.places:
                    other = evidence.names.in_generation(place.key, plan.trainer)
                    if other is not None and other in logged:
                        numbers[step, place.key] = logged[other]
        words = evidence.names.words.items()
        details = {key: one.generations.get(name, "") for key, one in words}
        yield Reason(name, f"it is {name}'s definition", numbers, details)


def _presets(evidence: LoggedEvidence) -> Iterator[Reason]:
    """Compute the numbers with the other presets of the trainer."""
    if OTHER_PRESETS not in evidence.reading.rows:
        return
    by_step = {step: evidence.reading.of(step, OTHER_PRESETS) for step in evidence.steps}
    for preset in evidence.reading.plans[OTHER_PRESETS].corrections:
        numbers = {
            (step, key): value
            for step, presets in by_step.items()
            for key, value in presets[preset].items()
        }
        sentence = f"it is the number of preset {preset}, while ours is of {evidence.sides.preset}"
        yield Reason(preset, sentence, numbers)


def _micro_batches(evidence: LoggedEvidence) -> Iterator[Reason]:
    """Compute means over micro-batches of rows in the order of the table, the smallest first."""
    sizes: dict[int, dict[tuple[Step, str], float]] = {}
    for step in evidence.steps:
        rows = evidence.batch(step)
        if rows is None or any(sketch.raw is None for sketch in rows.sketches.values()):
            continue
        count = len(rows) + rows.empty
        places = evidence.reading.places(step, rows)
        size = 1
        while size < count:
            if -(-count // size) <= MOST_BATCHES:
                parts = _parts(evidence, rows, places, count, size)
                if size == 1:
                    evidence.single[step] = parts
                means = sizes.setdefault(size, {})
                means |= {(step, key): mean for key, mean in _means(parts).items()}
            size *= 2
    for size, numbers in sorted(sizes.items()):
        name = "sequences" if size == 1 else f"micro-batches of {size}"
        sentence = (
            "it is the mean of the numbers of every sequence (micro-batches of 1 row)"
            if size == 1
            else f"it is the mean over micro-batches of {size} rows in the order of the table"
        )
        yield Reason(name, sentence, numbers)


def _parts(
    evidence: LoggedEvidence, rows: Sequences, places: np.ndarray, count: int, size: int
) -> list[Numbers]:
    """Return what the trainer logs for every micro-batch with a token."""
    edges = np.searchsorted(places, np.arange(0, count + size, size))
    parts = []
    for index, (start, stop) in enumerate(itertools.pairwise(edges)):
        if stop > start:
            empty = min(size, count - index * size) - (stop - start)
            parts.append(evidence.logged(rows.take(int(start), int(stop), int(empty))))
    return parts


def _means(parts: Sequence[Numbers], weights: Sequence[float] | None = None) -> dict[str, float]:
    """Return the mean over parts of every number that all of them have."""
    keys = [key for key in parts[0] if all(key in part for part in parts)]
    with np.errstate(all="ignore"):
        return {
            key: float(np.average([part[key] for part in parts], weights=weights)) for key in keys
        }


def _sign(evidence: LoggedEvidence) -> Iterator[Reason]:
    """Reverse the sign of our numbers."""
    numbers = {place: -value for place, value in evidence.ours.items()}
    yield Reason("sign", "it has the opposite sign", numbers)


def _tokens(evidence: LoggedEvidence) -> Iterator[Reason]:
    """Average the numbers of single sequences, weighted by their tokens."""
    numbers: dict[tuple[Step, str], float] = {}
    for step, parts in evidence.single.items():
        rows = evidence.batch(step)
        assert rows is not None
        means = _means(parts, rows.lengths.tolist())
        numbers |= {(step, key): mean for key, mean in means.items()}
    sentence = (
        "it is the mean of each sequence's number weighted by its tokens, so that long ones count "
        "more"
    )
    yield Reason("tokens", sentence, numbers)


def _after_rejection(evidence: LoggedEvidence) -> Iterator[Reason]:
    """Compute the numbers over the tokens that are left after rejection."""
    kept = evidence.reading.kept
    if kept is None:
        return
    numbers: dict[tuple[Step, str], float] = {}
    for step in evidence.steps:
        rows = kept.steps[step]
        if len(rows):
            numbers |= {(step, key): value for key, value in evidence.logged(rows).items()}
    sentence = (
        f"it is taken over the tokens that are left after rejection, while "
        f"{evidence.plan.trainer.name} takes all"
    )
    yield Reason("after rejection", sentence, numbers)


# The reasons that are tried, in this order, if rounding is not the reason.
REASONS: tuple[Callable[[LoggedEvidence], Iterable[Reason]], ...] = (
    _other_generations,
    _presets,
    _micro_batches,
    _sign,
    _tokens,
    _after_rejection,
)
