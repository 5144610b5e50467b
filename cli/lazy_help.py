"""Help that lists what can be named: trainers, losses, backends, those of installed plugins too.

`--help` answers at once, so it imports no registry that would load numpy or torch. A help text
holds a placeholder, `{trainers}`. It becomes the names that ship, or, where a plugin is installed
or the registry is loaded already, all names of the registry.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Iterable
from typing import Any

import typer
from msgspec import Struct
from typer.core import TyperArgument, TyperCommand, TyperOption

from rcdiag.errors import RcdiagError
from rcdiag.formats import plural
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


KINDS = (TyperArgument, TyperOption)


# Options that most runs need, by their parameters' names: `--help` shows these alone.
FIRST = {
    *("model", "policy", "checkpoint", "budget", "behavior", "target"),
    *("format", "given", "trainer", "preset", "trainer_config", "logged"),
    *("step", "loss", "advantage", "emit", "thresholds", "tokenizer", "against", "notebook"),
    *("output", "result", "html", "json", "plots"),
    *("fail_on", "rows", "force", "dry_run", "quiet", "verbose", "help", "help_all"),
}


class LazyHelp(TyperCommand):
    """A command whose help fills names in when it is shown, and leaves rare options out.

    `--help` shows the options of `FIRST`, `--help-all` all of them.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        rare = [option for option in self._options() if option.name not in FIRST]
        if rare:
            self.params.append(HelpAll(len(rare)))

    def _options(self) -> list[TyperOption]:
        return [option for option in self.params if isinstance(option, TyperOption)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help; what is changed for it is as before afterwards."""
        shown = [option for option in self.params if isinstance(option, KINDS)]
        before = [(option.help, option.hidden) for option in shown]
        epilog = self.epilog
        try:
            for option in shown:
                option.help = filled(option.help or "")
                rare = isinstance(option, TyperOption) and option.name not in FIRST
                option.hidden = option.hidden or (rare and not ctx.meta.get(ALL))
            self.epilog = filled(epilog or "")
            super().format_help(ctx, formatter)
        finally:
            for option, (text, hidden) in zip(shown, before, strict=True):
                option.help, option.hidden = text, hidden
            self.epilog = epilog


ALL = "rcdiag.help_all"  # in a context's `meta`: all options are asked for


class HelpAll(TyperOption):
    """`--help-all`: the help with the options that few runs need."""

    def __init__(self, rare: int) -> None:
        super().__init__(
            param_decls=["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            help=f"Show {plural(rare, 'more option')}",
            callback=_show_all,
        )


def _show_all(context: Any, parameter: Any, value: bool) -> None:
    if value:
        context.meta[ALL] = True
        typer.echo(context.get_help())
        context.exit()


def filled(text: str) -> str:
    """Return the text with names in their places."""
    for place in filter(text.__contains__, NAMES):
        text = text.replace(place, str(NAMES[place]))
    return text
