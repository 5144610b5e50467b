"""`--config FILE.toml`: one table per command, its options as defaults; flags win."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from rcdiag.errors import RcdiagError, did_you_mean

# Options whose parameters have another name, because Python has a word like it.
NAMES = {"from": "format"}


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
