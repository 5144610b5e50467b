"""`--config FILE.toml`: defaults of options, one table for each command; flags override them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typer.core import TyperOption

from rcdiag.errors import RcdiagError, did_you_mean

# Parameter -> another name that a file may use for it.
ALSO = {"settings": "setting", "lr": "learning_rate", "source": "dump", "sources": "dump"}

Options = Mapping[str, Mapping[str, Any]]  # command -> any spelling of an option -> option
LONGEST = 80  # characters of a value that an error shows

CONFIG_HELP = "Take defaults of options from a TOML file, which has a table for each command"


class ConfigOption(TyperOption):
    """`--config` after the name of a command; it is read before the command's other options."""

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
    """Use this command's table in the file as defaults of the other options."""
    if value is not None:
        commands = context.parent.command.all_commands(context.parent)
        context.default_map = read_defaults(Path(value), spellings_of(commands)).get(
            context.info_name, {}
        )


def spellings_of(commands: Mapping[str, Any]) -> Options:
    """Return the options of every command by their flags, parameter names, and `ALSO`."""
    return {
        name: {
            spelling.lstrip("-").replace("-", "_"): option
            for option in command.params
            if option.expose_value
            for spelling in (
                option.name,
                ALSO.get(option.name, ""),
                *option.opts,
                *option.secondary_opts,
            )
            if len(spelling.lstrip("-")) > 1  # no short flag
        }
        for name, command in commands.items()
    }


def read_defaults(path: Path, allowed: Options) -> dict[str, dict[str, Any]]:
    """Read the tables of the file; `allowed` has the options of each command."""
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


def _options(path: Path, command: str, table: Any, allowed: Options) -> dict[str, Any]:
    if command not in allowed or not isinstance(table, dict):
        raise RcdiagError(
            f"--config {path}: `{command}` is not a table of a command",
            hint=f"one table per command: {', '.join(f'[{name}]' for name in sorted(allowed))}",
        )
    options = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in allowed[command]:
            raise RcdiagError(
                f"--config {path}: [{command}] has no option `{name}`",
                hint=f"{did_you_mean(name, allowed[command])}see rcdiag {command} --help",
            )
        option = allowed[command][name]
        checked = _value(f"--config {path}: [{command}] {key}", value, option)
        is_off = f"--{name.replace('_', '-')}" in option.secondary_opts  # `no-host = true`
        options[option.name] = not checked if is_off else checked
    return options


def _value(where: str, value: Any, option: Any) -> Any:
    """Return an option's value as text of the command line, which is parsed and checked later."""
    is_flag = getattr(option, "is_flag", False)
    takes_list = getattr(option, "multiple", False) or option.nargs != 1
    if is_flag:
        fits, wanted = isinstance(value, bool), "true or false"
    elif takes_list:
        fits = isinstance(value, list) and all(map(_is_word, value))
        wanted = "a list of texts or numbers"
    else:
        fits, wanted = _is_word(value), "a text or a number"
    if not fits:
        shown = json.dumps(value, default=str)[:LONGEST]
        raise RcdiagError(f"{where} = {shown}: wants {wanted}", hint="--help describes the option")
    if is_flag:
        return value
    return [str(one) for one in value] if takes_list else str(value)


def _is_word(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)
