"""One verdict from a training log: divides its steps into stretches and judges each of them."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files

from msgspec import Struct
from msgspec.structs import replace

from rcdiag.diagnosis.causes.cause import Suspicion
from rcdiag.diagnosis.conclusion import gravity, named_cause, see_how, verdict_of
from rcdiag.diagnosis.confidence import probability
from rcdiag.diagnosis.logged.by_course import by_course
from rcdiag.diagnosis.logged.causes import CAUSES_OF_RUNS, found_in
from rcdiag.diagnosis.logged.causes.found import ENGINE
from rcdiag.diagnosis.logged.causes.not_finite import steps_not_finite
from rcdiag.diagnosis.logged.causes.size import beyond_by_far, steps_by_far
from rcdiag.diagnosis.logged.changes import Change
from rcdiag.diagnosis.logged.course import Course
from rcdiag.diagnosis.logged.over_steps import (
    OF_UPDATE,
    of_training,
    over_steps,
    what_the_update_compares,
)
from rcdiag.diagnosis.logged.ruled_out import ruled_out
from rcdiag.diagnosis.logged.run import LoggedRun
from rcdiag.diagnosis.logged.stretches import began, stretches
from rcdiag.diagnosis.logged.window import StepWindow
from rcdiag.diagnosis.thresholds import SHOWN
from rcdiag.formats import after_colon, listed
from rcdiag.results.diagnosis import (
    NOTHING_WRONG,
    Action,
    Diagnosis,
    MovedNumber,
    NamedCause,
    OverSteps,
)

# Typical numbers of steps in a stretch and of mismatch keys: origin of the confidence's predictors.
USUAL_STEPS, USUAL_KEYS = 30, 10
NO_NUMBER = "The log holds no finite number that compares the sampler with the trainer."

Shown = tuple[StepWindow, Suspicion]  # the steps that show a cause, and the cause


class Judged(Struct, frozen=True, kw_only=True):
    """The judgement of one run's log."""

    diagnosis: Diagnosis
    changes: Sequence[Change]
    found: Sequence[Shown] = ()  # each cause with the stretch that shows it
    # The stretch of the first cause; None if the log has no number of the mismatch.
    shown: StepWindow | None = None


def judge(run: LoggedRun, *, family: str | None = None) -> Judged:
    """Judge a run by its log; `family` names the trainer."""
    course = Course(run)
    if not run.of_mismatch:
        return Judged(diagnosis=_nothing_compared(course, family), changes=course.changes)
    parts = stretches(course, steps_not_finite(run))
    named = _named(course, parts)
    faults = [(window, one) for window, one in named if one.slug not in NOTHING_WRONG]
    faults = faults or _elsewhere(course, parts)
    found = _each_once(course, faults or named[-1:])
    causes = [
        (_named_cause(window, one, ruled_out(course, window)), window) for window, one in found
    ]
    causes.sort(key=lambda one: gravity(one[0]))
    shown = causes[0][1] if causes else parts[-1]
    return Judged(
        diagnosis=_diagnosis(course, family, [cause for cause, _ in causes], shown, bool(faults)),
        changes=course.changes,
        found=found,
        shown=shown,
    )


def _named(course: Course, parts: Sequence[StepWindow]) -> list[Shown]:
    """Return what the run as a whole and each of its stretches show."""
    of_run = (seen for look in CAUSES_OF_RUNS if (seen := look(course.run)) is not None)
    of_parts = ((window, _of_steps(window, found_in(window))) for window in parts)
    return [
        (window, by_course(course, window, one))
        for window, one in (*of_run, *of_parts)
        if one is not None
    ]


def _elsewhere(course: Course, parts: Sequence[StepWindow]) -> list[Shown]:
    """Return faults of other steps than the stretches, where these show none.

    A number may change elsewhere and be by far beyond rounding there, or be so in a few steps.
    """
    since = (StepWindow(course.run, course.steps_of(change)) for change in course.changes)
    far = ((window, _of_steps(window, beyond_by_far(window))) for window in since)
    faults = [(window, one) for window, one in far if one is not None]
    return faults or [few for window in parts if (few := _in_few_steps(window)) is not None]


def _diagnosis(
    course: Course,
    family: str | None,
    causes: Sequence[NamedCause],
    shown: StepWindow,
    has_fault: bool,
) -> Diagnosis:
    """Return the diagnosis of a run; `shown` are the steps of its first cause."""
    slugs = {cause.slug for cause in causes}
    against = {slug: why for slug, why in ruled_out(course, shown).items() if slug not in slugs}
    verdict = verdict_of(causes)
    began_at = causes[0].from_step if causes else None
    first = int(course.run.steps[0]) if began_at is None else began_at
    return Diagnosis(
        verdict=verdict,
        summary=causes[0].message if causes else _nothing_found(shown),
        pair=None,
        causes=list(causes),
        ruled_out=list(against),
        ruled_out_by=against,
        next=_next(family, verdict, changed=any(cause.from_step for cause in causes)),
        over_steps=OverSteps(
            says=over_steps(course, first if has_fault else None),
            large_from=began_at,
            large_to=None,
            moved=[_moved(change) for change in course.changes],
        ),
    )


def _of_steps(window: StepWindow, found: Suspicion | None) -> Suspicion | None:
    """Say of which steps the numbers of a cause are, unless they are those of the whole run."""
    first, last = window.first, int(window.steps[-1])
    if found is None or (first, last) == (window.run.steps[0], window.run.steps[-1]):
        return found
    where = f"In step {first}" if first == last else f"In steps {first} to {last}"
    return replace(found, message=f"{where}: {after_colon(found.message)}")


