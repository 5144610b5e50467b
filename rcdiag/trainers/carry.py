"""Translate a correction of one trainer into the settings of the others, exactly or nearly.

If a trainer has no exact equivalent, one or two of CHANGES are applied to the correction until it
has one, and each change is reported. To add a change: a function and its entry in CHANGES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

from msgspec import Struct
from msgspec.structs import replace

from rcdiag.corrections.correction import Correction, Rejection
from rcdiag.errors import RcdiagError, did_you_mean
from rcdiag.trainers import families, find_trainer
from rcdiag.trainers.emit import Emitted, emitted
from rcdiag.trainers.settings_text import Inexpressible
from rcdiag.trainers.trainer import Trainer


class Carried(Struct, frozen=True):
    """The settings of another trainer that come closest to a correction."""

    trainer: Trainer
    settings: Emitted | None  # None: nothing comes close
    differs: tuple[str, ...] = ()  # how their effect differs; () for an exact equivalent
    lacks: str = ""  # what the trainer has no settings for, if there is no exact equivalent

    @property
    def equal(self) -> bool:
        """Tell whether the same tokens are kept with the same weights."""
        return self.settings is not None and not self.differs


class SmallChange(Struct, frozen=True):
    """A change to a correction that keeps most of its effect."""

    says: str  # how the changed correction differs, after "where it"
    of: Callable[[Correction], Correction | None]  # None if the change does not apply


def _zeroing_rejects(correction: Correction) -> Correction | None:
    if not correction.zeroing:
        return None
    rejections = (*correction.rejections, *correction.zeroing)
    return replace(correction, zeroing=(), rejections=rejections)


def _zero_rejects(correction: Correction) -> Correction | None:
    weighting = correction.weighting
    if weighting is None or weighting.outside != "zero":
        return None
    bounds = Rejection(weighting.level, weighting.upper, weighting.lower_or_reciprocal)
    return replace(
        correction,
        weighting=replace(weighting, outside="mask"),
        rejections=(*correction.rejections, bounds),
    )


def _rejection_zeroes(correction: Correction) -> Correction | None:
    if not correction.rejections or correction.weighting is None:
        return None
    zeroing = (*correction.zeroing, *correction.rejections)
    return replace(correction, rejections=(), zeroing=zeroing)


def _zero_truncates(correction: Correction) -> Correction | None:
    weighting = correction.weighting
    if weighting is None or weighting.outside != "zero":
        return None
    return replace(correction, weighting=replace(weighting, outside="truncate"))


def _clip_truncates(correction: Correction) -> Correction | None:
    weighting = correction.weighting
    if weighting is None or weighting.outside != "clip":
        return None
    return replace(correction, weighting=replace(weighting, outside="truncate", lower=None))


def _without_order(correction: Correction) -> Correction | None:
    weighting = correction.weighting
    alone = replace(
        correction,
        weighting=None if weighting is None else replace(weighting, over=()),
        rejections=tuple(replace(one, over=()) for one in correction.rejections),
    )
    return None if alone == correction else alone


def _other_normalisation(correction: Correction) -> Correction | None:
    if correction.weighting is None:
        return None
    return replace(correction, batch_normalize=not correction.batch_normalize)


def _decoupled(correction: Correction) -> Correction | None:
    if correction.mode == "decoupled":
        return None
    return replace(correction, mode="decoupled", loss="ppo_clip")


CHANGES = (
    SmallChange("rejects tokens where the other gives them weight 0", _zeroing_rejects),
    SmallChange(
        "rejects what is outside the bounds, where the other gives weight 0", _zero_rejects
    ),
    SmallChange("gives weight 0 where the other rejects", _rejection_zeroes),
    SmallChange("has no lower bound on the weights", _clip_truncates),
    SmallChange("uses whole sequences, not what earlier steps leave of them", _without_order),
    SmallChange(
        "divides weights by their mean, or does not, unlike the other", _other_normalisation
    ),
    SmallChange("truncates at the upper bound where the other gives weight 0", _zero_truncates),
    SmallChange("works in decoupled mode, on old / rollout", _decoupled),
)


def named(text: str) -> tuple[Trainer, str]:
    """Return the trainer and preset that `TRAINER:PRESET` names."""
    name, colon, preset = text.partition(":")
    trainer = find_trainer(name)
    if not colon or preset not in trainer.presets:
        guess = did_you_mean(preset, trainer.presets)
        raise RcdiagError(
            f"{text}: wanted TRAINER:PRESET",
            hint=f"{guess}presets of {trainer.name}: {', '.join(trainer.presets)}",
        )
    return trainer, preset


def carried(correction: Correction, source: Trainer) -> list[Carried]:
    """Translate a correction for the newest generation of every other trainer."""
    others = [trainer for trainer in families().values() if trainer.family != source.family]
    return [_carried(correction, trainer) for trainer in others]


def _carried(correction: Correction, trainer: Trainer) -> Carried:
    if trainer.config.write is None:
        return Carried(trainer, None, lacks="settings that rcdiag writes")
    lacks = ""
    for neighbour, differs in _neighbours(correction):
        try:
            return Carried(trainer, emitted(neighbour, trainer), differs, lacks)
        except Inexpressible as error:
            lacks = lacks or error.message
    return Carried(trainer, None, lacks=lacks)


def _neighbours(correction: Correction) -> Iterator[tuple[Correction, tuple[str, ...]]]:
    """Yield the correction unchanged, then with each change, then with each pair of changes."""
    for count in range(3):
        for changes in combinations(CHANGES, count):
            changed: Correction | None = correction
            for change in changes:
                changed = None if changed is None else change.of(changed)
            if changed is not None:
                yield changed, tuple(change.says for change in changes)
