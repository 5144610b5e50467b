"""What a sweep recommends, or another of its candidates, as the configuration of a trainer."""

from __future__ import annotations

from rcdiag.errors import RcdiagError
from rcdiag.results.sweep import Recommendation
from rcdiag.trainers import find_trainer
from rcdiag.trainers.emit import emit, expresses
from rcdiag.trainers.settings_text import Inexpressible
from rcdiag.usecases.sweep.candidates import CANDIDATES


def check_configuration(trainer: str, candidate: str | None) -> None:
    """Refuse before the sweep what no sweep could write."""
    if candidate is not None and candidate not in CANDIDATES:
        raise RcdiagError(f"--candidate {candidate}: not known", hint=", ".join(CANDIDATES))
    emit(CANDIDATES[candidate or "none"].correction, trainer)


def configuration(advice: Recommendation, trainer: str, candidate: str | None = None) -> str:
    """YAML for a trainer: of the candidate that is asked for, else of what is recommended.

    Where the answer is not to correct, it is that of no correction. Where the trainer has no such
    estimator it is comments alone, which say so and name the candidates that it does have.
    """
    if candidate is not None:
        first = f"# {candidate}, as asked for; recommended: {advice.choice or advice.answer}"
        return _pasted([first], candidate, trainer)
    name = advice.choice or "none"
    said = [f"# {name}: {advice.answer}", *(f"# {reason}" for reason in advice.reasons)]
    try:
        return _pasted(said, name, trainer)
    except Inexpressible as error:
        lacking = [f"# nothing to paste: {error.message}; {error.hint}"]
        return "\n".join([*said, *lacking, *_instead(advice, trainer), ""])


def _pasted(comments: list[str], name: str, trainer: str) -> str:
    written = emit(CANDIDATES[name].correction, trainer)
    return "\n".join([*comments, written.text.rstrip(), ""])


def _instead(advice: Recommendation, trainer: str) -> list[str]:
    """Comments that name the candidates that the trainer has, by rank, the close ones apart."""
    chosen = find_trainer(trainer)
    ranked = sorted(
        (each for each in advice.candidates if each.rank is not None),
        key=lambda each: each.rank or 0,
    )
    able = [each for each in ranked if expresses(chosen, CANDIDATES[each.name].correction)]
    if not able:
        return [f"# {chosen.name} has none of the candidates that were not refused"]
    close = [each.name for each in able if each.indistinguishable]
    first = (close or [each.name for each in able])[0]
    said = (
        f"# {chosen.name} has {', '.join(close)}: within one standard error of the best"
        if close
        else f"# the best that {chosen.name} has is {first}, more than one standard error behind"
    )
    return [said, f"# to write it: --emit {trainer} --candidate {first}"]
