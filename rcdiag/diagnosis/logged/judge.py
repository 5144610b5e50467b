"""One verdict from training logs: which steps are alike, what each stretch shows, what moved."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from msgspec import Struct

from rcdiag.diagnosis.causes.catalogue import CAUSES
from rcdiag.diagnosis.causes.cause import LIKELY, fact
from rcdiag.diagnosis.confidence import COEFFICIENTS, MOST
from rcdiag.diagnosis.judge import DECIDES
from rcdiag.diagnosis.logged.causes import ENGINE, SIZES, Found, found_in
from rcdiag.diagnosis.logged.changes import (
    Change,
    changes_of,
    parting_of,
    period_of,
    spikes_of,
)
from rcdiag.diagnosis.logged.run import LoggedRun
from rcdiag.diagnosis.logged.window import Window
from rcdiag.results.diagnosis import (
    NOTHING_WRONG,
    Action,
    Diagnosis,
    MovedNumber,
    NamedCause,
    OverSteps,
)

# The quantities by whose changes the steps are divided: the size of a mismatch, as far as it is
# logged, and the surprisals, which a broken column moves.
DIVIDING = (
    *SIZES,
    "pearson",
    "prob_diff",
    "trainer_log_ppl",
    "sampler_log_ppl",
    "k1",
)
# A mismatch that creeps from rounding by this factor of k3 is one of weights that fall behind.
FELL_BEHIND = 4.0
# Rank correlation of the mismatch with the staleness of its weights, over at least FEWEST steps.
FOLLOWS, FEWEST = 0.6, 8
# A mismatch after its changes is back where it was before within this factor.
BACK = 2.0
ORDER = ("broken", "inconclusive", "correctable", "healthy")  # of causes by their verdicts
# Steps of a stretch, and keys of a mismatch, from which the confidence is counted.
USUAL_STEPS, USUAL_KEYS = 30, 10
NO_NUMBER = "The log holds no finite number that compares the sampler with the trainer."
SHOWN = 4  # numbers of a sentence
STALE = ("stale-weights", "weights-never-synced")


class Judged(Struct, frozen=True, kw_only=True):
    """What one run's log shows."""

    diagnosis: Diagnosis
    changes: Sequence[Change]
    # The evidence of each cause, its stretch, and the step that it began at.
    found: Mapping[Found, tuple[Window, int | None]] = {}
    last: Window | None = None  # the last stretch of steps; None without a number of the mismatch


def judge(
    run: LoggedRun, *, family: str | None = None, given: Mapping[str, Any] | None = None
) -> Judged:
    """Judge a run by its log; `family` names the trainer, `given` facts such as `vocab_size`."""
    changes = sorted(
        (change for one in run.series.values() for change in changes_of(one)),
        key=lambda change: change.step,
    )
    if not run.of_mismatch:
        return Judged(diagnosis=_nothing_compared(run, family), changes=changes)
    stretches = _stretches(run, changes, given or {})
    found = [(window, found_in(window)) for window in stretches]
    named = [(window, one) for window, one in found if one is not None]
    faults = [(window, one) for window, one in named if one.slug not in NOTHING_WRONG]
    began = _each_once(run, changes, faults or named[-1:])
    causes = sorted(
        (_named_cause(one, window, step) for one, (window, step) in began.items()),
        key=lambda one: (ORDER.index(one.verdict), -one.confidence),
    )
    verdict = _verdict(causes)
    return Judged(
        diagnosis=Diagnosis(
            verdict=verdict,
            summary=causes[0].message if causes else NO_NUMBER,
            pair=None,
            causes=causes,
            ruled_out=_ruled_out(stretches[-1], causes),
            next=_next(family, verdict),
            over_steps=OverSteps(
                says=_over_steps(run, changes, faults),
                large_from=causes[0].from_step if causes else None,
                large_to=None,
                moved=[_moved(change) for change in changes],
            ),
        ),
        changes=changes,
        found=began,
        last=stretches[-1],
    )


