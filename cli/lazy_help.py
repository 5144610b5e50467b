"""Help that lists what can be named: trainers, losses, backends, those of installed plugins too.

`--help` answers at once, so it imports no registry that would load numpy or torch. A help text
holds a placeholder, `{trainers}`. It becomes the names that ship, or, where a plugin is installed
or the registry is loaded already, all names of the registry.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from typer.core import TyperCommand, TyperOption

from rcdiag.errors import RcdiagError
from rcdiag.registry import GROUP


@dataclass(frozen=True, slots=True)
class Names:
    """The names that may stand in one place of a help text."""

    module: str  # that of the registry
    shipped: str  # the names without any plugin, in short
    read: Callable[[], Iterable[str]]

    def __str__(self) -> str:
        plugins = importlib.metadata.entry_points(group=GROUP)
        if not plugins and self.module not in sys.modules:
            return self.shipped
        try:
            return ", ".join(self.read())
        except RcdiagError:  # a plugin that fails: the command says which, its help still shows
            return self.shipped


def _trainers() -> Iterable[str]:
    from rcdiag.trainers import TRAINERS

    return ("verl (the newest)", *TRAINERS)


def _losses() -> Iterable[str]:
    from rcdiag.trainers.generations import GENERATIONS

    return dict.fromkeys(loss for each in GENERATIONS.values() for loss in each.losses)


def _backends() -> Iterable[str]:
    from rcdiag.engines import BACKENDS

    return BACKENDS


def _emitted() -> Iterable[str]:
    from rcdiag.trainers.emit import WRITERS

    return ("verl", *WRITERS)


NAMES = {
    "{trainers}": Names(
        "rcdiag.trainers", "verl (the newest), verl-0.6.0, ..., verl-0.9, slime", _trainers
    ),
    "{losses}": Names(
        "rcdiag.trainers.generations",
        "vanilla (PPO), gspo, cispo, sapo, gpg, geo_mean, dppo_tv, dppo_kl, kl_cov, dro",
        _losses,
    ),
    "{backends}": Names("rcdiag.engines", "hf, vllm", _backends),
    "{emitted}": Names("rcdiag.trainers.emit", "verl, verl-0.6.1, ..., slime", _emitted),
}


class Command(TyperCommand):
    """A command that fills the names into the help of its options when the help is shown."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        options = [option for option in self.params if isinstance(option, TyperOption)]
        templates = [option.help or "" for option in options]
        try:
            for option, text in zip(options, templates, strict=True):
                for place in filter(text.__contains__, NAMES):
                    option.help = text.replace(place, str(NAMES[place]))
            super().format_help(ctx, formatter)
        finally:
            for option, text in zip(options, templates, strict=True):
                option.help = text
