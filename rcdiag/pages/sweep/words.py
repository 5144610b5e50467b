"""Terminal and page say this about a sweep."""

from __future__ import annotations

from rcdiag.pages.verdict import Verdict, by_findings
from rcdiag.results import SweepResult
from rcdiag.results.sweep import Forecast

ANSWERS = {
    "correct": "take",
    "do-not-correct": "do not correct: no estimator is better than none",
    "fix-the-cause": "fix the cause, do not correct",
    "cannot-judge": "cannot judge",
}


def forecast_verdict(forecast: Forecast) -> Verdict:
    """Return whether the forecast of longer responses holds where it was tested."""
    if forecast.holds:
        return Verdict("ok", "holds", "fitted on the shorter half, it holds in the longer half")
    if forecast.holds is None:
        return Verdict("note", "not tested", "too few sequences of different lengths to test it")
    return Verdict(
        "error",
        "fails",
        "fitted on the shorter half, it misses the longer half: do not believe it, and the less "
        "the longer the response",
    )


def verdict(result: SweepResult) -> Verdict:
    """Return the verdict on a sweep: what it recommends."""
    advice = result.recommendation
    choice = f" {advice.choice}" if advice.answer == "correct" else ""
    equals = [name for name in advice.indistinguishable if name != advice.choice]
    more = f"; as good: {', '.join(equals)}" if equals and choice else ""
    return by_findings(result.findings, f"{ANSWERS[advice.answer]}{choice}{more}")
