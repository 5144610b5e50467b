"""`rcdiag`: the commands, and how errors become exit codes."""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import report, score
from rcdiag.errors import RcdiagError

app = typer.Typer(
    name="rcdiag",
    help="Find out why and how far the policy that sampled and the policy that trains disagree.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    epilog="Example: `rcdiag score sample_data/rollouts.parquet --html mismatch.html`",
)
app.command("score", epilog=score.EPILOG)(score.score)
app.command("report", epilog=report.EPILOG)(report.report)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rcdiag {importlib.metadata.version('rcdiag')}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(envvar="RCDIAG_CONFIG", help="Take defaults of options from a TOML file"),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version")
    ] = False,
) -> None:
    """Options before the command."""
    if config is not None:
        context.default_map = _defaults(config)


def _defaults(path: Path) -> dict[str, Any]:
    """`[score]` tables of a TOML file as defaults of the command; flags win."""
    try:
        found = tomllib.loads(path.read_text())
    except OSError as error:
        raise RcdiagError(f"--config {path}: {error.strerror}", "give a TOML file") from error
    except tomllib.TOMLDecodeError as error:
        raise RcdiagError(f"--config {path}: not TOML ({error})", "see the README") from error
    commands = {command.name for command in app.registered_commands}
    if unknown := sorted(set(found) - commands):
        raise RcdiagError(
            f"--config {path}: no command `{unknown[0]}`",
            hint=f"one table per command: {', '.join(f'[{name}]' for name in sorted(commands))}",
        )
    return {
        command: {key.replace("-", "_"): value for key, value in options.items()}
        for command, options in found.items()
    }


def main() -> None:
    """Run a command; 0 ran, 1 findings, 2 could not run, 130 interrupted."""
    try:
        app()
    except RcdiagError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception:
        # A bug of ours: the whole traceback, and never the exit code that means "findings".
        sys.excepthook(*sys.exc_info())
        sys.exit(2)


if __name__ == "__main__":
    main()
