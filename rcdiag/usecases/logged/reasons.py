"""What could make a trainer's number another than ours is computed, and the first that does wins.

To add a reason: a function that yields `Reason`s, and its name in `REASONS`, where the likelier
ones come first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rcdiag.corrections.correction import in_float32
from rcdiag.corrections.sequences import Rows
from rcdiag.logs import Log, LoggedNumber
from rcdiag.statistics.accumulator import Step
from rcdiag.table.table import Table
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.plan import Plan, plan_corrections
from rcdiag.trainers.trainer import Trainer
from rcdiag.trainers.words import read_renamed_presets
from rcdiag.usecases.corrected import answerable
from rcdiag.usecases.logged.names import Names
from rcdiag.usecases.logged.rows import Numbers, Reading, logged_by, read_again
from rcdiag.usecases.logged.sides import NEAR, Sides

GIVEN, OTHER_ARITHMETIC, OTHER_PRESETS = "given", "arithmetic", "presets"
# Micro-batches are tried down to the size at which a step has so many of them.
MOST_BATCHES = 4096
# Step of the table and key of the trainer -> by how much rounding may move the number.
Slack = Mapping[tuple[Step, str], float]
# What sums of thousands of float32 numbers around 1 may be off by: four roundings of such a number.
UNIT = 2.0**-22


@dataclass(frozen=True, slots=True)
class Place:
    """Where a number stands: its key in the log and as the trainer has it, and both steps."""

    log_key: str
    key: str
    log_step: int | None
    step: Step


@dataclass(frozen=True, slots=True)
class Differing:
    """A number of the log that differs from ours."""

    place: Place
    theirs: LoggedNumber
    ours: float


@dataclass(frozen=True, slots=True)
class Reason:
    """A way in which the trainer may have made its numbers, with the numbers that it gives."""

    name: str
    says: Callable[[str], str]  # key of the trainer -> the reason in one sentence
    numbers: Mapping[tuple[Step, str], float]  # step of the table, key of the trainer -> number


@dataclass(frozen=True, slots=True)
class Evidence:
    """What reasons are computed from."""

    plan: Plan
    names: Names
    sides: Sides
    reading: Reading
    places: tuple[Place, ...]  # of the numbers that differ
    ours: Mapping[tuple[Step, str], float]
    single: dict[Step, list[Numbers]] = field(default_factory=dict)  # of every row alone

    @property
    def steps(self) -> list[Step]:
        """Return the steps of the table that have a number which differs."""
        return list(dict.fromkeys(place.step for place in self.places))

    def batch(self, step: Step) -> Rows | None:
        """Return the rows of a step, as the chosen preset needs them."""
        rows = self.reading.rows.get(GIVEN)
        return None if rows is None else rows.steps[step]

    def logged(self, rows: Rows) -> Numbers:
        """Return what the trainer logs of some rows with the chosen preset."""
        assert self.sides.preset is not None
        return logged_by(self.plan, self.sides.preset, rows)


@dataclass(frozen=True, slots=True)
class Sought:
    """What reasons are sought in: the table and its two policies, the plan, both sides."""

    dump: Table
    pair: tuple[str, str]
    plan: Plan
    names: Names
    sides: Sides

    def evidence(
        self,
        differing: Sequence[Differing],
        plans: Mapping[str, Plan],
        preset: str | None = None,
        metrics: Collection[str] = (),
    ) -> Evidence:
        """Read the steps with a number that differs once more, for all plans together."""
        places = tuple(one.place for one in differing)
        steps = {place.step for place in places}
        plans = {name: answerable(one, self.dump) for name, one in plans.items()}
        reading = read_again(self.dump, *self.pair, steps, plans, preset, metrics)
        ours = {(one.place.step, one.place.key): one.ours for one in differing}
        return Evidence(self.plan, self.names, self.sides, reading, places, ours)

    @property
    def given(self) -> Plan | None:
        """Return the plan with the chosen preset alone; None without any."""
        return None if self.sides.preset is None else _only(self.plan, [self.sides.preset])


def _plans(plan: Plan, preset: str) -> dict[str, Plan]:
    """Return the plans that are tried: the given one, other generations, other presets."""
    trainer = plan.trainer
    others = {**trainer.presets, **{name: plan.configs[name] for name in plan.corrections}}
    others.pop(preset, None)
    presets = _in_arithmetic(plan_corrections(trainer, others), plan)
    return {
        GIVEN: _only(plan, [preset]),
        **_generations(plan, preset),
        OTHER_PRESETS: _only(presets, list(presets.corrections)),
    }


def _only(plan: Plan, presets: Sequence[str]) -> Plan:
    return replace(
        plan,
        configs={name: plan.configs[name] for name in presets},
        corrections={name: plan.corrections[name] for name in presets},
        findings=(),
    )


def _in_arithmetic(plan: Plan, like: Plan) -> Plan:
    return _float32(plan) if like.dtype == np.float32 else plan


def _float32(plan: Plan) -> Plan:
    corrections = {name: in_float32(one) for name, one in plan.corrections.items()}
    return replace(plan, corrections=corrections, dtype=np.float32)


def _other_arithmetic(plan: Plan) -> Plan:
    """Return the plan in float32, or in float64 where it is in float32 already."""
    if plan.dtype != np.float32:
        return _float32(plan)
    return plan_corrections(plan.trainer, plan.configs)


def _generations(plan: Plan, preset: str) -> dict[str, Plan]:
    """Return the preset as all other generations of the trainer have it, by generation."""
    plans = {}
    family = [other for other in TRAINERS.values() if other.family == plan.trainer.family]
    # The nearest generation comes first.
    own = family.index(plan.trainer)
    for other in sorted(family, key=lambda one: abs(family.index(one) - own)):
        if other is plan.trainer:
            continue
        config = _config_of(other, plan, preset)
        plans[other.name] = _in_arithmetic(plan_corrections(other, {preset: config}), plan)
    return plans


def _config_of(other: Trainer, plan: Plan, preset: str) -> dict[str, object]:
    """Return the settings of another generation: its preset, changed as ours is changed."""
    trainer = plan.trainer
    config = dict(plan.configs[preset])
    renamed = read_renamed_presets(trainer.package).get(preset, ())
    own = next((name for name in (preset, *renamed) if name in other.presets), None)
    if own is None or preset not in trainer.presets:
        return {name: value for name, value in config.items() if name in other.settings}
    before = {**trainer.settings, **trainer.presets[preset]}
    changed = {
        name: value
        for name, value in config.items()
        if name in other.settings and before.get(name) != value
    }
    return {**other.presets[own], **changed}


def _arithmetic(differing: Sequence[Differing], sought: Sought) -> Reason:
    """Compute the numbers in the other arithmetic."""
    given, names = sought.given, sought.names
    metrics = {metric for one in differing if (metric := names.metric(one.place.key)) is not None}
    plans = {} if given is None else {OTHER_ARITHMETIC: _other_arithmetic(given)}
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
        "both are in float32, and the difference is what rounding makes of it in another order"
        if already
        else "the trainer computes in float32, and the difference is its rounding (--arithmetic "
        "float32)"
    )
    return Reason("float32", _constant(sentence), numbers)


def _other_generations(evidence: Evidence) -> Iterator[Reason]:
    """Compute the numbers as other generations of the trainer define them."""
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
        yield Reason(name, _Definition(evidence.names, name), numbers)


@dataclass(frozen=True, slots=True)
class _Definition:
    """The sentence on a number that is defined as another generation has it."""

    names: Names
    generation: str

    def __call__(self, key: str) -> str:
        words = self.names.words.get(key)
        detail = words.generations.get(self.generation, "") if words else ""
        return f"it is {self.generation}'s definition{f': {detail}' if detail else ''}"


def _presets(evidence: Evidence) -> Iterator[Reason]:
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
        sentence = f"it is the number of preset {preset}, ours is that of {evidence.sides.preset}"
        yield Reason(preset, _constant(sentence), numbers)


def _constant(sentence: str) -> Callable[[str], str]:
    return lambda key: sentence


def _micro_batches(evidence: Evidence) -> Iterator[Reason]:
    """Compute means over micro-batches of rows in the order of the table, the smallest first."""
    sizes: dict[int, dict[tuple[Step, str], float]] = {}
    for step in evidence.steps:
        rows = evidence.batch(step)
        if rows is None or (rows.ratios is not None and rows.ratios.raw is None):
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
        yield Reason(name, _constant(sentence), numbers)


def _parts(
    evidence: Evidence, rows: Rows, places: np.ndarray, count: int, size: int
) -> list[Numbers]:
    """Return what the trainer logs of every micro-batch that has a token."""
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


def _sign(evidence: Evidence) -> Iterator[Reason]:
    """Turn the sign of our numbers."""
    numbers = {place: -value for place, value in evidence.ours.items()}
    yield Reason("sign", _constant("it has the opposite sign"), numbers)


def _tokens(evidence: Evidence) -> Iterator[Reason]:
    """Weigh the numbers of every sequence by its tokens."""
    numbers: dict[tuple[Step, str], float] = {}
    for step, parts in evidence.single.items():
        rows = evidence.batch(step)
        assert rows is not None
        means = _means(parts, rows.lengths.tolist())
        numbers |= {(step, key): mean for key, mean in means.items()}
    sentence = (
        "it is a mean over tokens of the numbers of every sequence, so that long ones weigh more"
    )
    yield Reason("tokens", _constant(sentence), numbers)


def _after_rejection(evidence: Evidence) -> Iterator[Reason]:
    """Compute the numbers of the tokens that rejection leaves."""
    kept = evidence.reading.kept
    if kept is None:
        return
    numbers: dict[tuple[Step, str], float] = {}
    for step in evidence.steps:
        rows = kept.steps[step]
        if len(rows):
            numbers |= {(step, key): value for key, value in evidence.logged(rows).items()}
    sentence = (
        f"it is taken over the tokens that rejection leaves, where {evidence.plan.trainer.name} "
        "takes all"
    )
    yield Reason("after rejection", _constant(sentence), numbers)


# What is tried in this order, where rounding is not the reason.
REASONS: tuple[Callable[[Evidence], Iterable[Reason]], ...] = (
    _other_generations,
    _presets,
    _micro_batches,
    _sign,
    _tokens,
    _after_rejection,
)


def explained(log: Log, differing: Sequence[Differing], sought: Sought) -> dict[Place, Reason]:
    """Return the reason of every number that has one.

    Numbers that differ by rounding alone come first. Where others have another reason that gives
    one of these as well, far nearer than rounding would, it counts for both.
    """
    arithmetic = _arithmetic(differing, sought)
    slack = _slack(differing, arithmetic)
    reasons = {
        one.place: arithmetic for one in differing if _is_rounding(log, one, arithmetic, slack)
    }
    rest = [one for one in differing if one.place not in reasons]
    preset = sought.sides.preset
    if not rest:
        return reasons
    plans = {} if preset is None else _plans(sought.plan, preset)
    steps = {one.place.step for one in rest}
    beside = [one for one in differing if one.place in reasons and one.place.step in steps]
    evidence = sought.evidence([*rest, *beside], plans, preset)
    return reasons | _likeliest(log, rest, beside, evidence, slack)


def _likeliest(
    log: Log,
    differing: Sequence[Differing],
    rounded: Sequence[Differing],
    evidence: Evidence,
    slack: Slack,
) -> dict[Place, Reason]:
    """Return the reason of every number that has one; of `rounded` ones where it is far nearer.

    Of several that give a number the one that gives the most numbers counts, then the first:
    one reason for a whole log is likelier than many that happen to fit a number each.
    """
    given: list[tuple[Reason, set[Place]]] = []
    for make in REASONS:
        for reason in make(evidence):
            places = {one.place for one in differing if _gives(log, one, reason, slack)}
            if places:
                places |= {one.place for one in rounded if _is_far_nearer(log, one, reason)}
                given.append((reason, places))
        if {one.place for one in differing} <= {place for _, places in given for place in places}:
            break
    informative = {one.place for one in differing if one.theirs.value not in (0.0, 1.0)}
    given.sort(key=lambda item: -len(item[1] & informative))  # stable: the first of equals
    return {place: reason for reason, places in reversed(given) for place in places}


def _slack(differing: Sequence[Differing], arithmetic: Reason) -> dict[tuple[Step, str], float]:
    """Return by how much rounding may move a number: twice what float32 makes of ours, and a unit.

    Of a standard deviation, sqrt(E[x^2] - E[x]^2), it is the square that is off by the unit.
    """
    slack = {}
    for one in differing:
        place = one.place.step, one.place.key
        moved = abs(arithmetic.numbers.get(place, np.nan) - one.ours)
        if np.isfinite(moved):
            of_root = one.place.key.endswith("_std") and one.ours > 0.0
            slack[place] = 2.0 * moved + (UNIT / min(one.ours, 1.0) if of_root else UNIT)
    return slack


def _exact(log: Log, one: Differing, number: float) -> float:
    """Return how far a number may be from the log's: its digits, or 1e-6 of its size."""
    size = max(abs(one.theirs.value), abs(number))
    return max(NEAR * size, log.rounding(one.place.log_key, one.theirs))


