"""Entries of the generations of trainers, their presets and their settings."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from rcdiag.corrections.correction import Correction
from rcdiag.corrections.describe import describe
from rcdiag.entry import Entry
from rcdiag.formats import yaml_value
from rcdiag.glossary.kinds import NameKind, also_called
from rcdiag.glossary.losses import called_by_trainers, loss_settings
from rcdiag.trainers import TRAINERS, families, forks, trainers_not_computed
from rcdiag.trainers.by_generation import grouped, settings_text
from rcdiag.trainers.toml_words import (
    SettingWords,
    read_former_presets,
    read_renamed_presets,
    read_settings,
)
from rcdiag.trainers.trainer import Trainer


def _says(trainer: Trainer) -> str:
    """Describe a generation, and say if it is the one that the trainer's bare name means."""
    newest = families()[trainer.family] is trainer and trainer.family != trainer.name
    return f"{trainer.says}; what `{trainer.family}` means" if newest else trainer.says


GENERATIONS = NameKind(
    title="trainer",
    plural="Trainers",
    definitions=lambda: TRAINERS,
    line=_says,
    entry=lambda name, trainer: replace(trainer.entry(), what=_says(trainer)),
    # A trainer's bare name, such as `verl`, means its newest generation.
    find=lambda name: newest.name if (newest := families().get(name.lower())) else None,
    aliases={fork: families()[original].name for fork, original in forks().items()},
)

NOT_COMPUTED = NameKind(
    title="trainer that is not computed",
    plural="Trainers that are not computed",
    definitions=trainers_not_computed,
)


class NamedPreset(Struct, frozen=True):
    """A preset by its name, which may have other settings in another generation."""

    name: str
    having: tuple[Trainer, ...]  # generations that have it, in the order of the registry

    def correction(self, trainer: Trainer) -> Correction:
        """Return the correction of the preset in a generation."""
        return trainer.read({**trainer.settings, **trainer.presets[self.name]})

    @property
    def also_called(self) -> dict[str, str]:
        """Names in documents or unreleased code -> where they are used, and other settings."""
        packages = dict.fromkeys(trainer.package for trainer in self.having)
        return {
            name: ", with ".join(filter(None, [former.where, settings_text(former.settings)]))
            for package in packages
            for name, former in read_former_presets(package).items()
            if former.preset == self.name
        }

    @property
    def says(self) -> str:
        """What it does in the newest generation that has it; says if other generations differ."""
        texts = [describe(self.correction(trainer)) for trainer in self.having]
        alike = len(set(texts)) == 1
        return texts[-1] if alike else f"{texts[-1]} (not so in every generation)"

    def entry(self) -> Entry:
        """Answer `rcdiag explain`: what the preset does in each generation, with its settings."""
        newest = self.having[-1]
        correction = self.correction(newest)
        statistics = [
            rejection.statistic
            for rejection in correction.rejections
            if rejection.of_ratio or rejection.statistic in newest.rejects_by
        ]
        renamed = read_renamed_presets(newest.package).get(self.name, ())
        effects = {}
        for trainer in self.having:
            settings = settings_text(trainer.presets[self.name]) or "all settings at their defaults"
            effects[trainer.name] = f"{describe(self.correction(trainer))}  ({settings})"
        return Entry(
            what=self.says,
            generations=grouped(effects),
            example=f"rcdiag score rollouts.parquet --trainer {newest.name} --preset {self.name}",
            see=(*renamed, correction.mode, *statistics),
            also_called=self.also_called,
        )


def _presets() -> Mapping[str, NamedPreset]:
    """Return all presets by name, those of the newest generations first."""
    newest_first = reversed(list(TRAINERS.values()))
    names = dict.fromkeys(name for trainer in newest_first for name in trainer.presets)
    return {
        name: NamedPreset(name, tuple(one for one in TRAINERS.values() if name in one.presets))
        for name in names
    }


PRESETS = NameKind(
    title="preset",
    plural="Presets",
    definitions=_presets,
    line=lambda preset: preset.says,
    aliases=also_called(_presets()),
)


def _settings() -> Mapping[str, SettingWords]:
    """Return the description of every setting; of trainers that share a name, the first one's."""
    words_by_setting: dict[str, SettingWords] = {}
    for trainer in TRAINERS.values():
        for name in trainer.settings:
            words = read_settings(trainer.package).get(name) or SettingWords(
                name=name, says=f"A setting of {trainer.family}.", generations={}
            )
            words_by_setting.setdefault(name, words)
    return words_by_setting


def _setting(name: str, words: SettingWords) -> Entry:
    """Return the entry: where each generation keeps the setting, its default, any peculiarity."""
    # The same name may be a setting of the loss in another trainer, or in the same one.
    texts = called_by_trainers(name) if name in loss_settings() else {}
    for trainer in TRAINERS.values():
        if name in trainer.settings:
            texts[trainer.name] = (
                f"in {trainer.words.place}, default {yaml_value(trainer.settings[name])}"
            )
            own = read_settings(trainer.package).get(name)
            if own is not None and (peculiarity := own.generations.get(trainer.name)):
                texts[trainer.name] += f"; {peculiarity}"
    return replace(words.entry(), generations=grouped(texts))


def _by_place(name: str) -> str | None:
    """Return the setting that a trainer has at a dotted place of its configuration file."""
    last = name.rpartition(".")[2]
    having = [trainer for trainer in TRAINERS.values() if last in trainer.settings]
    places = {
        place
        for trainer in having
        for place in (trainer.config.dotted(last), f"{trainer.words.place}.{last}")
    }
    return last if name in places else None


SETTINGS = NameKind(
    title="setting",
    plural="Settings of trainers",
    definitions=_settings,
    entry=_setting,
    find=_by_place,
    aliases=also_called(_settings()),
)
