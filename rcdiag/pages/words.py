"""The words and number formats that terminal and page share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rcdiag.results import (
    SEVERITIES,
    CompareResult,
    CorrectionResult,
    Finding,
    MetricValue,
    ReplayResult,
    ScoreResult,
    SweepResult,
    worst_severity,
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer in one word and one sentence."""

    level: str  # ok, warning or error
    word: str
    sentence: str


def number(value: float | None) -> str:
    """Three significant digits; more near 1, where the distance from it is what matters."""
    if value is None:
        return "n/a"
    if 1e-12 < abs(value - 1.0) < 1e-4:
        return f"1 {'+' if value > 1 else '−'} {abs(value - 1.0):.2g}"
    return f"{value:.5g}" if 0.9 < value < 1.1 else f"{value:.3g}"


def interval(value: MetricValue) -> str:
    """Both ends, or nothing."""
    return "" if value.low is None else f"{number(value.low)} … {number(value.high)}"


def percent(value: MetricValue) -> str:
    """A share in whole per cent, a small one with a digit more."""
    if value.value is None:
        return "n/a"
    return f"{100.0 * value.value:.{0 if abs(value.value) >= 0.1 else 1}f}%"


def clusters(result: ScoreResult) -> str:
    """What intervals are made from."""
    if result.num_clusters < result.num_sequences:
        return f"{result.num_clusters:,} prompt groups"
    return f"{result.num_clusters:,} sequences (the table has no groups of several)"


@dataclass(frozen=True, slots=True)
class CorrectionRow:
    """One line of the table of presets."""

    name: str
    kept_tokens: str
    kept_sequences: str
    ess_tokens: str
    ess_sequences: str
    k_hat: str
    lost_mass: str
    level: str


def correction_rows(result: ScoreResult) -> list[CorrectionRow]:
    """Every correction on the whole table, in honest numbers."""
    return [
        CorrectionRow(
            name,
            _share(each.kept_tokens, result.num_tokens),
            _share(each.kept_sequences, result.num_sequences),
            _fraction(each.honest["ess_token_applied"]),
            _fraction(each.honest["ess_seq_applied"]),
            "" if each.honest["khat"] is None else f"{each.honest['khat']:.2f}",
            _fraction(_worst_lost(each)),
            each.level or "",
        )
        for name, each in result.corrections.items()
    ]


def _worst_lost(correction: CorrectionResult) -> float | None:
    lost = [correction.honest[f"lost_target_mass_{level}"] for level in ("token", "seq")]
    return max((value for value in lost if value is not None), default=None)


def _fraction(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"


def _share(part: int, whole: int) -> str:
    return "100%" if part == whole else f"{100.0 * part / whole:.1f}%"


def _of_score(result: ScoreResult) -> Verdict:
    k3 = number(result.mismatch["k3_kl"].value)
    return _verdict(
        result.findings, f"KL({result.behavior} || {result.target}) is {k3} nats per token"
    )


WORDS = {"error": "bad", "warning": "doubtful"}


def _verdict(findings: list[Finding], sentence: str) -> Verdict:
    """The worst finding decides; notes do not count against a run."""
    counts = [
        f"{count} {severity}{'s' if count > 1 else ''}"
        for severity in reversed(SEVERITIES)
        if (count := sum(finding.severity == severity for finding in findings))
    ]
    worst = worst_severity(findings)
    level = worst if worst in WORDS else "ok"
    said = f"{sentence}; {', '.join(counts) or 'no findings'}"
    return Verdict(level, WORDS.get(level, "fine"), said)


def _of_compare(result: CompareResult) -> Verdict:
    ladder = result.ladder
    near = f"nearest to the sampler: {', '.join(result.nearest) or 'not known'}"
    if not ladder.rungs:
        return _verdict(result.findings, near)
    whole = f"{ladder.policies[0]} → {ladder.policies[-1]}: k2 {number(ladder.whole.value)} nats"
    steps = sorted(ladder.rungs, key=lambda rung: -(rung.contribution.value or 0.0))
    most = f"{steps[0].start} → {steps[0].end} adds {percent(steps[0].share)} of it"
    more = f", {most}" if len(steps) > 1 and steps[0].share.value is not None else ""
    return _verdict(result.findings, f"{whole} per token{more}; {near}")


ANSWERS = {
    "correct": "take",
    "do-not-correct": "do not correct: no estimator is better than none",
    "fix-the-cause": "fix the cause, do not correct",
    "cannot-judge": "cannot judge",
}


def _of_sweep(result: SweepResult) -> Verdict:
    advice = result.recommendation
    choice = f" {advice.choice}" if advice.answer == "correct" else ""
    others = [name for name in advice.indistinguishable if name != advice.choice]
    more = f"; as good: {', '.join(others)}" if others and choice else ""
    return _verdict(result.findings, f"{ANSWERS[advice.answer]}{choice}{more}")


def _of_replay(result: ReplayResult) -> Verdict:
    """As good as its best preset; the update without any correction is only shown."""
    corrected = {n: each for n, each in result.presets.items() if each.mode != "naive"}
    naive = [each.health.verdict for n, each in result.presets.items() if n not in corrected]
    verdicts = [each.health.verdict for each in corrected.values()]
    counts = [
        f"{count} {word}"
        for word in ("ok", "warning", "error", "cannot judge")
        if (count := verdicts.count(word))
    ]
    said = f"{len(verdicts)} preset{'s' if len(verdicts) != 1 else ''}: {', '.join(counts)}"
    if naive:
        said += f" (without correction: {naive[0]})"
    found = _verdict(result.findings, said)
    if found.level == "error" or "ok" in verdicts:
        return found
    best = "error" if set(verdicts) == {"error"} else "warning"
    return Verdict(best, WORDS[best], found.sentence)


VERDICTS: dict[str, Callable[[Any], Verdict]] = {
    "score": _of_score,
    "compare": _of_compare,
    "sweep": _of_sweep,
    "replay": _of_replay,
}