def _in_few_steps(window: StepWindow) -> Shown | None:
    """Judge the steps of a healthy stretch that are beyond rounding by far; None without any."""
    steps = steps_by_far(window)
    few = StepWindow(window.run, steps)
    if not len(steps) or (found := found_in(few)) is None:
        return None
    if len(steps) > 1:
        named = listed(steps.tolist(), SHOWN)
        where = f"In {len(steps)} of {len(window.steps)} steps ({named})"
        return few, replace(found, message=f"{where}: {found.message}")
    last = " It is the last step: one more would tell." if steps[0] == window.run.steps[-1] else ""
    message = f"In step {steps[0]} alone: {found.message}{last}"
    return few, replace(found, message=message, verdict="inconclusive")


def _moved(change: Change) -> MovedNumber:
    return MovedNumber(
        name=change.key,
        moved_at=change.step,
        median_before=float(f"{change.before:.4g}"),
        median_after=float(f"{change.after:.4g}"),
    )


def _each_once(course: Course, faults: Sequence[Shown]) -> list[Shown]:
    """Return each cause once: as the last stretch with it shows it, and the step at which it began.

    So its numbers are those of the present, if it is still there. The step is None if the cause is
    there from the first step on, or is none.
    """
    found = []
    start = int(course.run.steps[0])
    for slug in dict.fromkeys(one.slug for _, one in faults):
        alike = [(window, _with_verdict(one)) for window, one in faults if one.slug == slug]
        window, one = max(alike, key=lambda of: int(of[0].steps[-1]))
        first = min(began(course, of) for of, _ in alike)
        since = None if first <= start or slug in NOTHING_WRONG else first
        found.append((window, replace(one, from_step=since)))
    return found


def _with_verdict(found: Suspicion) -> Suspicion:
    """Return a suspicion with the verdict of its cause; of guides a log knows no limit."""
    verdict = found.verdict or found.cause.words.verdict
    return replace(found, verdict="healthy" if verdict == "guides" else verdict)


def _named_cause(window: StepWindow, found: Suspicion, against: Mapping[str, str]) -> NamedCause:
    harmless = found.verdict == "healthy" or found.slug in NOTHING_WRONG
    texts = () if harmless else (found.actions or found.cause.words.mend)[:2]
    actions = [Action(text=text) for text in texts]
    if actions:
        actions += see_how(found.cause.words)
    sure = replace(found, confidence=probability("log", predictors(window, found)))
    named = named_cause(sure, actions, found.evidence)
    possible = [slug for slug in named.also_possible if slug not in against]
    return replace(named, also_possible=possible)


def predictors(window: StepWindow, found: Suspicion) -> dict[str, float]:
    """Return the predictors of the confidence in a cause, by name; all are bounded."""
    size = 0.0 if window.rms is None else math.log10(max(window.rms, 1e-4) / ENGINE)
    return {
        "constant": 1.0,
        "score": math.log(found.confidence / (1.0 - found.confidence)),
        "umbrella": float(found.cause.is_umbrella),
        "steps": math.log10(len(window.steps) / USUAL_STEPS),
        "keys": math.log10(max(len(window.run.of_mismatch), 1) / USUAL_KEYS),
        "size": min(max(size, -2.0), 2.0),
    }


def _nothing_found(window: StepWindow) -> str:
    """Say why a log with keys of the mismatch shows nothing."""
    if window.k3_below_zero is None:
        return NO_NUMBER
    key = window.run.series["k3"].key
    return (
        f"`{key}` is {window.k3_below_zero:.2g}, and a mean of ratio - 1 - log_ratio is never "
        "below 0: the key holds another quantity, and the log has no other size of the mismatch."
    )


def _nothing_compared(course: Course, family: str | None) -> Diagnosis:
    run = course.run
    others = [one.key for name, one in run.series.items() if name not in OF_UPDATE]
    has = f" (it has {', '.join(f'`{key}`' for key in others[:SHOWN])})" if others else ""
    none = "of the mismatch alone" if run.in_bypass else "that compares sampler and trainer"
    compares = what_the_update_compares(run)
    return Diagnosis(
        verdict="inconclusive",
        summary=f"The log holds no number {none}{has}. {compares}".strip(),
        pair=None,
        causes=[],
        next=_next(family, "inconclusive", changed=bool(course.changes)),
        over_steps=OverSteps(
            says=of_training(course),
            large_from=None,
            large_to=None,
            moved=[_moved(change) for change in course.changes],
        ),
    )


def _next(family: str | None, verdict: str, *, changed: bool) -> list[Action]:
    """Name the next experiment: which dump to write, and the command that reads it."""
    if verdict == "healthy":
        return []
    known = tomllib.loads(files(__package__).joinpath("dumps.toml").read_text(encoding="utf-8"))
    steps = "a step before and one after the change" if changed else "a step or two"
    of = known.get(family or "")
    if of is None:
        return [
            Action(
                text=f"record tokens and both log-probs of {steps}, with rcdiag.Recorder "
                "(docs/recording.md)",
                command="rcdiag score dump/",
            )
        ]
    dump = [Action(text=f"dump {steps}: {of['option']}", command=of["command"])]
    return [*dump, Action(text=of["line"])] if "line" in of else dump