def _moved(change: Change) -> MovedNumber:
    return MovedNumber(
        name=change.key,
        moved_at=change.step,
        median_before=float(f"{change.before:.4g}"),
        median_after=float(f"{change.after:.4g}"),
    )


def _stretches(run: LoggedRun, changes: Sequence[Change], given: Mapping[str, Any]) -> list[Window]:
    """Divide the steps where the mismatch changes, as the series with the clearest changes has it.

    A number that stops being finite divides them too. After a bend the last quarter counts: there
    the mismatch has grown.
    """
    first, last = int(run.steps[0]), int(run.steps[-1])
    cuts = set()
    gains = {
        name: sum(change.gain for change in changes if change.quantity == name) for name in DIVIDING
    }
    clearest = max(gains, key=lambda name: gains[name])
    for change in changes:
        if change.quantity == clearest:
            cuts.add(change.step)
            if change.shape == "creep":
                cuts.add(_grown(run, change.step, last))
    for one in run.of_mismatch:
        bad = one.steps[~np.isfinite(one.values)]
        if len(bad):
            cuts.add(int(bad[0]))
    edges = sorted({first, *cuts})
    ends = [edge - 1 for edge in edges[1:]] + [last]
    return [Window(run, start, end, given) for start, end in zip(edges, ends, strict=True)]


