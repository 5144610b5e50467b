"""Losses, aggregations, denominators and advantages are explained by their definitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from rcdiag.entry import Entry, first_clause
from rcdiag.glossary import terms
from rcdiag.glossary.describe import plain
from rcdiag.glossary.generations import called, grouped, worked
from rcdiag.glossary.kinds import Kind, folded, registered
from rcdiag.losses import ADVANTAGES, AGGREGATIONS, DENOMINATORS, LOSSES, Aggregation, PolicyLoss
from rcdiag.losses.aggregation import SCALE_FACTOR
from rcdiag.losses.aggregation import WORKED as WORKED_AGGREGATION
from rcdiag.losses.policy_loss import WORKED as WORKED_LOSS
from rcdiag.losses.rules import UpdateRules
from rcdiag.losses.settings import LossSetting
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.trainer import Trainer

_REPLAY = "rcdiag replay rollouts.parquet"


def _named(prefix: str, names: Iterable[str]) -> dict[str, str]:
    """Return names by the name in the list; one that is a word of the glossary gets `prefix.`."""
    taken = {folded(name) for name in (*terms.WORDS, *terms.KIND.aliases)}
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
    """Return all losses by their listed names: those of the registry, then trainers' own."""
    definitions = dict(LOSSES)
    for trainer in TRAINERS.values():
        definitions = {**trainer.update.losses, **definitions}
    ordered = sorted(definitions, key=lambda name: name not in LOSSES)
    return {listed: definitions[name] for listed, name in _named("loss", ordered).items()}


def _loss(listed: str) -> Entry:
    loss = policy_losses()[listed]
    trainers = _having(lambda rules: loss.name in rules.losses)
    numbers = _numbers(listed, trainers)
    example = f"{_REPLAY} --loss {loss.name}"
    if numbers:
        given = f"{loss.given}: " if loss.given else ""
        example = f"{WORKED_LOSS}: {given}loss {numbers}"
    return Entry(
        what=f"{loss.says} Source: {loss.source}.",
        formula=loss.formula,
        direction=loss.direction,
        units="loss",
        generations=_generations(listed, trainers),
        example=example,
        see=tuple(dict.fromkeys([*loss.see, *(setting.name for setting in loss.settings)])),
    )


POLICY_LOSSES: Kind = Kind(
    title="policy loss",
    plural="Policy losses of `rcdiag replay`",
    names=policy_losses,
    line=lambda listed: first_clause(policy_losses()[listed].says),
    entry=_loss,
)


def aggregations() -> dict[str, Aggregation]:
    """Return all aggregations by name: those of the registry, then trainers' own."""
    definitions = dict(AGGREGATIONS)
    for trainer in TRAINERS.values():
        definitions = {**trainer.update.aggregations, **definitions}
    ordered = sorted(definitions, key=lambda name: name not in AGGREGATIONS)
    return {name: definitions[name] for name in ordered}


def _denominators() -> dict[str, str]:
    return _named("denominator", DENOMINATORS)


def _aggregation(name: str) -> Entry:
    if name in _denominators():
        denominator = DENOMINATORS[_denominators()[name]]
        return replace(denominator.entry(), generations=grouped(called(name)))
    aggregation = aggregations()[name]
    trainers = _having(lambda rules: name in rules.aggregations)
    numbers = worked(name, [trainer.name for trainer in trainers])
    value = next(iter(numbers.values())) if len(numbers) == 1 else _numbers(name, trainers)
    return Entry(
        what=aggregation.says,
        formula=aggregation.formula,
        generations=_generations(name, trainers),
        example=f"{WORKED_AGGREGATION}: {value}" if value else f"{_REPLAY} --aggregation {name}",
        see=aggregation.see,
    )


def _aggregation_line(name: str) -> str:
    denominator = _denominators().get(name)
    return first_clause((DENOMINATORS[denominator] if denominator else aggregations()[name]).says)


REDUCTIONS: Kind = Kind(
    title="aggregation",
    plural="Aggregations of a loss, and what they divide by",
    names=lambda: (*aggregations(), *_denominators()),
    line=_aggregation_line,
    entry=_aggregation,
)


def _advantage(name: str) -> Entry:
    return replace(ADVANTAGES[name].entry(), generations=grouped(called(name)))


ADVANTAGE_FORMULAS: Kind = registered(
    "advantage",
    "Advantages that `rcdiag replay` computes",
    lambda: ADVANTAGES,
    entry=_advantage,
)


def loss_settings() -> dict[str, LossSetting]:
    """Return every setting that some loss or aggregation reads, by name."""
    losses = [*LOSSES.values()]
    losses += [loss for trainer in TRAINERS.values() for loss in trainer.update.losses.values()]
    settings = {setting.name: setting for loss in losses for setting in loss.settings}
    return {**settings, SCALE_FACTOR.name: SCALE_FACTOR}


def _reads(rules: UpdateRules, name: str) -> bool:
    if name == SCALE_FACTOR.name:
        return any(aggregation.horizon == "scale" for aggregation in rules.aggregations.values())
    return any(name == setting.name for loss in rules.losses.values() for setting in loss.settings)


def called_by_trainers(name: str) -> dict[str, str]:
    """Return, by trainer, what it calls a setting that its losses read, and its default there."""
    setting, names = loss_settings()[name], called(name)
    return {
        trainer.name: f"{names.get(trainer.name, name)}, default "
        f"{plain(trainer.update.defaults.value(setting))}"
        for trainer in _having(lambda rules: _reads(rules, name))
    }


def _loss_setting(name: str) -> Entry:
    setting = loss_settings()[name]
    return Entry(
        what=setting.says,
        generations=grouped(called_by_trainers(name)),
        example=setting.example or f"{_REPLAY} --loss-setting {name}={plain(setting.default)}",
        see=setting.see,
    )


def _of_losses_alone() -> dict[str, LossSetting]:
    """Leave out names that are settings of some trainer's correction too: these say both."""
    elsewhere = {name for trainer in TRAINERS.values() for name in trainer.settings}
    return {name: one for name, one in loss_settings().items() if name not in elsewhere}


LOSS_SETTINGS: Kind = Kind(
    title="setting of a loss",
    plural="Settings of a loss in `rcdiag replay`",
    names=_of_losses_alone,
    line=lambda name: first_clause(loss_settings()[name].says),
    entry=_loss_setting,
)
