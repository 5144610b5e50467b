"""A command made from a function of the API: its options, help, run and interruption."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption

from cli.config import ConfigOption
from cli.names import names_of
from cli.options import WITH_MODEL, CommandOption, options_of
from cli.parameters import REQUIRED, Parameter, function_of
from cli.terminal.visible import visible
from rcdiag.errors import RcdiagError
from rcdiag.formats import plural

ALL = "rcdiag.help_all"  # key in a context's `meta`: the help shows all options


class Command(TyperCommand):
    """A command whose options are the parameters of an API function; `run` gets their values.

    `--help` shows the options that most runs need, `--help-all` all of them. Lists of names in the
    help are made only when it is shown.
    """

    def __init__(self, name: str, run: Callable[[dict[str, Any]], None], examples: str) -> None:
        self.own = options_of(name)
        self._run = run
        self._examples = examples
        super().__init__(
            name,
            params=[_option(parameter, option) for parameter, option in self.own.values()],
            help=function_of(name).says,
            rich_markup_mode="markdown",
            # `explain` accepts the flags of trainers as names: `rcdiag explain --use-tis`.
            context_settings={"ignore_unknown_options": name == "explain"},
        )
        self.params.append(ConfigOption())
        rare = sum(not self._is_common(str(option.name)) for option in self.params)
        self.params.append(HelpAll(rare))

    def _is_common(self, name: str) -> bool:
        if name not in self.own:
            return name != "config"
        _, option = self.own[name]
        return option.common or option.argument

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help; lists of names are filled in only now."""
        for option in self.params:
            assert isinstance(option, (TyperArgument, TyperOption))
            if option.name in self.own:
                option.help = self.help_of(option.name)
            option.hidden = not (self._is_common(str(option.name)) or ctx.meta.get(ALL))
        self.epilog = self._examples
        if "{formats}" in self.epilog:
            self.epilog = self.epilog.replace("{formats}", names_of("formats", most=100))
        super().format_help(ctx, formatter)

    def help_of(self, name: str) -> str:
        """Return a parameter's description with flags for parameter names, and an example."""
        parameter, option = self.own[name]
        words = re.sub(r"`(\w+)`", self._as_flag, parameter.sentence)
        names = f" ({names_of(option.names)})" if option.names else ""
        example = f"e.g. `{option.example}`" if option.example else ""
        repeatable = "repeatable" if option.repeats and not option.argument else ""
        return "; ".join(filter(None, [words + names, example, repeatable]))

    def _as_flag(self, name: re.Match[str]) -> str:
        """Write another parameter's name as its flag: `model` as `--model`."""
        if name[1] not in self.own:
            return name[0]
        return f"`{self.own[name[1]][1].flag(name[1])}`"

    def invoke(self, ctx: Any) -> None:
        """Run the command; if interrupted, print whether it can be continued, and exit 130.

        The notes of a KeyboardInterrupt are sentences about work that is kept.
        """
        try:
            self._run(self._values(ctx))
        except KeyboardInterrupt as interrupt:
            notes = "; ".join(["interrupted", *getattr(interrupt, "__notes__", ())])
            print(visible(notes), file=sys.stderr)
            raise typer.Exit(130) from interrupt

    def _values(self, ctx: Any) -> dict[str, Any]:
        """Return the values of all parameters; refuse options that need a model without one."""
        values = {}
        for name, (_, option) in self.own.items():
            value = ctx.params[name]
            source = ctx.get_parameter_source(name)
            given = source is not None and source.name == "COMMANDLINE"
            if given and option.panel == WITH_MODEL and ctx.params["model"] is None:
                raise RcdiagError(f"{option.flag(name)} needs a model", hint="--model CHECKPOINT")
            if option.repeats:
                value = list(value or ())
            values[name] = value if option.read is None else option.read(value)
        return values


def _option(parameter: Parameter, option: CommandOption) -> TyperArgument | TyperOption:
    """Make the option or the positional argument of a parameter."""
    required = parameter.default is REQUIRED
    choices = f"<{'|'.join(parameter.choices)}>" if parameter.choices else None
    shared: dict[str, Any] = {
        "type": parameter.type,
        "required": required,
        "metavar": option.metavar or choices,
        "rich_help_panel": option.panel,
    }
    if option.argument:
        count = -1 if option.repeats else 1
        return TyperArgument(param_decls=[parameter.name], nargs=count, **shared)
    if parameter.type is bool:
        shared["is_flag"] = True
    default = None if required or option.repeats else parameter.default
    return TyperOption(
        param_decls=[parameter.name, *(option.flags or [option.flag(parameter.name)])],
        default=default,
        show_default=default is not None and parameter.type is not bool,
        multiple=option.repeats,
        autocompletion=lambda context, words, begun: [
            word
            for word in (option.complete(context) if option.complete else parameter.choices)
            if word.startswith(begun)
        ],
        **shared,
    )


class HelpAll(TyperOption):
    """`--help-all`: the help including options that few runs need."""

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
