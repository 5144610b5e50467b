"""The causes that the numbers of a log rule out."""

from __future__ import annotations

from rcdiag.diagnosis.logged.causes.found import OWN_TOKENS
from rcdiag.diagnosis.logged.causes.size import beyond_rounding
from rcdiag.diagnosis.logged.course import Course
from rcdiag.diagnosis.logged.over_steps import at_rate_zero
from rcdiag.diagnosis.logged.window import StepWindow
from rcdiag.diagnosis.thresholds import EQUAL, HALF, SURELY


def ruled_out(course: Course, window: StepWindow) -> dict[str, str]:
    """Return the causes that the numbers of a window rule out: cause -> the numbers, by key.

    A fault of alignment or contexts is there at once: it is none that grows with the updates from a
    mismatch of rounding, whatever its size then. Longer responses may be cut, and so may contexts.

    A mean does not rule out placeholders of 0, which may stand at a part of the tokens. The largest
    log-ratio does: a placeholder changes a log-prob by the surprisal, and exchanged tokens differ
    as surprisals do, some of which are above their mean.
    """
    against: dict[str, str] = {}
    names = ("sampler_log_ppl", "trainer_log_ppl")
    surprisals = [x for name in names if (x := window.number(name)) is not None]
    if len(surprisals) == len(names) and min(surprisals) > EQUAL:
        keys = " and ".join(f"`{window.key(name)}` {window.number(name):.2g}" for name in names)
        positive = f"{keys}: mean surprisals are above 0, as those of log-probs"
        against |= dict.fromkeys(("sign-flipped", "probabilities-stored"), positive)
    if window.rms is not None and window.rms > 0:
        against["columns-identical"] = f"`{window.key_of_size}` is not 0"
    pearson = window.number("pearson")
    if pearson is not None and pearson > OWN_TOKENS:
        related = f"`{window.key('pearson')}` {pearson:.2g}: the values stand at their own tokens"
        against |= dict.fromkeys(("shift-by-one", "rows-swapped"), related)
    largest, surprisal = window.largest, window.number("sampler_log_ppl")
    surprisal = window.number("entropy") if surprisal is None else surprisal
    if largest is not None and surprisal is not None and largest[1] < surprisal:
        at_most = (
            f"`{largest[0]}`: no token differs by more than {largest[1]:.2g} nats, less than the "
            f"mean surprisal of {surprisal:.2g}"
        )
        against |= dict.fromkeys(("zero-placeholder", "shift-by-one", "rows-swapped"), at_most)
    if why := at_rate_zero(course):
        against["stale-weights"] = why
    k1 = window.k1
    if k1 is not None and k1.value > 0 and k1.z > SURELY:
        against["temperature-raw-recorded"] = (
            f"`{k1.key}` {k1.value:.2g}: the trainer does not find the tokens likelier"
        )
    size, entropy = window.number("abs_diff"), window.number("entropy")
    if size is not None and entropy is not None and size < HALF * entropy:
        near = (
            f"`{window.key('abs_diff')}` {size:.2g} beside `{window.key('entropy')}` "
            f"{entropy:.2g}: log-probs of unrelated tokens differ by about their own size"
        )
        against |= dict.fromkeys(("shift-by-one", "rows-swapped"), near)
    drift = course.drift
    of_window = drift is not None and course.lasts(drift, window.first)
    if drift is not None and of_window and not beyond_rounding(drift.quantity, drift.before):
        at_once = f"`{drift.key}` grows from rounding: such a fault is there at once"
        against |= dict.fromkeys(("shift-by-one", "rows-swapped"), at_once)
        if not course.changes_in("response_length"):
            against["context-differs"] = at_once
    return against
