"""One verdict from a training log: divides its steps into stretches and judges each of them."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rcdiag.diagnosis.case import Counts
from rcdiag.diagnosis.causes.cause import LIKELY, Suspicion, fact
from rcdiag.diagnosis.causes.weights import LARGEST_DRIFT
from rcdiag.diagnosis.change_points import FEWEST
from rcdiag.diagnosis.conclusion import gravity, named_cause, see_how, verdict_of
from rcdiag.diagnosis.confidence import probability
from rcdiag.diagnosis.logged.causes import CAUSES_OF_RUNS, found_in
from rcdiag.diagnosis.logged.causes.correction import COSTS_LITTLE
from rcdiag.diagnosis.logged.causes.found import ENGINE, OWN_TOKENS, undecided
from rcdiag.diagnosis.logged.causes.not_finite import steps_not_finite
from rcdiag.diagnosis.logged.causes.size import (
    beyond_by_far,
    beyond_rounding,
    few_tokens,
    steps_by_far,
)
from rcdiag.diagnosis.logged.changes import Change, changes_of, common, lasts
from rcdiag.diagnosis.logged.over_steps import (
    OF_SIZE,
    OF_UPDATE,
    at_rate_zero,
    in_bypass,
    of_period,
    of_training,
    over_steps,
    trained,
    what_the_update_compares,
)
from rcdiag.diagnosis.logged.run import FLOOR, LoggedRun, Series
from rcdiag.diagnosis.logged.window import SIZES, StepWindow, rms_of
from rcdiag.diagnosis.thresholds import (
    EQUAL,
    FEWEST_ROWS,
    HALF,
    MUCH_LARGER,
    RELATED,
    SHOWN,
    SURELY,
)
from rcdiag.formats import after_colon, from_to, listed
from rcdiag.results.diagnosis import (
    NOTHING_WRONG,
    Action,
    Diagnosis,
    MovedNumber,
    NamedCause,
    OverSteps,
)

# Quantities whose changes divide the steps into stretches. If none of OF_SIZE, which measure the
# size of the mismatch, changes, what it costs is used, and then the surprisals, which also change
# with entropy and length.
SURPRISALS = ("trainer_log_ppl", "sampler_log_ppl")
# A mismatch that creeps by this factor is one of weights that fall behind.
FELL_BEHIND = 4.0
# A growth by the square of the steps becomes this much larger over twice the steps.
OF_TWICE_THE_STEPS = 4.0
# Typical numbers of steps in a stretch and of mismatch keys: origin of the confidence's predictors.
USUAL_STEPS, USUAL_KEYS = 30, 10
NO_NUMBER = "The log holds no finite number that compares the sampler with the trainer."
STALE = ("stale-weights", "weights-never-synced")
OF_A_JUMP = ("quantised-weights", "weights-differ")


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
    periodic = of_period(run)
    changes = sorted(
        (change for one in run.series.values() for change in changes_of(one, periodic)),
        key=lambda change: change.step,
    )
    if not run.of_mismatch:
        return Judged(diagnosis=_nothing_compared(run, family, changes), changes=changes)
    stretches = _stretches(run, changes, periodic, steps_not_finite(run))
    in_stretches = ((window, _of_steps(window, found_in(window))) for window in stretches)
    of_run = (seen for look in CAUSES_OF_RUNS if (seen := look(run)) is not None)
    named = [
        (window, _by_course(run, changes, window, one))
        for window, one in (*of_run, *in_stretches)
        if one is not None
    ]
    faults = [(window, one) for window, one in named if one.slug not in NOTHING_WRONG]
    if not faults:
        # A number that changes elsewhere than the stretches may be by far beyond rounding there.
        since = (_since(run, change, changes) for change in changes)
        far = ((of, _of_steps(of, beyond_by_far(of))) for of in since)
        faults = [(of, one) for of, one in far if one is not None]
    if not faults:
        faults = [lone for window in stretches if (lone := _in_few_steps(window)) is not None]
    found = _each_once(run.steps[0], changes, faults or named[-1:])
    named_causes = [
        (_named_cause(window, one, _against(run, changes, window)), window) for window, one in found
    ]
    named_causes.sort(key=lambda one: gravity(one[0]))
    causes = [cause for cause, _ in named_causes]
    shown = named_causes[0][1] if causes else stretches[-1]
    slugs = {cause.slug for cause in causes}
    against = _against(run, changes, shown).items()
    ruled_out = {slug: why for slug, why in against if slug not in slugs}
    verdict = verdict_of(causes)
    began_at = causes[0].from_step if causes else None
    first = int(run.steps[0]) if began_at is None else began_at
    return Judged(
        diagnosis=Diagnosis(
            verdict=verdict,
            summary=causes[0].message if causes else _nothing_found(shown),
            pair=None,
            causes=causes,
            ruled_out=list(ruled_out),
            ruled_out_by=ruled_out,
            next=_next(family, verdict, changed=any(cause.from_step for cause in causes)),
            over_steps=OverSteps(
                says=over_steps(run, changes, periodic, first if faults else None),
                large_from=began_at,
                large_to=None,
                moved=[_moved(change) for change in changes],
            ),
        ),
        changes=changes,
        found=found,
        shown=shown,
    )


def _of_steps(window: StepWindow, found: Suspicion | None) -> Suspicion | None:
    """Say of which steps the numbers of a cause are, unless they are those of the whole run."""
    first, last = window.first, int(window.steps[-1])
    if found is None or (first, last) == (window.run.steps[0], window.run.steps[-1]):
        return found
    where = f"In step {first}" if first == last else f"In steps {first} to {last}"
    return replace(found, message=f"{where}: {after_colon(found.message)}")


def _since(run: LoggedRun, change: Change, changes: Sequence[Change]) -> StepWindow:
    """Return the steps from a change to the next one of its quantity."""
    steps = [step for step in run.steps.tolist() if lasts(change, changes, step)]
    return StepWindow(run, np.array(steps, np.int64))


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


def _stretches(
    run: LoggedRun, changes: Sequence[Change], periodic: Counts, bad: Counts
) -> list[StepWindow]:
    """Divide the steps at the changes of the series with the largest total gain.

    A gradual growth has no level: of its steps only the last quarter is a stretch, because the
    mismatch is largest there. The `periodic` steps are another one. Steps with NaN or infinity
    (`bad`) are in none. Fewer steps than a change takes are divided where the size is another.
    """
    first = int(run.steps[0])
    cuts, left_out = set(_of_another_size(run)), [periodic, bad]
    tiers = (OF_SIZE, (*COSTS_LITTLE, "rejected_count"), SURPRISALS)
    gains = {name: 0.0 for tier in tiers for name in tier}
    for change in changes:
        if change.quantity in gains:
            gains[change.quantity] += change.gain
    dividing = next((names for names in tiers if any(gains[name] for name in names)), SURPRISALS)
    clearest = max(dividing, key=lambda name: gains[name])
    for change in changes:
        if change.quantity == clearest:
            cuts.add(change.step)
            if change.shape == "creep":
                grown = _grown(run, change, changes)
                left_out.append(np.arange(change.step, grown))
    others = np.setdiff1d(run.steps, np.concatenate(left_out))
    parts = np.split(others, np.searchsorted(others, sorted(cuts - {first})))
    return [StepWindow(run, part) for part in (np.setdiff1d(periodic, bad), *parts) if len(part)]


def _of_another_size(run: LoggedRun) -> list[int]:
    """Return the steps of a short log with another size than all before: MUCH_LARGER, or smaller.

    Their median with those before would be the number of neither.
    """
    name = next((name for name in SIZES if name in run.series), None)
    if name is None or len(run.steps) >= FEWEST:
        return []
    series, sizes = run.series[name], rms_of(name, run.series[name].values)
    parts = ((step, sizes[:at], sizes[at:]) for at, step in enumerate(series.steps.tolist()) if at)
    return [
        step
        for step, then, now in parts
        if now.min() > MUCH_LARGER * then.max() or then.min() > MUCH_LARGER * now.max()
    ]


def _grown(run: LoggedRun, change: Change, changes: Sequence[Change]) -> int:
    """Return the first step of the last quarter of a growth."""
    during = [step for step in run.steps.tolist() if lasts(change, changes, step)]
    return int(during[-max(len(during) // 4, 1)])


def _each_once(start: int, changes: Sequence[Change], faults: Sequence[Shown]) -> list[Shown]:
    """Return each cause once: as the last stretch with it shows it, and the step at which it began.

    So its numbers are those of the present, if it is still there. The step is None if the cause is
    there from the first step on, or is none.
    """
    found = []
    for slug in dict.fromkeys(one.slug for _, one in faults):
        alike = [(window, _with_verdict(one)) for window, one in faults if one.slug == slug]
        window, one = max(alike, key=lambda of: int(of[0].steps[-1]))
        began = min(_began(changes, of) for of, _ in alike)
        since = None if began <= start or slug in NOTHING_WRONG else began
        found.append((window, replace(one, from_step=since)))
    return found


def _began(changes: Sequence[Change], window: StepWindow) -> int:
    """Return the step at which the state of a stretch began: its first step, or an earlier bend."""
    bends = [
        change.step
        for change in changes
        if change.shape == "creep"
        and change.quantity in OF_SIZE
        and lasts(change, changes, window.first)
    ]
    return min(bends, default=window.first)


def _by_course(
    run: LoggedRun, changes: Sequence[Change], window: StepWindow, found: Suspicion
) -> Suspicion:
    """Name weights that lag, or no rounding, where the course of the mismatch shows it."""
    if found.slug == "engine-noise":
        jump = next(
            (one for one in changes if _jumps(one) and lasts(one, changes, window.first)), None
        )
        if jump is not None:
            return _changes_size(jump, found)
        still = (one for one in _growths(changes) if window.first >= _grown(run, one, changes))
        here = next((one for one in still if lasts(one, changes, window.first)), None)
        return found if here is None else _changes_size(here, found)
    if found.slug == "forwards-differ" and (why := at_rate_zero(run, changes)):
        return replace(found, message=f"{found.message} {why}")
    size = _size_of(run)
    if found.slug != "forwards-differ" or found.verdict == "broken" or size is None:
        return found
    if few_tokens(window) is not None:
        return found
    staleness = run.series.get("staleness")
    if staleness is not None and (r := _rank_correlation(size, staleness)) > RELATED:
        return _as(
            found,
            "stale-weights",
            f"`{size.key}` follows `{staleness.key}` (rank correlation {r:.2f}): the sampler's "
            "weights lag.",
            fact(staleness.key, "the mismatch grows with it", rank_correlation=round(r, 2)),
            ("forwards-differ", "weights-never-synced"),
        )
    drift = _drift(run, changes)
    if drift is None or not _at_pace(size, drift):
        return found
    grows = (
        f"`{drift.key}` grows steadily from step {drift.step} on, from "
        f"{from_to(drift.before, drift.after)}"
    )
    evidence = fact(drift.key, "grows with the steps", before=drift.before, after=drift.after)
    by_lag = (window.rms or 0.0) <= LARGEST_DRIFT
    of_weights = (*(STALE if by_lag else STALE[1:]), "weights-differ", "reference-as-old")
    if _of_updates(run, changes, drift):
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


def _size_of(run: LoggedRun) -> Series | None:
    return next((run.series[name] for name in (*SIZES, "k1") if name in run.series), None)


def _growths(changes: Sequence[Change]) -> list[Change]:
    """Return the growths of the mismatch by many times."""
    return [
        change
        for change in changes
        if change.quantity in (*SIZES, "prob_diff", "k1")
        and change.shape == "creep"
        and change.after > FELL_BEHIND * max(change.before, FLOOR)
    ]


def _drift(run: LoggedRun, changes: Sequence[Change]) -> Change | None:
    """Return the growth of a mismatch's size while the weights are updated, or None."""
    size = _size_of(run)
    growths = (one for one in _growths(changes) if size and one.quantity == size.quantity.name)
    return next((one for one in growths if trained(run, one.low)), None)


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


