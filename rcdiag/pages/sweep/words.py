"""Terminal and page say this about a sweep."""

from __future__ import annotations

from rcdiag.results import SweepResult

ANSWERS = {
    "correct": "take",
    "do-not-correct": "do not correct: no estimator is better than none",
    "fix-the-cause": "fix the cause, do not correct",
    "cannot-judge": "cannot judge",
}


def answer(result: SweepResult) -> str:
    """Say what a sweep recommends."""
    advice = result.recommendation
    choice = f" {advice.choice}" if advice.answer == "correct" else ""
    equals = [name for name in advice.indistinguishable if name != advice.choice]
    more = f"; as good: {', '.join(equals)}" if equals and choice else ""
    return f"{ANSWERS[advice.answer]}{choice}{more}"
