"""What all commands share beside their options: help, guesses for refused words, Ctrl-C."""

from __future__ import annotations

import re
import sys
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption

from cli.config import ConfigOption
from cli.lazy_help import filled
from cli.terminal.visible import visible
from rcdiag.errors import did_you_mean
from rcdiag.formats import plural

# How Typer refuses a word that is none of an option's choices.
REFUSED = re.compile(r"(?:Value error, )?'(?P<word>.*)' is not one of (?P<choices>'.*')\.")

# Options that most runs need, by their parameters' names: `--help` shows these alone.
FIRST = {
    *("model", "policy", "checkpoint", "budget", "behavior", "target"),
    *("format", "given", "trainer", "preset", "trainer_config", "logged"),
    *("step", "loss", "advantage", "emit", "thresholds", "tokenizer", "against", "notebook"),
    *("output", "result", "html", "json", "plots"),
    *("fail_on", "rows", "force", "dry_run", "quiet", "verbose", "help", "help_all"),
}


class Command(TyperCommand):
    """A command that takes `--config`, names the nearest choice, and says what Ctrl-C keeps.

    Its help fills names in when it is shown. `--help` shows the options of `FIRST`, `--help-all`
    all of them.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        rare = [option for option in self._options() if option.name not in FIRST]
        if rare:
            self.params.append(HelpAll(len(rare)))
        self.params.append(ConfigOption())

    def _options(self) -> list[TyperOption]:
        return [option for option in self.params if isinstance(option, TyperOption)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help; texts and hidden options are restored afterwards."""
        shown = [
            option for option in self.params if isinstance(option, (TyperArgument, TyperOption))
        ]
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

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; a word that is no choice of an option is refused with a guess."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if refused := REFUSED.fullmatch(error.message):
                word, choices = refused["word"], refused["choices"].strip("'").split("', '")
                guess = did_you_mean(word, choices)
                error.message = f"'{word}'; {guess}one of {', '.join(choices)}"
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an interrupted one says in a line whether it can go on, and exits 130.

        Notes on the interrupt are sentences about work that is kept.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            notes = "; ".join(["interrupted", *getattr(interrupt, "__notes__", ())])
            print(visible(notes), file=sys.stderr)
            raise typer.Exit(130) from interrupt


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
