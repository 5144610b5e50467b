"""Presets are explained by what each generation makes of their names."""

from __future__ import annotations

from collections.abc import Iterable

from rcdiag.glossary.describe import describe, settings_text
from rcdiag.glossary.entry import Entry, Kind
from rcdiag.glossary.generations import grouped
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.toml_words import read_renamed_presets
from rcdiag.trainers.trainer import Trainer


def having(name: str) -> list[Trainer]:
    return [trainer for trainer in TRAINERS.values() if name in trainer.presets]


def text(trainer: Trainer, name: str) -> str:
    """Describe what a preset does in one generation."""
    return describe(trainer.read({**trainer.settings, **trainer.presets[name]}))


def _with_settings(trainer: Trainer, name: str) -> str:
    settings = settings_text(trainer.presets[name]) or "all settings at their defaults"
    return f"{text(trainer, name)}  ({settings})"


def entry(name: str) -> Entry:
    trainers = having(name)
    newest = trainers[-1]
    return Entry(
        name=name,
        kind=KIND.title,
        what=_line(name),
        generations=grouped({trainer.name: _with_settings(trainer, name) for trainer in trainers}),
        example=f"rcdiag score rollouts.parquet --trainer {newest.name} --preset {name}",
        see=(*read_renamed_presets(newest.package).get(name, ()), *_words(newest, name)),
    )


def _words(trainer: Trainer, name: str) -> tuple[str, ...]:
    """Return the terms that the description of a preset uses: its mode and its statistics."""
    correction = trainer.read({**trainer.settings, **trainer.presets[name]})
    statistics = [
        rejection.statistic
        for rejection in correction.rejections
        if rejection.of_ratio or rejection.statistic in trainer.rejects_by
    ]
    return (correction.mode, *statistics)


def _line(name: str) -> str:
    """Describe a preset as the newest generation that has it does, and say where others differ."""
    texts = {text(trainer, name) for trainer in having(name)}
    newest = text(having(name)[-1], name)
    return newest if len(texts) == 1 else f"{newest} (not so in every generation)"


def _names() -> Iterable[str]:
    """List the names of all presets, those of the newest generations first."""
    newest_first = reversed(list(TRAINERS.values()))
    return dict.fromkeys(name for trainer in newest_first for name in trainer.presets)


KIND: Kind = Kind(title="preset", plural="Presets", names=_names, line=_line, entry=entry)
