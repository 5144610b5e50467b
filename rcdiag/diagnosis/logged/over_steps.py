"""Describes how a run changed over its steps, in sentences that name the keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rcdiag.diagnosis.case import Counts
from rcdiag.diagnosis.change_points import FEWEST
from rcdiag.diagnosis.logged.changes import Change, levels_apart, parting_of, periodic_steps
from rcdiag.diagnosis.logged.course import OF_SIZE, Course
from rcdiag.diagnosis.logged.run import LoggedRun, Series
from rcdiag.diagnosis.logged.window import SIZES
from rcdiag.diagnosis.thresholds import HALF, SHOWN
from rcdiag.formats import distinct, from_to, plural

IN_NATS = (*SIZES, "k1")
# A mismatch is back at its former level if at most this share of its first change remains, on the
# quantity's own scale.
LEFT = 0.25
# What a failing update or policy moves, and the least share of its value that counts: entropy
# drifts in healthy runs.
OF_THE_UPDATE, CLEARLY = ("grad_norm", "entropy"), 0.25
# What the update logs of its own ratio, current/old: in bypass mode the old policy is the sampler.
OF_UPDATE = ("ppo_kl", "clip_fraction", "update_ratio", "update_ratio_max", "update_ratio_min")


def over_steps(course: Course, since: int | None) -> str:
    """Say what changed when the fault began, whether it went back, and what changed beside it.

    `since` is the step at which the fault began; None without a fault: then the first change is
    described.
    """
    run, moved = course.run, course.of_mismatch
    said = [_periodic(run, course.periodic)]
    if moved:
        first = _of_the_fault(moved, moved[0].step if since is None else since)
        alone = _single_steps(run, first)
        said.append(alone or _first(run, moved, first))
        if since is not None and not alone:
            said.append(_back(run, moved, first))
        said += [_together(moved, first, values=not alone), _beside(course, first)]
    if since is not None and not run.in_bypass:
        said.append(what_the_update_compares(run, course.changes))
    said.append(_failed_updates(run))
    if len(run.steps) < FEWEST:
        said.insert(0, _few(run))
    elif not any(said):
        said = [f"no measure of the mismatch changes over steps {run.steps[0]} to {run.steps[-1]}"]
    return " ".join(filter(None, said))


def _few(run: LoggedRun) -> str:
    """Say that a log is too short for a change, with the first and the last size that it has."""
    count = len(run.steps)
    one = next((run.series[name] for name in OF_SIZE if name in run.series), None)
    at = [] if one is None else np.flatnonzero(np.isfinite(one.values)).tolist()
    if one is None or len(at) < 2:
        return f"{plural(count, 'step')} in the log: too few to see a change, which takes {FEWEST}."
    first, last = distinct(float(one.values[at[0]]), float(one.values[at[-1]]))
    return (
        f"`{one.key}` is {first} at step {one.steps[at[0]]} and {last} at step "
        f"{one.steps[at[-1]]}; {plural(count, 'step')} are too few to see a change ({FEWEST})."
    )


def _periodic(run: LoggedRun, steps: Counts) -> str:
    if not len(steps):
        return ""
    named = (run.series[name] for name in OF_SIZE if name in run.series)
    key = next(one.key for one in named if np.array_equal(periodic_steps(one), steps))
    return (
        f"`{key}` is large only every {np.diff(steps).min()} steps, from step {steps[0]} on, as at "
        "an evaluation or a checkpoint."
    )


def _of_the_fault(moved: Sequence[Change], since: int) -> Change:
    """Return the clearest change at the step of a fault, or else the clearest of the first ones.

    Sizes in nats come first, and numbers that single tokens dominate, such as chi-squared, last.
    """
    at = [one for one in moved if one.low <= since <= one.high]
    first = [one for one in moved if one.low <= moved[0].high]
    return max(
        at or first, key=lambda one: (one.quantity in IN_NATS, one.quantity in OF_SIZE, one.gain)
    )


def _first(run: LoggedRun, moved: Sequence[Change], first: Change) -> str:
    when = f"step {first.step}"
    if first.low < first.high:
        when += f" (95%: {first.low} to {first.high})"
    if (at := _resumed_at(run, first)) is not None:
        when += f", where the run was resumed at step {at},"
    begins = f"From {when} on" if first.shape == "creep" else f"At {when}"
    return f"{begins} `{first.key}` goes {_from_to(first)}{_further(run, moved, first)}."


def _single_steps(run: LoggedRun, first: Change) -> str:
    """Name the steps of a mismatch that changes at single steps alone; "" if it lasts longer."""
    series = run.series[first.quantity]
    before, after = series.quantity.scaled(np.array([first.before, first.after]))
    away = (series.quantity.scaled(series.values) - before) / (after - before) > HALF
    at = np.flatnonzero(away)
    if first.shape != "jump" or not len(at) or (np.diff(at) == 1).any():
        return ""
    steps = [str(step) for step in series.steps[at]]
    if len(steps) > SHOWN:
        steps[SHOWN - 1 :] = [f"{len(steps) - SHOWN + 1} more"]
    *others, last = steps
    named = f"steps {', '.join(others)} and {last}" if others else f"step {last}"
    values = series.values[at]
    *ends, usual = distinct(float(values.min()), float(values.max()), first.before)
    level = " to ".join(dict.fromkeys(ends))
    return f"At {named} alone `{first.key}` is {level} instead of {usual}."


def _further(run: LoggedRun, moved: Sequence[Change], first: Change) -> str:
    """Name the later level of a change that goes on in steps, until it goes back."""
    scaled = run.series[first.quantity].quantity.scaled
    back, _ = _back_and_again(run, moved, first)
    later = [
        one
        for one in moved
        if one.quantity == first.quantity
        and one.step >= first.step
        and (back is None or one.step < back.step)
    ]
    level, before = scaled(np.array([one.after for one in later])), scaled(np.array([first.before]))
    furthest = later[int(np.argmax(np.abs(level - before)))]
    if furthest is first or first.quantity not in OF_SIZE:
        return ""
    *_, level_then = distinct(first.before, first.after, furthest.after)
    return f", and to {level_then} at step {furthest.step}"


def _from_to(change: Change) -> str:
    return f"from {from_to(change.before, change.after)}"


def _together(moved: Sequence[Change], first: Change, *, values: bool) -> str:
    """Name other measures of the mismatch that change with the first one, and their `values`."""
    others = [
        f"`{one.key}`{f' {_from_to(one)}' if values else ''}"
        for one in moved
        if one.low <= first.high and first.low <= one.high and one is not first
    ][: SHOWN - 1]
    return f"With it {', '.join(others)}." if others else ""


def _resumed_at(run: LoggedRun, change: Change) -> int | None:
    """Return the step at which a run was resumed as a number changed."""
    return next((step for step in run.log.resumed if change.low <= step <= change.high), None)


def _beside(course: Course, first: Change) -> str:
    """Name numbers of one policy or of the training that change before, with or after `first`.

    Of those that change before, only the ones that a failing update or policy moves are named.
    """
    alone = [one for one in course.changes if one not in course.of_mismatch]
    groups = {
        "Before the mismatch": [
            one
            for one in alone
            if one.high < first.low
            and one.quantity in OF_THE_UPDATE
            and abs(one.after - one.before) > CLEARLY * abs(one.before)
        ],
        "Beside the mismatch": [one for one in alone if one.step >= first.low],
    }
    return " ".join(f"{name} {_listed(of[:SHOWN])}." for name, of in groups.items() if of)


def _failed_updates(run: LoggedRun) -> str:
    """Name the numbers of the update that are NaN or infinite at some steps."""
    said = []
    for name in ("grad_norm", "loss"):
        one = run.series.get(name)
        if one is None or not len(bad := one.steps[~np.isfinite(one.values)]):
            continue
        said.append(
            f"`{one.key}` is NaN or infinite in {len(bad)} of {len(one.steps)} steps, first at "
            f"step {bad[0]}: such an update is skipped, or makes all weights NaN."
        )
    return " ".join(said)


def _listed(changes: Sequence[Change]) -> str:
    """List what moves: `a` moves at step 3 (from 1 to 2), `b` at step 4 (from 5 to 6)."""
    first, *others = changes
    moves = [f"`{first.key}` moves at step {first.step} ({_from_to(first)})"]
    moves += [f"`{one.key}` at step {one.step} ({_from_to(one)})" for one in others]
    return ", ".join(moves)


def of_training(course: Course) -> str:
    """Say what changes in a log without a number of the mismatch, the clearest first."""
    run = course.run
    clearest = sorted(course.changes, key=lambda one: -one.gain)[:SHOWN]
    failed = _failed_updates(run)
    if not clearest:
        return failed or f"no known number changes over steps {run.steps[0]} to {run.steps[-1]}"
    moves = f"{'' if run.in_bypass else 'Of the training alone '}{_listed(clearest)}."
    return f"{moves} {failed}".strip()


def _back_and_again(
    run: LoggedRun, moved: Sequence[Change], first: Change
) -> tuple[Change | None, Change | None]:
    """Return the change by which a mismatch goes back to its former level, and the next return."""
    if first.quantity not in OF_SIZE:
        return None, None
    scaled = run.series[first.quantity].quantity.scaled
    before, high = scaled(np.array([first.before, first.after]))
    back = None
    for one in moved:
        if one.quantity == first.quantity and one.step > first.step:
            (after,) = scaled(np.array([one.after]))
            away = abs(after - before) > LEFT * abs(high - before)
            if back is not None and away:
                return back, one
            back = back if away else back or one
    return back, None


def _back(run: LoggedRun, moved: Sequence[Change], first: Change) -> str:
    """Say at which step a mismatch went back to its former level, and where it left it again."""
    back, again = _back_and_again(run, moved, first)
    if back is None:
        return ""
    at = _resumed_at(run, back)
    when = (
        f"at step {back.step}, as after a restart, a weight sync or an emptied cache"
        if at is None
        else f"after the restart at step {at}"
    )
    left = "" if again is None else f"; it leaves it again at step {again.step}"
    return f"`{back.key}` is back at its former level {when}{left}."


def at_rate_zero(course: Course) -> str:
    """Say that updates do not cause a mismatch, or its growth, at a learning rate of 0; or ""."""
    run = course.run
    grown = next((one for one in course.of_mismatch if one.after > one.before), None)
    if run.is_trained(grown.low if grown else int(run.steps[0])):
        return ""
    key = run.series["learning_rate"].key
    if grown is None:
        return f"`{key}` is 0: updates do not cause this mismatch."
    return f"`{grown.key}` grows at a learning rate of 0 (`{key}`): updates do not cause this."


def what_the_update_compares(run: LoggedRun, changes: Sequence[Change] = ()) -> str:
    """Say what the update's KL and clip fraction compare in the run's mode; "" without any.

    Those that are among the `changes` are left out.
    """
    keys = [
        f"`{run.series[name].key}`"
        for name in OF_UPDATE
        if name in run.series and not any(one.quantity == name for one in changes)
    ]
    if not keys:
        return ""
    verb = f"{' and '.join(keys)} {'compare' if len(keys) > 1 else 'compares'}"
    if run.in_bypass:
        return (
            f"In bypass mode {verb} the sampler with the policy that is updated: the mismatch and "
            "the updates of a step together."
        )
    return f"{verb} old with current log-probs, not with the sampler's (except in bypass mode)."


def parting(run: LoggedRun, other: LoggedRun, since: int | None) -> str:
    """Say at which step a run deviates from another one, and in which keys.

    `since` is the step at which the run's fault began, None without one. A fault that began before
    the steps that both runs log is a difference of levels over these; of one that began after them
    the other run shows nothing.
    """
    shared = [
        (one, other.series[one.quantity.name])
        for one in run.of_mismatch
        if one.quantity.compares and one.quantity.name in other.series
    ]
    if not shared:
        return f"{other.name} has no key of the mismatch in common with {run.name}."
    common = np.intersect1d(run.steps, other.steps)
    if not len(common):
        return f"{other.name} has no step in common with {run.name}: they cannot be compared."
    first_step, last_step = common[0], common[-1]
    if since is not None and since > last_step:
        return (
            f"{run.name} and {other.name} have the steps {first_step} to {last_step} in common, "
            f"and what is wrong in {run.name} begins after them, at step {since}: {other.name} "
            "does not show how a healthy run goes on."
        )
    if since is not None and since <= first_step:
        levels = [(pair, of) for pair in shared if (of := levels_apart(*pair)) is not None]
        if levels:
            keys = [f"{_keys_of(*pair)} {of[0]:.2g} and {of[1]:.2g}" for pair, of in levels[:SHOWN]]
            return (
                f"{run.name} differs from {other.name} from their first common step {first_step} "
                f"on: {', '.join(keys)}."
            )
    parted = {found: pair for pair in shared if (found := parting_of(*pair)) is not None}
    if parted:
        in_order = sorted(parted, key=lambda one: one.step)
        first = _of_the_fault(in_order, in_order[0].step if since is None else since)
        keys = [_keys_of(*parted[one]) for one in in_order if one.low <= first.step <= one.high]
        step, listed = first.step, ", ".join(keys[:SHOWN])
        return f"{run.name} deviates from {other.name} at step {step}: {listed}."
    few = f", which are too few to see one (it takes {FEWEST})" if len(common) < FEWEST else ""
    return (
        f"No key of the mismatch in {run.name} deviates from that in {other.name} over their "
        f"common steps {first_step} to {last_step}{few}."
    )


def _keys_of(one: Series, other: Series) -> str:
    """Name the key of a quantity in a run, and the one in another run where it differs."""
    return f"`{one.key}`{'' if other.key == one.key else f' (there `{other.key}`)'}"
