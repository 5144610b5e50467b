"""Entries of losses, aggregations, denominators and advantages."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from rcdiag.entry import Entry
from rcdiag.formats import yaml_value
from rcdiag.glossary.kinds import NameKind, folded
from rcdiag.glossary.words import TERM
from rcdiag.losses import ADVANTAGES, AGGREGATIONS, DENOMINATORS, LOSSES, Aggregation, PolicyLoss
from rcdiag.losses.advantages import Advantage
from rcdiag.losses.aggregation import SCALE_FACTOR, DenominatorWords
from rcdiag.losses.aggregation import WORKED as WORKED_AGGREGATION
from rcdiag.losses.policy_loss import WORKED as WORKED_LOSS
from rcdiag.losses.rules import UpdateRules
from rcdiag.losses.settings import LossSetting
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.by_generation import called, grouped, worked
from rcdiag.trainers.trainer import Trainer


def _named(prefix: str, names: Iterable[str]) -> dict[str, str]:
    """Return names by listed name; a term of the glossary gets the prefix: `loss.reinforce`."""
    taken = {folded(name) for name in (*TERM.names(), *TERM.aliases)}
    return {f"{prefix}.{name}" if folded(name) in taken else name: name for name in names}


def _having(has: Callable[[UpdateRules], bool]) -> list[Trainer]:
    return [trainer for trainer in TRAINERS.values() if has(trainer.update)]


def _generations(name: str, trainers: Iterable[Trainer]) -> dict[str, str]:
    texts = called(name)
    return grouped({trainer.name: texts.get(trainer.name, name) for trainer in trainers})


def _numbers(name: str, trainers: Iterable[Trainer]) -> str:
    numbers = worked(name, [trainer.name for trainer in trainers])
    return "; ".join(f"{value} in {names}" for names, value in numbers.items())


def policy_losses() -> dict[str, PolicyLoss]:
    """Return all losses by listed name: those of the registry, then those of trainers."""
    definitions = dict(LOSSES)
    for trainer in TRAINERS.values():
        definitions = {**trainer.update.losses, **definitions}
    ordered = sorted(definitions, key=lambda name: name not in LOSSES)
    return {listed: definitions[name] for listed, name in _named("loss", ordered).items()}


def _loss(listed: str, loss: PolicyLoss) -> Entry:
    trainers = _having(lambda rules: loss.name in rules.losses)
    entry = replace(loss.entry(), generations=_generations(listed, trainers))
    numbers = _numbers(listed, trainers)
    if not numbers:
        return entry
    given = f"{loss.given}: " if loss.given else ""
    return replace(entry, example=f"{WORKED_LOSS}: {given}loss {numbers}")


POLICY_LOSSES = NameKind(
    title="policy loss",
    plural="Policy losses of `rcdiag replay`",
    definitions=policy_losses,
    entry=_loss,
)


def aggregations() -> dict[str, Aggregation]:
    """Return all aggregations by name: those of the registry, then those of trainers."""
    definitions = dict(AGGREGATIONS)
    for trainer in TRAINERS.values():
        definitions = {**trainer.update.aggregations, **definitions}
    ordered = sorted(definitions, key=lambda name: name not in AGGREGATIONS)
    return {name: definitions[name] for name in ordered}


def _reduction(name: str, definition: Aggregation | DenominatorWords) -> Entry:
    if isinstance(definition, DenominatorWords):
        return _with_trainers(name, definition)
    trainers = _having(lambda rules: name in rules.aggregations)
    entry = replace(definition.entry(), generations=_generations(name, trainers))
    numbers = worked(name, [trainer.name for trainer in trainers])
    if not numbers:
        return entry
    value = next(iter(numbers.values())) if len(numbers) == 1 else _numbers(name, trainers)
    return replace(entry, example=f"{WORKED_AGGREGATION}: {value}")


REDUCTIONS = NameKind(
    title="aggregation",
    plural="Aggregations of a loss, and what they divide by",
    definitions=lambda: {
        **aggregations(),
        **{name: DENOMINATORS[own] for name, own in _named("denominator", DENOMINATORS).items()},
    },
    entry=_reduction,
)


def _with_trainers(name: str, definition: DenominatorWords | Advantage) -> Entry:
    return replace(definition.entry(), generations=grouped(called(name)))


ADVANTAGE_FORMULAS = NameKind(
    title="advantage",
    plural="Advantages that `rcdiag replay` computes",
    definitions=lambda: ADVANTAGES,
    entry=_with_trainers,
)


def loss_settings() -> dict[str, LossSetting]:
    """Return all settings that losses and aggregations read, by name."""
    losses = [*LOSSES.values()]
    losses += [loss for trainer in TRAINERS.values() for loss in trainer.update.losses.values()]
    settings = {setting.name: setting for loss in losses for setting in loss.settings}
    return {**settings, SCALE_FACTOR.name: SCALE_FACTOR}


def _reads(rules: UpdateRules, name: str) -> bool:
    if name == SCALE_FACTOR.name:
        return any(aggregation.horizon == "scale" for aggregation in rules.aggregations.values())
    return any(name == setting.name for loss in rules.losses.values() for setting in loss.settings)


def called_by_trainers(name: str) -> dict[str, str]:
    """Return, by trainer, its name for a setting that its losses read, and its default."""
    setting, names = loss_settings()[name], called(name)
    return {
        trainer.name: f"{names.get(trainer.name, name)}, default "
        f"{yaml_value(trainer.update.defaults.value(setting))}"
        for trainer in _having(lambda rules: _reads(rules, name))
    }


def _of_losses_alone() -> dict[str, LossSetting]:
    """Return settings of losses, except those that some trainer's correction also has."""
    elsewhere = {name for trainer in TRAINERS.values() for name in trainer.settings}
    return {name: one for name, one in loss_settings().items() if name not in elsewhere}


LOSS_SETTINGS = NameKind(
    title="setting of a loss",
    plural="Settings of a loss in `rcdiag replay`",
    definitions=_of_losses_alone,
    entry=lambda name, one: replace(one.entry(), generations=grouped(called_by_trainers(name))),
)