def _of_updates(run: LoggedRun, changes: Sequence[Change], growth: Change) -> bool:
    """Tell whether weights that are never synced are the likeliest cause of a growth.

    They begin as equal weights, with no more than rounding between the two sides, and drift apart
    by more than noise grows with the entropy: by 1 - exp(-entropy) at most. They are not the cause
    if the log has a staleness that does not grow. A sampler that keeps its weights also keeps the
    mean length and the mean reward of its responses.
    """

    def of(name: str) -> list[Change]:
        return [one for one in changes if one.quantity == name]

    noise, entropy = growth.before, of("entropy")
    if entropy and min(entropy[0].before, entropy[-1].after) > 0.0:
        noise *= math.expm1(-entropy[-1].after) / math.expm1(-entropy[0].before)
    stale = "staleness" not in run.series or any(one.after > one.before for one in of("staleness"))
    more_than_noise = growth.after > FELL_BEHIND * noise
    equal_before = not beyond_rounding(growth.quantity, growth.before)
    kept = not of("response_length") and not of("reward")
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


def _against(run: LoggedRun, changes: Sequence[Change], window: StepWindow) -> dict[str, str]:
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
    if why := at_rate_zero(run, changes):
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
    drift = _drift(run, changes)
    of_window = drift is not None and lasts(drift, changes, window.first)
    if drift is not None and of_window and not beyond_rounding(drift.quantity, drift.before):
        at_once = f"`{drift.key}` grows from rounding: such a fault is there at once"
        against |= dict.fromkeys(("shift-by-one", "rows-swapped"), at_once)
        if all(one.quantity != "response_length" for one in changes):
            against["context-differs"] = at_once
    return against


def _nothing_found(window: StepWindow) -> str:
    """Say why a log with keys of the mismatch shows nothing."""
    if window.k3_below_zero is None:
        return NO_NUMBER
    key = window.run.series["k3"].key
    return (
        f"`{key}` is {window.k3_below_zero:.2g}, and a mean of ratio - 1 - log_ratio is never "
        "below 0: the key holds another quantity, and the log has no other size of the mismatch."
    )


def _nothing_compared(run: LoggedRun, family: str | None, changes: Sequence[Change]) -> Diagnosis:
    others = [one.key for name, one in run.series.items() if name not in OF_UPDATE]
    has = f" (it has {', '.join(f'`{key}`' for key in others[:SHOWN])})" if others else ""
    none = "of the mismatch alone" if in_bypass(run) else "that compares sampler and trainer"
    compares = what_the_update_compares(run)
    return Diagnosis(
        verdict="inconclusive",
        summary=f"The log holds no number {none}{has}. {compares}".strip(),
        pair=None,
        causes=[],
        next=_next(family, "inconclusive", changed=bool(changes)),
        over_steps=OverSteps(
            says=of_training(run, changes),
            large_from=None,
            large_to=None,
            moved=[_moved(change) for change in changes],
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
