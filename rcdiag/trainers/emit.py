"""Write a correction as a trainer's settings, as text to paste into its configuration.

The text is read back with the trainer's own `read` and compared with the correction, so nothing
is emitted that means something else.
"""

from __future__ import annotations

import shlex
from typing import Any

from msgspec import Struct

from rcdiag.corrections.bounds import equivalent
from rcdiag.corrections.correction import Correction
from rcdiag.errors import RcdiagError, did_you_mean
from rcdiag.trainers import TRAINERS, families, find_trainer, spoken_name
from rcdiag.trainers.settings_text import Inexpressible, Value, Written, overrides, text_of
from rcdiag.trainers.trainer import Refused, Trainer


class Emitted(Struct, frozen=True):
    """Settings of a trainer that have the effect of a correction."""

    trainer: str  # its full name
    settings: dict[str, Value]  # by the trainer's own names
    text: str  # to paste into its configuration, with comments


def writers() -> dict[str, Trainer]:
    """Return the generations whose settings rcdiag can write; newest of each trainer first."""
    able = [trainer for trainer in TRAINERS.values() if trainer.config.write is not None]
    order = list(dict.fromkeys(trainer.family for trainer in TRAINERS.values()))
    by_family = [
        trainer for family in order for trainer in reversed(able) if trainer.family == family
    ]
    return {trainer.name: trainer for trainer in by_family}


def writer_names() -> list[str]:
    """Return the names that `emit` accepts; a trainer's name alone means its newest generation."""
    able = writers()
    newest = [family for family, trainer in families().items() if trainer.name in able]
    return list(dict.fromkeys([*newest, *able]))


def on_sweep_page() -> list[str]:
    """Return the trainers whose settings the page of a sweep shows."""
    names = {name: spoken_name(trainer) for name, trainer in writers().items()}
    return [
        spoken
        for name, spoken in names.items()
        if spoken == TRAINERS[name].family or TRAINERS[name].words.on_sweep_page
    ]


def emit(correction: Correction, trainer: str) -> Emitted:
    """Write settings of `trainer` that keep the same tokens and give them the same weights.

    Inexpressible says what the trainer's settings cannot express; its hint names trainers that can.
    """
    chosen = find_trainer(trainer)
    if chosen.config.write is None:
        raise RcdiagError(
            f"rcdiag does not write settings of {chosen.name}",
            hint=f"{did_you_mean(trainer, writer_names())}one of {', '.join(writers())}",
        )
    try:
        return emitted(correction, chosen)
    except Inexpressible as error:
        able = [name for name, other in writers().items() if expresses(other, correction)]
        hint = (
            f"it can be written for {', '.join(able)}" if able else "no trainer known here has it"
        )
        raise Inexpressible(f"{chosen.name} has no {error.message}", hint=hint) from error


def emitted(correction: Correction, trainer: Trainer) -> Emitted:
    """Write settings of a trainer; Inexpressible's message is only what its settings lack."""
    written = _checked(correction, trainer)
    settings = {**written.settings, **_switched_off(written, correction, trainer)}
    in_order = {name: settings[name] for name in trainer.settings if name in settings}
    written = Written(in_order, written.comments)
    head = (
        f"rcdiag reads it with --trainer-config FILE --trainer {trainer.name}",
        *trainer.config.header.needs,
    )
    names = {name: trainer.config.dotted(name) for name in written.settings}
    text = text_of(_with_blocks(written, trainer), head, names, trainer.config.header.form)
    return Emitted(trainer.name, written.settings, text)


def _with_blocks(written: Written, trainer: Trainer) -> Written:
    """Leave out `block: true` if settings of that block are written, as they imply it."""
    said = [name for name in trainer.config.header.blocks if written.settings.get(name) is True]
    settings = {name: value for name, value in written.settings.items() if name not in said}
    return Written(settings, written.comments)


def other_ways(written: Emitted) -> list[str]:
    """Name the settings that are not written, and give the written ones as Hydra overrides."""
    trainer = TRAINERS[written.trainer]
    untouched = [name for name in trainer.settings if name not in written.settings]
    lines = [f"left as they are in your configuration: {', '.join(untouched)}"] if untouched else []
    if trainer.config.header.hydra:
        settings = _with_blocks(Written(written.settings), trainer).settings
        words = overrides({trainer.config.dotted(name): settings[name] for name in settings})
        lines.append(f"the same on the command line: {shlex.join(words)}")
    return lines


def expresses(trainer: Trainer, correction: Correction) -> bool:
    """Tell whether the trainer has settings with the effect of a correction."""
    try:
        _checked(correction, trainer)
    except Inexpressible:
        return False
    return True


def _checked(correction: Correction, trainer: Trainer) -> Written:
    """Write settings, read them back as the trainer would, and return them if they are equal."""
    if trainer.config.write is None:
        raise Inexpressible("settings that rcdiag writes")
    written = trainer.config.write(correction)
    try:
        read = trainer.read({**trainer.settings, **written.settings})
    except Refused as error:
        raise Inexpressible(f"settings for it that it takes ({error.message})") from error
    if not equivalent(correction, read):
        raise Inexpressible("settings that do just this")
    return written


def _switched_off(written: Written, correction: Correction, trainer: Trainer) -> dict[str, Value]:
    """Return the defaults of unwritten settings that would change the correction where they are on.

    Presets show how they are switched on. Without `rollout_rs: null` a configuration that rejects
    would go on rejecting.
    """

    def harmless(others: dict[str, Any]) -> bool:
        try:
            read = trainer.read({**trainer.settings, **written.settings, **others})
        except Refused:
            return False
        return equivalent(correction, read)

    known: list[dict[str, Any]] = []
    off: dict[str, Value] = {}
    for preset in trainer.presets.values():
        others = {name: preset[name] for name in preset if name not in written.settings}
        # One setting is enough of most, such as a statistic without its threshold.
        for on in (*({name: value} for name, value in others.items()), others):
            tried = {name: value for name, value in on.items() if name not in off}
            if not tried or tried in known:
                continue
            known.append(tried)
            if not harmless(tried):
                off |= {name: trainer.settings[name] for name in tried}
    return off