def _grown(run: LoggedRun, step: int, last: int) -> int:
    after = run.steps[(run.steps >= step) & (run.steps <= last)]
    return int(after[-max(len(after) // 4, 1)])


def _each_once(
    run: LoggedRun, changes: Sequence[Change], faults: Sequence[tuple[Window, Found]]
) -> dict[Found, tuple[Window, int | None]]:
    """Return the causes of the stretches, each with its stretch and its first step.

    The step is None where a cause holds from the beginning on.
    """
    causes: dict[str, tuple[Found, tuple[Window, int | None]]] = {}
    for window, found in faults:
        one, began = _by_course(run, changes, found), _began(changes, window)
        step = None if began <= run.steps[0] else began
        causes.setdefault(one.slug, (one, (window, step)))
    return dict(causes.values())


def _began(changes: Sequence[Change], window: Window) -> int:
    """Return the step at which a stretch's state began: of a bend, that of the bend."""
    bends = [
        change.step
        for change in changes
        if change.shape == "creep" and change.quantity in DIVIDING and change.step <= window.first
    ]
    return min(bends, default=window.first)


def _by_course(run: LoggedRun, changes: Sequence[Change], found: Found) -> Found:
    """Name weights that lag where the course of the mismatch over the steps shows it."""
    if found.slug != "forwards-differ" or found.verdict == "broken":
        return found
    size = next((run.series[name] for name in SIZES if name in run.series), None)
    if size is None:
        return found
    staleness = run.series.get("staleness")
    if staleness is not None and (r := _rank_correlation(size, staleness)) > FOLLOWS:
        return _as(
            found,
            "stale-weights",
            LIKELY,
            f"`{size.key}` follows `{staleness.key}` (rank correlation {r:.2f}): the weights that "
            "sampled lag.",
            fact(staleness.key, "the mismatch grows with it", rank_correlation=round(r, 2)),
        )
    bends = [
        change
        for change in changes
        if change.quantity == size.quantity.name
        and change.shape == "creep"
        and change.after > FELL_BEHIND * max(change.before, 1e-7)
    ]
    if bends:
        one = bends[0]
        return _as(
            found,
            "weights-never-synced",
            LIKELY,
            f"`{one.key}` grows steadily from step {one.step} on, from {one.before:.2g} to "
            f"{one.after:.2g}: the weights that sample fall behind those that train.",
            fact(one.key, "grows with the steps", before=one.before, after=one.after),
        )
    return found


def _as(found: Found, slug: str, score: float, message: str, evidence: dict[str, Any]) -> Found:
    return Found(
        slug=slug,
        score=score,
        message=message,
        evidence=[evidence, *found.evidence],
        verdict="correctable",
        also_possible=("forwards-differ", *(one for one in STALE if one != slug)),
    )


def _rank_correlation(one: Any, other: Any) -> float:
    _, here, there = np.intersect1d(one.steps, other.steps, return_indices=True)
    x, y = one.values[here], other.values[there]
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) < FEWEST or np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    from scipy.stats import spearmanr

    return float(spearmanr(x, y).statistic)


def _named_cause(found: Found, window: Window, step: int | None) -> NamedCause:
    words = CAUSES[found.slug].words
    verdict = found.verdict or words.verdict
    if verdict == "guides":
        verdict = "healthy"
    actions = [] if verdict == "healthy" else [Action(text=text) for text in words.mend[:2]]
    if actions:
        actions.append(
            Action(text="In each engine and trainer", command=f"rcdiag explain {found.slug}")
        )
    return NamedCause(
        slug=found.slug,
        verdict=verdict,
        confidence=confidence(found, window),
        side=found.side or words.side,
        share_of_rows=1.0,
        message=found.message,
        evidence=list(found.evidence),
        actions=actions,
        also_possible=[slug for slug in found.also_possible if slug != found.slug],
        from_step=step,
    )


def predictors(found: Found, window: Window) -> dict[str, float]:
    """Return what the confidence in a cause is computed from, by name; all are bounded."""
    steps = int(((window.run.steps >= window.first) & (window.run.steps <= window.last)).sum())
    size = 0.0 if window.rms is None else math.log10(max(window.rms, 1e-4) / ENGINE)
    return {
        "constant": 1.0,
        "score": math.log(found.score / (1.0 - found.score)),
        "umbrella": float(CAUSES[found.slug].words.family == "umbrellas"),
        "steps": math.log10(max(steps, 1) / USUAL_STEPS),
        "keys": math.log10(max(len(window.run.of_mismatch), 1) / USUAL_KEYS),
        "size": min(max(size, -2.0), 2.0),
    }


def confidence(found: Found, window: Window) -> float:
    """Return the probability that a cause that a log shows with such evidence is right."""
    weights = _coefficients()
    total = sum(weights[name] * value for name, value in predictors(found, window).items())
    return round(min(1.0 / (1.0 + math.exp(-total)), MOST), 3)


@cache
def _coefficients() -> dict[str, float]:
    weights: dict[str, float] = tomllib.loads(COEFFICIENTS.read_text())["log"]["coefficients"]
    return weights


def _verdict(causes: Sequence[NamedCause]) -> str:
    """Return the verdict of the causes; a fault that is too unsure to decide leaves it open."""
    if not causes:
        return "inconclusive"
    first = causes[0]
    if first.verdict == "broken" and first.confidence < DECIDES:
        return "inconclusive"
    return first.verdict


def _over_steps(
    run: LoggedRun, changes: Sequence[Change], faults: Sequence[tuple[Window, Found]]
) -> str:
    """Say what moved first, and what came with it."""
    said = []
    of_mismatch = [change for change in changes if run.series[change.quantity].quantity.mismatch]
    if of_mismatch and faults:
        first = of_mismatch[0]
        together = [one for one in of_mismatch if one.low <= first.high][:SHOWN]
        named = ", ".join(f"`{one.key}` ({one.before:.2g} to {one.after:.2g})" for one in together)
        when = f"step {first.step}"
        if first.low < first.high:
            when += f" (95%: {first.low} to {first.high})"
        verb = f"From {when} on" if first.shape == "creep" else f"At {when}"
        said.append(f"{verb} {named}.")
        beside = [
            one
            for one in changes
            if not run.series[one.quantity].quantity.mismatch and one.step >= first.low
        ][:SHOWN]
        if beside:
            later = ", ".join(
                f"`{one.key}` at step {one.step} ({one.before:.2g} to {one.after:.2g})"
                for one in beside
            )
            said.append(f"Later {later}.")
        again = [one for one in of_mismatch if one.quantity == first.quantity]
        back = next((one for one in again[1:] if one.after < BACK * first.before), None)
        if back is not None and first.after > first.before:
            said.append(
                f"`{back.key}` falls back at step {back.step}, as after a restart, a weight sync "
                "or an emptied cache."
            )
    rate = run.series.get("learning_rate")
    if faults and rate is not None and len(rate.values) and np.abs(rate.values).max() == 0.0:
        said.append("The learning rate is 0: no update explains a mismatch that grows.")
    for name in ("k3", "abs_diff", "prob_diff"):
        if name in run.series and (period := period_of(spikes_of(run.series[name]))) is not None:
            said.append(
                f"`{run.series[name].key}` spikes every {period} steps, as at an evaluation or a "
                "checkpoint."
            )
            break
    healthy = [
        name
        for name in ("ppo_kl", "clip_fraction")
        if faults and name in run.series and not any(one.quantity == name for one in changes)
    ]
    if healthy:
        keys = " and ".join(f"`{run.series[name].key}`" for name in healthy)
        said.append(f"{keys} compare old with current log-probs and say nothing of the sampler.")
    steps = f"steps {run.steps[0]} to {run.steps[-1]}"
    return " ".join(said) or f"no number of the mismatch moves over {steps}"


def parting(run: LoggedRun, other: LoggedRun) -> str:
    """Say where a run leaves another one: the keys of the mismatch that do so first."""
    parted = [
        found
        for one in run.of_mismatch
        if one.quantity.name in other.series
        and (found := parting_of(one, other.series[one.quantity.name])) is not None
    ]
    if not parted:
        return f"No key of the mismatch leaves that of {other.name}."
    first = min(parted, key=lambda change: change.step)
    keys = [f"`{one.key}`" for one in parted if one.low <= first.high][:SHOWN]
    return f"Leaves {other.name} at step {first.step}: {', '.join(keys)}."


def _ruled_out(window: Window, causes: Sequence[NamedCause]) -> list[str]:
    """Return causes that the numbers of the last steps speak against."""
    against = []
    sampler, trainer = window.number("sampler_log_ppl"), window.number("trainer_log_ppl")
    if sampler is not None and trainer is not None and min(sampler, trainer) > 1e-6:
        against += ["sign-flipped", "zero-placeholder", "probabilities-stored"]
    if window.rms is not None and window.rms > 0:
        against.append("columns-identical")
    pearson = window.number("pearson")
    if pearson is not None and pearson > 0.9:
        against += ["shift-by-one", "rows-swapped"]
    k1 = window.k1
    if k1 is not None and k1.value > 0 and k1.z > 4:
        against.append("temperature-raw-recorded")
    named = {cause.slug for cause in causes}
    return [slug for slug in against if slug not in named]


def _nothing_compared(run: LoggedRun, family: str | None) -> Diagnosis:
    keys = ", ".join(f"`{one.key}`" for one in list(run.series.values())[:SHOWN])
    return Diagnosis(
        verdict="inconclusive",
        summary="The log holds no number that compares the sampler with the trainer"
        + (f" (it has {keys})." if keys else "."),
        pair=None,
        causes=[],
        next=_next(family, "inconclusive"),
    )


def _next(family: str | None, verdict: str) -> list[Action]:
    """Name the cheapest thing that tells more than a log: which dump to write, and what to run."""
    if verdict == "healthy":
        return []
    known = tomllib.loads(files(__package__).joinpath("dumps.toml").read_text(encoding="utf-8"))
    of = known.get(family or "")
    if of is None:
        return [
            Action(
                text="write tokens and both log-probs of two steps with rcdiag.Recorder "
                "(docs/recording.md), one before and one after the change",
                command="rcdiag score dump/",
            )
        ]
    return [
        Action(
            text=f"write a dump of two steps, one before and one after the change: {of['option']}",
            command=f"rcdiag score {of['dump']}",
        )
    ]
