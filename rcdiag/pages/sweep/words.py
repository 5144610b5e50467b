"""Sentences about a sweep, for terminal and page."""

from __future__ import annotations

from msgspec import Struct

from rcdiag.formats import NOT_AVAILABLE
from rcdiag.pages.command_again import sweep_command
from rcdiag.results import SweepResult
from rcdiag.results.forecast import Forecast
from rcdiag.results.sweep import WORTH, Candidate, Recommendation

NEAREST = 4  # candidates that a screen shows besides the choice
ANSWERS = {
    "take": "use",
    "no-correction": "no correction: no candidate is significantly better than none",
    "fix-the-cause": "nothing is ranked: fix the cause first",
    "cannot-distinguish": "the table does not show which correction is best",
}


class HoldOutTest(Struct, frozen=True):
    """The result of a hold-out test: its level, a word and a sentence."""

    level: str
    word: str
    sentence: str


def forecast_test(forecast: Forecast) -> HoldOutTest:
    """Say whether the forecast of longer responses passed its hold-out test."""
    if forecast.holds:
        return HoldOutTest(
            "ok", "holds", "fitted on the shorter half, it predicts longer responses"
        )
    if forecast.holds is None:
        return HoldOutTest("note", "not tested", "too few lengths to test it on longer responses")
    return HoldOutTest(
        "error",
        "fails",
        "fitted on the shorter half, it misses the longer half: ignore it for longer responses",
    )


def answer(result: SweepResult) -> str:
    """Say what a sweep recommends, and which candidates are as good."""
    equals = as_good(result.recommendation) if result.recommendation.answer == "take" else []
    return "; as good: ".join(filter(None, [recommended(result), ", ".join(equals)]))


def recommended(result: SweepResult) -> str:
    """Say what a sweep recommends; if weights are valid but do not help, what does instead."""
    advice = result.recommendation
    valid = result.diagnosis is not None and result.diagnosis.verdict == "correctable"
    if valid and advice.answer == "no-correction":
        none = "no candidate is significantly better than none"
        return f"weights are valid, but {none}: remove the cause"
    if valid and advice.answer == "cannot-distinguish":
        return f"weights are valid, but {ANSWERS[advice.answer]}: remove the cause first"
    return f"{ANSWERS[advice.answer]}{f' {advice.choice}' if advice.answer == 'take' else ''}"


def chosen(advice: Recommendation) -> str:
    """Return the name of the choice, or say why there is none."""
    if advice.choice is not None:
        return "none: train without a correction" if advice.choice == "none" else advice.choice
    if unranked(advice):
        return "none until the cause is fixed"
    return "no choice: candidates cannot be distinguished"


def unranked(advice: Recommendation) -> bool:
    """Tell whether nothing is ranked because no weights repair the table."""
    return advice.answer == "fix-the-cause"


def as_good(advice: Recommendation) -> list[str]:
    """Return the candidates whose expected error is at most slightly above that of the choice.

    Others within one standard error of the best cannot be distinguished from it by this table.
    """
    errors = {candidate.name: error(candidate) for candidate in advice.candidates}
    chosen = errors.get(advice.choice or "")
    if chosen is None:
        return []
    others = [name for name in advice.indistinguishable if name != advice.choice]
    return [name for name in others if (errors[name] or 0.0) <= chosen + WORTH]


def error(candidate: Candidate) -> float | None:
    """Return the squared error of a batch's gradient, relative to its variance uncorrected."""
    variance = candidate.gradient_noise
    return None if variance is None else (candidate.gradient_bias or 0.0) + variance


def nearest(advice: Recommendation) -> list[Candidate]:
    """Return the choice, no correction, and the other candidates with the smallest error.

    Refused candidates are left out, and so are those with the same numbers as one in the list.
    """
    measured = [one for one in advice.candidates if one.gradient_noise is not None]
    allowed = [one for one in measured if not one.refused or one.name == "none"]
    first = [one for name in (advice.choice, "none") for one in allowed if one.name == name]
    ordered = sorted(allowed, key=lambda one: error(one) or 0.0)
    named: dict[tuple[float | None, ...], Candidate] = {}
    for one in (*first, *ordered):
        named.setdefault((one.gradient_bias, one.gradient_bias_high, one.gradient_noise), one)
    return list(named.values())[: NEAREST + 1]


def term(value: float | None) -> str:
    """Format a term of the error: 1 is the variance of a batch, and hundredths of it are noise."""
    return NOT_AVAILABLE if value is None else f"{value:.2f}"


def parts(candidate: Candidate) -> str:
    """Format the error of a candidate: `bias² 0.00 (up to 2.37) + variance 1.00`."""
    if candidate.gradient_bias is None:
        return f"bias² unknown + variance {term(candidate.gradient_noise)}"
    most = candidate.gradient_bias_high
    up_to = "" if most is None else f" (up to {term(most)})"
    variance = term(candidate.gradient_noise)
    return f"bias² {term(candidate.gradient_bias)}{up_to} + variance {variance}"


def by_default(result: SweepResult) -> str:
    """Say what the trainer's own default would do here; "" if it is not a candidate."""
    name = result.recommendation.trainer_default
    of_own = [one for one in result.recommendation.candidates if one.name == name]
    if not of_own or of_own[0].gradient_noise is None:
        return ""
    title = "no correction" if name == "none" else f"{name}: {parts(of_own[0])}"
    refused = f"; refused: {of_own[0].refused[0]}" if of_own[0].refused else ""
    return f"{result.provenance.get('trainer')}: {title}{refused}"


def to_paste(result: SweepResult) -> str:
    """Return the command that writes the configuration of the choice, or of a candidate NAME."""
    advice = result.recommendation
    if unranked(advice):
        return ""
    trainer = str(result.provenance.get("trainer", "verl"))
    command = sweep_command(result)
    if advice.choice is None:
        return f"{command} --emit {trainer} --candidate NAME"
    return f"{command} --emit {trainer} > correction.yaml"
