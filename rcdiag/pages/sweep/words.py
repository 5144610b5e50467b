"""Terminal and page say this about a sweep."""

from __future__ import annotations

from rcdiag.frozen import dataclass
from rcdiag.results import SweepResult
from rcdiag.results.sweep import WORTH, Candidate, Forecast, Recommendation

ANSWERS = {
    "take": "use",
    "no-correction": "no correction: no candidate has a lower error",
    "fix-the-cause": "fix the cause: no weights repair this table",
    "cannot-distinguish": "candidates cannot be distinguished on this table",
}


@dataclass(frozen=True, slots=True)
class Tested:
    """Whether something holds where it was tested: its level, a word and a sentence."""

    level: str
    word: str
    sentence: str


def forecast_test(forecast: Forecast) -> Tested:
    """Say whether the forecast of longer responses holds where it was tested."""
    if forecast.holds:
        return Tested("ok", "holds", "fitted on the shorter half, it predicts the longer half")
    if forecast.holds is None:
        return Tested("note", "not tested", "too few sequences of different lengths to test it")
    return Tested(
        "error",
        "fails",
        "its hold-out check failed: ignore it, especially for long responses",
    )


def answer(result: SweepResult) -> str:
    """Say what a sweep recommends."""
    advice = result.recommendation
    choice = f" {advice.choice}" if advice.answer == "take" else ""
    equals = as_good(advice)
    more = f"; as good: {', '.join(equals)}" if equals and choice else ""
    return f"{ANSWERS[advice.answer]}{choice}{more}"


def as_good(advice: Recommendation) -> list[str]:
    """Name the candidates whose expected error is the choice's, or less, or hardly more.

    Of the others that are within one standard error of the best, the table cannot tell it.
    """
    errors = {candidate.name: _error(candidate) for candidate in advice.candidates}
    chosen = errors.get(advice.choice or "")
    if chosen is None:
        return []
    others = [name for name in advice.indistinguishable if name != advice.choice]
    return [name for name in others if (errors[name] or 0.0) <= chosen + WORTH]


def _error(candidate: Candidate) -> float | None:
    """Return the expected squared error of a gradient, in units of uncorrected noise."""
    noise = candidate.gradient_noise
    return None if noise is None else (candidate.gradient_bias or 0.0) + noise
