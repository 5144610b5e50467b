"""Names weights that lag, or a mismatch beyond rounding, where the course of a run shows it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.causes.cause import LIKELY, Suspicion, fact
from rcdiag.diagnosis.causes.lag import LARGEST_DRIFT
from rcdiag.diagnosis.logged.causes.found import undecided
from rcdiag.diagnosis.logged.causes.size import beyond_rounding, few_tokens
from rcdiag.diagnosis.logged.changes import Change, common
from rcdiag.diagnosis.logged.course import FELL_BEHIND, Course
from rcdiag.diagnosis.logged.over_steps import at_rate_zero
from rcdiag.diagnosis.logged.run import Series
from rcdiag.diagnosis.logged.window import StepWindow, rms_of
from rcdiag.diagnosis.thresholds import FEWEST_ROWS, MUCH_LARGER, RELATED
from rcdiag.formats import from_to

# A growth by the square of the steps becomes this much larger over twice the steps.
OF_TWICE_THE_STEPS = 4.0
STALE = ("stale-weights", "weights-never-synced")
OF_A_JUMP = ("quantised-weights", "weights-differ")


def by_course(course: Course, window: StepWindow, found: Suspicion) -> Suspicion:
    """Return what a window shows, or a narrower cause where the steps around it show one."""
    if found.slug == "engine-noise":
        changed = _change_of_size(course, window)
        return found if changed is None else _changes_size(changed, found)
    if found.slug == "forwards-differ" and (why := at_rate_zero(course)):
        return replace(found, message=f"{found.message} {why}")
    size = course.size
    if found.slug != "forwards-differ" or found.verdict == "broken" or size is None:
        return found
    if few_tokens(window) is not None:
        return found
    staleness = course.run.series.get("staleness")
    if staleness is not None and (r := _rank_correlation(size, staleness)) > RELATED:
        return _as(
            found,
            "stale-weights",
            f"`{size.key}` follows `{staleness.key}` (rank correlation {r:.2f}): the sampler's "
            "weights lag.",
            fact(staleness.key, "the mismatch grows with it", rank_correlation=round(r, 2)),
            ("forwards-differ", "weights-never-synced"),
        )
    drift = course.drift
    if drift is None or not _at_pace(size, drift):
        return found
    return _drifts(course, window, found, drift)


def _change_of_size(course: Course, window: StepWindow) -> Change | None:
    """Return a jump or a growth of the mismatch whose level a window of small numbers has."""
    here = [one for one in course.changes if course.lasts(one, window.first)]
    jump = next((one for one in here if _jumps(one)), None)
    if jump is not None:
        return jump
    growths = (one for one in course.growths if window.first >= course.grown(one))
    return next((one for one in growths if one in here), None)


def _drifts(course: Course, window: StepWindow, found: Suspicion, drift: Change) -> Suspicion:
    """Name weights that are never synced, or add them to what a steady growth may come from."""
    grows = (
        f"`{drift.key}` grows steadily from step {drift.step} on, from "
        f"{from_to(drift.before, drift.after)}"
    )
    evidence = fact(drift.key, "grows with the steps", before=drift.before, after=drift.after)
    by_lag = (window.rms or 0.0) <= LARGEST_DRIFT
    of_weights = (*(STALE if by_lag else STALE[1:]), "weights-differ", "reference-as-old")
    if _of_updates(course, drift):
        lag = "as where the sampler's weights fall behind the trainer's"
        possible = (*of_weights, "forwards-differ")
        return _as(found, "weights-never-synced", f"{grows}, {lag}.", evidence, possible)
    return replace(
        found,
        message=f"{found.message} {grows}: weights that fall behind, or noise that grows.",
        evidence=[evidence, *found.evidence],
        also_possible=(
            *dict.fromkeys((*of_weights, "quantised-weights", *(found.also_possible or ()))),
        ),
    )


def _at_pace(size: Series, growth: Change) -> bool:
    """Tell whether a growth beyond a lag is no faster than that of weights that drift apart.

    Their k3 grows by the square of the updates at most, and other sizes by less; what multiplies
    itself from step to step is the collapse of a policy.
    """
    values = size.values[(size.steps >= growth.step) & np.isfinite(size.values)]
    count = len(values)
    if not count or float(rms_of(size.quantity.name, values).max()) <= LARGEST_DRIFT:
        return True
    middle, end = values[3 * count // 8 :][: max(count // 4, 1)], values[-max(count // 4, 1) :]
    return float(np.median(end)) <= OF_TWICE_THE_STEPS * float(np.median(middle))


def _of_updates(course: Course, growth: Change) -> bool:
    """Tell whether weights that are never synced are the likeliest cause of a growth.

    They begin as equal weights, with no more than rounding between the two sides, and drift apart
    by more than noise grows with the entropy: by 1 - exp(-entropy) at most. They are not the cause
    if the log has a staleness that does not grow. A sampler that keeps its weights also keeps the
    mean length and the mean reward of its responses.
    """
    noise, entropy = growth.before, course.changes_in("entropy")
    if entropy and min(entropy[0].before, entropy[-1].after) > 0.0:
        noise *= math.expm1(-entropy[-1].after) / math.expm1(-entropy[0].before)
    lags = [one.after > one.before for one in course.changes_in("staleness")]
    stale = "staleness" not in course.run.series or any(lags)
    more_than_noise = growth.after > FELL_BEHIND * noise
    equal_before = not beyond_rounding(growth.quantity, growth.before)
    kept = not course.changes_in("response_length") and not course.changes_in("reward")
    return equal_before and more_than_noise and stale and kept


def _jumps(change: Change) -> bool:
    """Tell whether the size of log-ratios, or of probabilities, becomes much larger at once.

    It does by more than the spread of rounding over batches.
    """
    squared = change.quantity in ("k3", "k2")
    least = MUCH_LARGER**2 if squared else MUCH_LARGER
    of_size = change.quantity in ("k3", "k2", "abs_diff", "prob_diff")
    return of_size and change.shape == "jump" and change.after > least * change.before > 0.0


def _changes_size(change: Change, found: Suspicion) -> Suspicion:
    """Name a mismatch that grows or jumps where other numbers are as small as rounding."""
    grows = change.shape == "creep"
    moved = f"{'grows steadily' if grows else 'jumps'} from {from_to(change.before, change.after)}"
    reads = "weights may be falling behind" if grows else "a precision, a kernel or weights changed"
    size = (
        "That is more than the rounding of two engines, though other numbers are as small as it"
        if beyond_rounding(change.quantity, change.after)
        else "It is still as small as rounding, but rounding stays as it is unless surprisals "
        "change as much"
    )
    return undecided(
        f"`{change.key}` {moved} {'from' if grows else 'at'} step {change.step}"
        f"{' on' if grows else ''}. {size}: {reads}.",
        [
            fact(
                change.key,
                "grows with the steps" if grows else "jumps",
                before=change.before,
                after=change.after,
            ),
            *map(dict, found.evidence),
        ],
        (*(STALE if grows else OF_A_JUMP), "engine-noise"),
    )


def _as(
    found: Suspicion, slug: str, message: str, evidence: dict[str, Any], possible: Sequence[str]
) -> Suspicion:
    return Suspicion(
        slug=slug,
        confidence=LIKELY,
        message=message,
        evidence=[evidence, *found.evidence],
        verdict="correctable",
        also_possible=possible,
    )


def _rank_correlation(one: Series, other: Series) -> float:
    _, x, y = common(one, other)
    if len(x) < FEWEST_ROWS or np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    from scipy.stats import spearmanr

    return float(spearmanr(x, y).statistic)
