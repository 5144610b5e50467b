"""`rcdiag`: the commands, and the options before them."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from cli.command import Command
from cli.config import CONFIG_HELP, options_of, read_defaults

# Threads of torch spin while they wait. With the default, one busy neighbour on two cores made
# scoring 20 times slower; with this value 3 to 5 times, at a cost of 5% on an idle machine
# (measured). Engines inherit it.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# Each is a module of that name, with a function of that name and the EPILOG of its help.
NAMES = ("score", "compare", "diagnose", "sweep", "replay", "convert", "explain", "report")


def _command(name: str) -> TyperCommand:
    module = importlib.import_module(f"cli.{name}")
    alone = typer.Typer(
        add_completion=False, rich_markup_mode="markdown", pretty_exceptions_show_locals=False
    )
    alone.command(name, cls=Command, epilog=module.EPILOG)(getattr(module, name))
    command = get_command(alone)
    assert isinstance(command, TyperCommand)
    return command


class Root(TyperGroup):
    """`rcdiag` itself, which imports a command when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of the help."""
        return [*NAMES]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None where there is none of that name."""
        if cmd_name in NAMES and cmd_name not in self.commands:
            self.commands[cmd_name] = _command(cmd_name)
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that is asked for; an unknown name is compared with all of them."""
        if args and args[0] not in NAMES:
            self.all_commands(ctx)
        return super().resolve_command(ctx, args)

    def all_commands(self, ctx: Any) -> dict[str, Any]:
        """Return every command by its name."""
        return {name: self.get_command(ctx, name) for name in NAMES}


app = typer.Typer(
    name="rcdiag",
    cls=Root,
    help="Why and how far the policy that sampled and the policy that trains disagree.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    epilog="Example: `rcdiag score sample_data/rollouts.parquet --html mismatch.html`",
)


def _version(requested: bool) -> None:
    if requested:
        import importlib.metadata

        typer.echo(f"rcdiag {importlib.metadata.version('rcdiag')}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(envvar="RCDIAG_CONFIG", help=CONFIG_HELP),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version")
    ] = False,
) -> None:
    """Options before the command."""
    if config is not None:
        assert isinstance(context.command, Root)
        options = options_of(context.command.all_commands(context))
        context.default_map = read_defaults(config, options)
