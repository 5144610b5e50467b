"""Settings of trainers: defaults from their registry, the rest from `setting_words.py`."""

from __future__ import annotations

from rcdiag.glossary.describe import plain
from rcdiag.glossary.entry import Entry, Kind, first_clause
from rcdiag.glossary.generations import grouped
from rcdiag.glossary.setting_words import SETTINGS
from rcdiag.glossary.trainers import place
from rcdiag.trainers import TRAINERS


def _of(name: str) -> dict[str, str]:
    """Trainers -> where they have a setting, its default, and what is different there."""
    different = {trainer: text for part, text in SETTINGS[name].of.items() for trainer in part}
    return grouped(
        {
            trainer.name: "; ".join(
                filter(
                    None,
                    [
                        f"in {place(trainer.name)}, default {plain(trainer.settings[name])}",
                        different.get(trainer.name),
                    ],
                )
            )
            for trainer in TRAINERS.values()
            if name in trainer.settings
        }
    )


def entry(name: str) -> Entry:
    setting = SETTINGS[name]
    return Entry(
        name=name,
        kind=KIND.title,
        what=setting.what,
        units=setting.units,
        healthy=setting.healthy,
        generations=_of(name),
        example=setting.example,
        see=setting.see,
    )


KIND: Kind = Kind(
    title="setting",
    plural="Settings of trainers",
    lines=lambda: {name: first_clause(setting.what) for name, setting in SETTINGS.items()},
    entry=entry,
)
