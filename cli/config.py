"""`--config FILE.toml`: one table per command, its options as defaults; flags win."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typer.core import TyperOption

from rcdiag.errors import RcdiagError, did_you_mean

# Options whose parameters have another name, because Python has a word like it.
NAMES = {"from": "format"}


CONFIG_HELP = "Take defaults of options from a TOML file, in which every command has a table"


class ConfigOption(TyperOption):
    """`--config` behind the name of a command; it is read before the command's other options."""

    def __init__(self) -> None:
        super().__init__(
            param_decls=["--config"],
            metavar="FILE",
            help=CONFIG_HELP,
            callback=_take_defaults,
            is_eager=True,
            expose_value=False,
        )


def _take_defaults(context: Any, parameter: Any, value: str | None) -> None:
    """Make the table of this command in the file the defaults of the options that follow."""
    if value is not None:
        commands = context.parent.command.all_commands(context.parent)
        context.default_map = read_defaults(Path(value), option_names(commands)).get(
            context.info_name, {}
        )


def option_names(commands: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return the options of every command, as names of parameters."""
    return {
        name: {parameter.name for parameter in command.params if parameter.expose_value}
        for name, command in commands.items()
    }


def read_defaults(path: Path, allowed: dict[str, set[str]]) -> dict[str, dict[str, Any]]:
    """Read the tables of the file; `allowed` are each command's options as parameter names."""
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise RcdiagError(f"--config {path}: {error.strerror}", "give a TOML file") from error
    except (ValueError, RecursionError) as error:
        raise RcdiagError(
            f"--config {path}: not TOML ({error})",
            hint='one table for each command, e.g. [score], and in it lines like trainer = "verl"',
        ) from error
    return {command: _options(path, command, table, allowed) for command, table in tables.items()}


def _options(path: Path, command: str, table: Any, allowed: dict[str, set[str]]) -> dict[str, Any]:
    if command not in allowed or not isinstance(table, dict):
        raise RcdiagError(
            f"--config {path}: `{command}` is no table of a command",
            hint=f"one table per command: {', '.join(f'[{name}]' for name in sorted(allowed))}",
        )
    options = {NAMES.get(key, key.replace("-", "_")): value for key, value in table.items()}
    for name in options:
        if name not in allowed[command]:
            raise RcdiagError(
                f"--config {path}: [{command}] has no option `{name}`",
                hint=f"{did_you_mean(name, allowed[command])}see rcdiag {command} --help",
            )
    return options