def _is_rounding(log: Log, one: Differing, arithmetic: Reason, slack: Slack) -> bool:
    """Tell whether a number differs from ours by what float32 makes of it."""
    place, theirs = (one.place.step, one.place.key), one.theirs.value
    if _gives(log, one, arithmetic, {}):
        return True
    return place in slack and bool(
        abs(theirs - one.ours) <= slack[place] + _exact(log, one, theirs)
    )


def _gives(log: Log, one: Differing, reason: Reason, slack: Slack) -> bool:
    """Tell whether a reason gives the trainer's number, up to digits and rounding."""
    place = one.place.step, one.place.key
    if place not in reason.numbers:
        return False
    theirs, number = one.theirs.value, reason.numbers[place]
    if np.isnan(theirs) and np.isnan(number):
        return True
    if not (np.isfinite(theirs) and np.isfinite(number)):
        return theirs == number
    exact, apart = _exact(log, one, number), abs(theirs - number)
    if apart <= exact:
        return True
    # A trainer rounds to float32 as well; the reason has to make up for nearly all of it.
    rounding = exact + slack.get(place, 0.0)
    return bool(apart <= min(rounding, 0.1 * abs(theirs - one.ours)))


def _is_far_nearer(log: Log, one: Differing, reason: Reason) -> bool:
    """Tell whether a reason gives a number, and makes up for nearly all of the difference."""
    number = reason.numbers.get((one.place.step, one.place.key), np.nan)
    apart = abs(one.theirs.value - number)
    return _gives(log, one, reason, {}) and bool(apart <= 0.1 * abs(one.theirs.value - one.ours))
