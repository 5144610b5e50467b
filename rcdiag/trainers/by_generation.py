"""How each generation of a trainer names something, and how it writes a correction.

Generations that agree form a group, for which one text is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rcdiag.corrections.correction import Correction
from rcdiag.errors import RcdiagError
from rcdiag.formats import yaml_value
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.emit import emit, writers
from rcdiag.trainers.toml_file import label as runs
from rcdiag.trainers.toml_words import read_terms


def label(trainers: Iterable[str]) -> str:
    """Write trainers in the order of the registry; three or more consecutive ones as a range."""
    group = set(trainers)
    order: dict[str, list[str]] = {}
    for trainer in TRAINERS.values():
        order.setdefault(trainer.family, []).append(trainer.name)
    return ", ".join(filter(None, (runs(group, names) for names in order.values())))


def grouped(texts: Mapping[str, str]) -> dict[str, str]:
    """Turn trainer -> text into group -> text: trainers with the same text are one group."""
    groups: dict[str, list[str]] = {}
    for trainer, text in texts.items():
        groups.setdefault(text, []).append(trainer)
    return {label(trainers): text for text, trainers in groups.items()}


def called(name: str) -> dict[str, str]:
    """Return by generation what each trainer means by a name that rcdiag explains."""
    terms = {trainer.name: read_terms(trainer.package).get(name) for trainer in TRAINERS.values()}
    return {
        trainer: term.says[trainer]
        for trainer, term in terms.items()
        if term is not None and trainer in term.says
    }


def worked(name: str, having: Iterable[str]) -> dict[str, str]:
    """Return by group of generations the number that the worked example of a name gives."""
    terms = {trainer: read_terms(TRAINERS[trainer].package).get(name) for trainer in having}
    return grouped(
        {
            trainer: f"{term.numbers[trainer]:.4g}"
            for trainer, term in terms.items()
            if term is not None and trainer in term.numbers
        }
    )


def settings_of(correction: Correction) -> dict[str, str]:
    """Return a correction's settings by group of trainers, without trainers that lack it."""
    texts = {}
    for trainer in writers():
        try:
            texts[trainer] = settings_text(emit(correction, trainer).settings)
        except RcdiagError:
            continue
    return grouped(texts)


def settings_text(config: Mapping[str, Any]) -> str:
    """Write settings as in YAML: `rollout_is: token, rollout_is_threshold: 2.0`."""
    return ", ".join(f"{name}: {yaml_value(value)}" for name, value in config.items())
