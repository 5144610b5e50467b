"""`rcdiag`: the commands, and the options before them."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path
from typing import Annotated

import typer

from cli import compare, convert, diagnose, explain, replay, report, score, sweep
from cli.command import Command
from cli.config import CONFIG_HELP, option_names, read_defaults

# Threads of torch spin while they wait, by default for so long that one busy neighbour on two cores
# made scoring 20 times slower; so, 3 to 5 times, and 5% without a neighbour (measured). Engines
# inherit it.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

app = typer.Typer(
    name="rcdiag",
    help="Find out why and how far the policy that sampled and the policy that trains disagree.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    epilog="Example: `rcdiag score sample_data/rollouts.parquet --html mismatch.html`",
)
app.command("score", cls=Command, epilog=score.EPILOG)(score.score)
app.command("compare", cls=Command, epilog=compare.EPILOG)(compare.compare)
app.command("diagnose", cls=Command, epilog=diagnose.EPILOG)(diagnose.diagnose)
app.command("sweep", cls=Command, epilog=sweep.EPILOG)(sweep.sweep)
app.command("replay", cls=Command, epilog=replay.EPILOG)(replay.replay)
app.command("convert", cls=Command, epilog=convert.EPILOG)(convert.convert)
app.command("explain", cls=Command, epilog=explain.EPILOG)(explain.explain)
app.command("report", cls=Command, epilog=report.EPILOG)(report.report)


def _version(requested: bool) -> None:
    if requested:
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
        commands = getattr(context.command, "commands", {})
        context.default_map = read_defaults(config, option_names(commands))
