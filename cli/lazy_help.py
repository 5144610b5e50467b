"""Names in help texts: trainers, losses, backends, with those of installed plugins.

`--help` answers at once, so it imports no registry that would load numpy or torch. A help text
holds a placeholder, `{trainers}`. It becomes the names that ship, or, where a plugin is installed
or the registry is loaded already, all names of the registry.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Iterable

from msgspec import Struct

from rcdiag.errors import RcdiagError
from rcdiag.registry import GROUP

MOST = 8  # names that stand in a help text


class Names(Struct, frozen=True):
    """The names that may stand in one place of a help text."""

    module: str  # that of the registry
    shipped: str  # the names without any plugin, in short
    read: Callable[[], Iterable[str]]
    whole: bool = False  # all names, however many

    def __str__(self) -> str:
        plugins = importlib.metadata.entry_points(group=GROUP)
        if not plugins and self.module not in sys.modules:
            return self.shipped
        try:
            names = list(self.read())
        except RcdiagError:  # a plugin that fails: the command says which, its help still shows
            return self.shipped
        if len(names) > MOST and not self.whole:  # those of plugins are the last
            names = [*names[: MOST - 3], "...", *names[-2:]]
        return ", ".join(names)


def _trainers() -> Iterable[str]:
    from rcdiag.trainers import trainer_names

    return trainer_names()


def _writers() -> Iterable[str]:
    from rcdiag.trainers.emit import writer_names

    return writer_names()


def _losses() -> Iterable[str]:
    from rcdiag.losses import LOSSES

    return LOSSES


def _backends() -> Iterable[str]:
    from rcdiag.engines import BACKENDS

    return BACKENDS


def _readers() -> Iterable[str]:
    from rcdiag.table.readers import READERS

    return READERS


NAMES = {
    "{trainers}": Names("rcdiag.trainers", "verl (the newest), verl-0.6.0, ..., slime", _trainers),
    "{writers}": Names("rcdiag.trainers", "verl, verl-0.8.0, ..., slime", _writers),
    "{losses}": Names(
        "rcdiag.losses",
        "vanilla (PPO), gspo, cispo, sapo, gpg, geo_mean, dppo_tv, dppo_kl, kl_cov, dro",
        _losses,
    ),
    "{backends}": Names("rcdiag.engines", "hf, vllm", _backends),
    "{formats}": Names(
        "rcdiag.table.readers",
        "parquet, verl, nemo-rl, slime, miles, prime-rl, skyrl, open-instruct, roll, tinker, vllm, "
        "sglang, verl-jsonl, trl, areal, xtuner, ms-swift, art, json-lines",
        _readers,
        whole=True,
    ),
    "{readers}": Names(
        "rcdiag.table.readers",
        "verl, slime, nemo-rl, trl, vllm, ...",
        _readers,
    ),
}


def filled(text: str) -> str:
    """Return the text with names in their places."""
    for place in filter(text.__contains__, NAMES):
        text = text.replace(place, str(NAMES[place]))
    return text
