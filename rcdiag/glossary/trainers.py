"""Generations of trainers are explained by their definitions and the words beside them."""

from __future__ import annotations

from rcdiag.glossary.describe import settings_text
from rcdiag.glossary.entry import Entry, Kind
from rcdiag.trainers import TRAINERS, families
from rcdiag.trainers.toml_words import read_keys


def entry(name: str) -> Entry:
    trainer = TRAINERS[name]
    return Entry(
        name=name,
        kind=KIND.title,
        what=_line(name),
        generations={
            "keys": ", ".join(_first_keys(name)),
            "settings": f"in {trainer.words.place}: {settings_text(trainer.settings)}",
            "presets": ", ".join(trainer.presets),
        },
        example=f"rcdiag score rollouts.parquet --trainer {name}",
    )


def _first_keys(name: str) -> list[str]:
    """Return the first key of each family of keys that a generation logs."""
    first: dict[str, str] = {}
    for words in read_keys(TRAINERS[name].package).values():
        if name in words.names:
            first.setdefault(words.family, words.names[name])
    return list(first.values())


def _line(name: str) -> str:
    trainer = TRAINERS[name]
    released = trainer.words.released
    when = f"released {released}" if released[:1].isdigit() else released
    newest = families()[trainer.family] is trainer and trainer.family != name
    alias = f"; what `{trainer.family}` means" if newest else ""
    return f"{trainer.words.says} ({when}){alias}"


def find(name: str) -> str | None:
    """Return the newest generation of a trainer's name, such as `verl`; None for other names."""
    newest = families().get(name.lower())
    return newest.name if newest else None


KIND: Kind = Kind(
    title="trainer",
    plural="Trainers",
    names=lambda: TRAINERS,
    line=_line,
    entry=entry,
    find=find,
)
