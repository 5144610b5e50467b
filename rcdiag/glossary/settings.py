"""Settings of trainers are explained by the words and defaults that stand with each trainer."""

from __future__ import annotations

from rcdiag.glossary.describe import plain
from rcdiag.glossary.entry import Entry, Kind, first_clause
from rcdiag.glossary.generations import grouped
from rcdiag.glossary.losses import called_by_trainers, loss_settings
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.toml_words import SettingWords, read_settings
from rcdiag.trainers.trainer import Trainer


def _words() -> dict[str, SettingWords]:
    """Return the words of every setting; where two trainers share a name, the first one's."""
    words_by_setting: dict[str, SettingWords] = {}
    for trainer in TRAINERS.values():
        for name in trainer.settings:
            words = read_settings(trainer.package).get(name) or SettingWords(
                name=name, says=f"A setting of {trainer.family}.", generations={}
            )
            words_by_setting.setdefault(name, words)
    return words_by_setting


def _there(trainer: Trainer, name: str) -> str:
    """Write where a generation keeps a setting, its default, and what is peculiar to it."""
    words = read_settings(trainer.package).get(name)
    place = f"in {trainer.words.place}, default {plain(trainer.settings[name])}"
    own = words.generations.get(trainer.name) if words else None
    return "; ".join(filter(None, [place, own]))


def entry(name: str) -> Entry:
    words = _words()[name]
    having = [trainer for trainer in TRAINERS.values() if name in trainer.settings]
    # The same name may be a setting of the loss in another trainer, or in the same one.
    of_losses = called_by_trainers(name) if name in loss_settings() else {}
    return Entry(
        name=name,
        kind=KIND.title,
        what=words.says,
        units=words.unit,
        healthy=words.healthy,
        generations=grouped(
            of_losses | {trainer.name: _there(trainer, name) for trainer in having}
        ),
        example=words.example,
        see=words.see,
    )


KIND: Kind = Kind(
    title="setting",
    plural="Settings of trainers",
    names=_words,
    line=lambda name: first_clause(_words()[name].says),
    entry=entry,
)
