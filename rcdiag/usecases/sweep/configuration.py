"""Writes candidates and settings of a sweep as configurations of trainers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from rcdiag.errors import RcdiagError, setting
from rcdiag.formats import after_colon
from rcdiag.registry import revision
from rcdiag.results.sweep import Configurations, Recommendation
from rcdiag.trainers import find_trainer
from rcdiag.trainers.emit import emit, emitted, expresses, on_sweep_page, other_ways
from rcdiag.trainers.settings_text import Inexpressible
from rcdiag.usecases.sweep.candidates import EstimatorSetting, find_candidate
from rcdiag.usecases.sweep.estimator_families import FAMILIES, Bounds


def check_configuration(trainer: str, candidate: str | None) -> None:
    """Refuse, before the sweep, a candidate that the trainer cannot express."""
    emit(find_candidate(candidate or "none").correction, trainer)


def configuration(advice: Recommendation, trainer: str, candidate: str | None = None) -> str:
    """Return YAML for a trainer: of the given candidate, else of the recommended one.

    If candidates cannot be distinguished, it is that of no correction. If the trainer has no such
    estimator, there are only comments that say so and name the candidates that it has. If the cause
    must be fixed first, an error is raised.
    """
    if candidate is not None:
        first = f"# {candidate}, as requested; recommended: {advice.choice or advice.answer}"
        return _pasted([first], candidate, trainer)
    if advice.answer == "fix-the-cause":
        raise RcdiagError(
            f"no configuration is written: {after_colon(' '.join(advice.reasons))}",
            hint=f"fix the cause; {setting('candidate', 'NAME')} writes a correction anyway",
        )
    name = advice.choice or "none"
    comments = [f"# {name}: {advice.answer}"]
    if advice.choice is None:
        comments = [
            "# no candidate is recommended, as this table cannot tell them apart; below is no "
            f"correction, and {setting('candidate', 'NAME')} writes one of them"
        ]
    comments += [f"# {reason}" for reason in advice.reasons]
    try:
        return _pasted(comments, name, trainer)
    except Inexpressible as error:
        lacking = [f"# nothing to paste: {error.message}; {error.hint}"]
        return "\n".join([*comments, *lacking, *_instead(advice, trainer), ""])


def _pasted(comments: list[str], name: str, trainer: str) -> str:
    written = emit(find_candidate(name).correction, trainer)
    lines = [*comments, written.text.rstrip(), *(f"# {line}" for line in other_ways(written))]
    return "\n".join([*lines, ""])


def _instead(advice: Recommendation, trainer: str) -> list[str]:
    """Return comments with the candidates that the trainer can express, in the order of rank."""
    chosen = find_trainer(trainer)
    if not advice.ranked:  # for example if the cause must be fixed first
        return []
    able = [one for one in advice.ranked if expresses(chosen, find_candidate(one.name).correction)]
    if not able:
        return [f"# {chosen.name} has none of the candidates that were not refused"]
    close = [candidate.name for candidate in able if candidate.within_error_of_best]
    first = (close or [able[0].name])[0]
    comment = (
        f"# {chosen.name} has {', '.join(close)}: within one standard error of the best, and 5%"
        if close
        else f"# the best that {chosen.name} has is {first}, further behind"
    )
    return [comment, f"# to write it: --emit {trainer} --candidate {first}"]


def trainer_default(trainer: str, candidates: Mapping[str, EstimatorSetting]) -> str | None:
    """Return the candidate that equals the trainer's default; None if there is none."""
    chosen = find_trainer(trainer)
    own = chosen.read({**chosen.settings, **chosen.unset})
    if own.weighting is None and not own.rejections:
        return "none"
    return next((name for name, it in candidates.items() if it.correction == own), None)


def choice_configurations(choice: str | None) -> dict[str, str]:
    """Return trainer -> YAML of the chosen candidate, or a comment if it cannot express it."""
    if choice is None:
        return {}
    correction, texts = find_candidate(choice).correction, {}
    for trainer in on_sweep_page():
        try:
            texts[trainer] = emit(correction, trainer).text
        except Inexpressible as error:
            texts[trainer] = f"# {error.message}; {error.hint}"
    return texts


# With more settings nobody looks at each, and writing them would take most of a sweep's time.
MOST_WRITTEN = 200


def family_configurations(family: str, grid: Sequence[Bounds]) -> dict[str, Configurations]:
    """Return trainer -> the YAML of every setting of a family, in the order of the grid.

    Empty for a grid of more than MOST_WRITTEN settings.
    """
    if len(grid) > MOST_WRITTEN:
        return {}
    return dict(_written_at(revision(), family, tuple(tuple(bounds.items()) for bounds in grid)))


@lru_cache(maxsize=128)
def _written_at(
    at: int, family: str, grid: tuple[tuple[tuple[str, float], ...], ...]
) -> dict[str, Configurations]:
    """Write a family's settings for every trainer, cached for all tables.

    `at` is the revision of the registries, so that the cache is renewed after a change.
    """
    corrections = [FAMILIES[family].correction(dict(bounds)) for bounds in grid]
    written = {}
    for name in on_sweep_page():
        trainer = find_trainer(name)
        texts: list[str | None] = []
        for correction in corrections:
            # Not by `emit`: its error message searches for trainers that could, which takes long.
            try:
                texts.append(emitted(correction, trainer).text)
            except Inexpressible:
                texts.append(None)
        written[name] = _factored(texts)
    return written


# A number in a trainer's YAML.
NUMBER = re.compile(r"(?<![A-Za-z0-9.])\d[\d.]*(?:e[+-]?\d+)?")
MARK = "\u0001"  # stands where a template has a number


def _factored(texts: Iterable[str | None]) -> Configurations:
    """Split texts into templates and numbers: texts of one family mostly differ in numbers only."""
    templates: dict[str, int] = {}
    entries = []
    for text in texts:
        if text is None:
            entries.append("")
            continue
        index = templates.setdefault(NUMBER.sub(MARK, text), len(templates))
        entries.append(" ".join([str(index), *NUMBER.findall(text)]))
    return Configurations(templates=list(templates), entries=entries)
