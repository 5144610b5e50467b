"""What all commands share beside their options: refused words get a guess, Ctrl-C gets a line."""

from __future__ import annotations

import re
import sys
from typing import Any

import typer

from cli.config import ConfigOption
from cli.lazy_help import LazyHelp
from cli.terminal.visible import visible
from rcdiag.errors import did_you_mean

# How Typer refuses a word that is none of an option's choices.
REFUSED = re.compile(r"(?:Value error, )?'(?P<word>.*)' is not one of (?P<choices>'.*')\.")


class Command(LazyHelp):
    """A command that takes `--config`, names the nearest choice, and says what Ctrl-C keeps."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params.append(ConfigOption())

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
