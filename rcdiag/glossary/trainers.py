"""Generations of trainers, their presets and their settings are explained by their definitions."""

from __future__ import annotations

from collections.abc import Iterable

from rcdiag.entry import Entry, first_clause
from rcdiag.glossary.describe import describe, plain, settings_text
from rcdiag.glossary.generations import grouped
from rcdiag.glossary.kinds import Kind
from rcdiag.glossary.losses import called_by_trainers, loss_settings
from rcdiag.trainers import TRAINERS, families
from rcdiag.trainers.toml_words import (
    SettingWords,
    read_keys,
    read_renamed_presets,
    read_settings,
)
from rcdiag.trainers.trainer import Trainer


def _generation(name: str) -> Entry:
    trainer = TRAINERS[name]
    return Entry(
        what=_trainer_line(name),
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


def _trainer_line(name: str) -> str:
    trainer = TRAINERS[name]
    released = trainer.words.released
    when = f"released {released}" if released[:1].isdigit() else released
    newest = families()[trainer.family] is trainer and trainer.family != name
    alias = f"; what `{trainer.family}` means" if newest else ""
    return f"{trainer.words.says} ({when}){alias}"


def _newest(name: str) -> str | None:
    """Return the newest generation of a trainer's name, such as `verl`; None for other names."""
    newest = families().get(name.lower())
    return newest.name if newest else None


GENERATIONS: Kind = Kind(
    title="trainer",
    plural="Trainers",
    names=lambda: TRAINERS,
    line=_trainer_line,
    entry=_generation,
    find=_newest,
)


def _having(name: str) -> list[Trainer]:
    return [trainer for trainer in TRAINERS.values() if name in trainer.presets]


def _text(trainer: Trainer, name: str) -> str:
    """Describe what a preset does in one generation."""
    return describe(trainer.read({**trainer.settings, **trainer.presets[name]}))


def _with_settings(trainer: Trainer, name: str) -> str:
    settings = settings_text(trainer.presets[name]) or "all settings at their defaults"
    return f"{_text(trainer, name)}  ({settings})"


def _preset(name: str) -> Entry:
    trainers = _having(name)
    newest = trainers[-1]
    return Entry(
        what=_preset_line(name),
        generations=grouped({trainer.name: _with_settings(trainer, name) for trainer in trainers}),
        example=f"rcdiag score rollouts.parquet --trainer {newest.name} --preset {name}",
        see=(*read_renamed_presets(newest.package).get(name, ()), *_terms_of_preset(newest, name)),
    )


def _terms_of_preset(trainer: Trainer, name: str) -> tuple[str, ...]:
    """Return the terms that the description of a preset uses: its mode and its statistics."""
    correction = trainer.read({**trainer.settings, **trainer.presets[name]})
    statistics = [
        rejection.statistic
        for rejection in correction.rejections
        if rejection.of_ratio or rejection.statistic in trainer.rejects_by
    ]
    return (correction.mode, *statistics)


def _preset_line(name: str) -> str:
    """Describe a preset as the newest generation that has it does, and say where others differ."""
    texts = {_text(trainer, name) for trainer in _having(name)}
    newest = _text(_having(name)[-1], name)
    return newest if len(texts) == 1 else f"{newest} (not so in every generation)"


def _preset_names() -> Iterable[str]:
    """List the names of all presets, those of the newest generations first."""
    newest_first = reversed(list(TRAINERS.values()))
    return dict.fromkeys(name for trainer in newest_first for name in trainer.presets)


PRESETS: Kind = Kind(
    title="preset", plural="Presets", names=_preset_names, line=_preset_line, entry=_preset
)


def _setting_words() -> dict[str, SettingWords]:
    """Return the words of every setting; where two trainers share a name, the first one's."""
    words_by_setting: dict[str, SettingWords] = {}
    for trainer in TRAINERS.values():
        for name in trainer.settings:
            words = read_settings(trainer.package).get(name) or SettingWords(
                name=name, says=f"A setting of {trainer.family}.", generations={}
            )
            words_by_setting.setdefault(name, words)
    return words_by_setting


def _setting_in(trainer: Trainer, name: str) -> str:
    """Write where a generation keeps a setting, its default, and what is peculiar to it."""
    words = read_settings(trainer.package).get(name)
    place = f"in {trainer.words.place}, default {plain(trainer.settings[name])}"
    own = words.generations.get(trainer.name) if words else None
    return "; ".join(filter(None, [place, own]))


def _setting(name: str) -> Entry:
    words = _setting_words()[name]
    having = [trainer for trainer in TRAINERS.values() if name in trainer.settings]
    # The same name may be a setting of the loss in another trainer, or in the same one.
    of_losses = called_by_trainers(name) if name in loss_settings() else {}
    return Entry(
        what=words.says,
        units=words.unit,
        healthy=words.healthy,
        generations=grouped(
            of_losses | {trainer.name: _setting_in(trainer, name) for trainer in having}
        ),
        example=words.example,
        see=words.see,
    )


SETTINGS: Kind = Kind(
    title="setting",
    plural="Settings of trainers",
    names=_setting_words,
    line=lambda name: first_clause(_setting_words()[name].says),
    entry=_setting,
)
