"""`--config FILE.toml`: one table per command, its options as defaults; flags win."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any

from rcdiag.errors import RcdiagError


def read_defaults(path: Path, known: dict[str, set[str]]) -> dict[str, dict[str, Any]]:
    """The tables of the file; `known` are the options of each command, as parameter names."""
    try:
        found = tomllib.loads(path.read_text())
    except OSError as error:
        raise RcdiagError(f"--config {path}: {error.strerror}", "give a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RcdiagError(f"--config {path}: not TOML ({error})", "see the README") from error
    return {command: _options(path, command, table, known) for command, table in found.items()}


def _options(path: Path, command: str, table: Any, known: dict[str, set[str]]) -> dict[str, Any]:
    if command not in known or not isinstance(table, dict):
        raise RcdiagError(
            f"--config {path}: `{command}` is no table of a command",
            hint=f"one table per command: {', '.join(f'[{name}]' for name in sorted(known))}",
        )
    options = {key.replace("-", "_"): value for key, value in table.items()}
    for name in options:
        if name not in known[command]:
            near = difflib.get_close_matches(name, known[command], n=1)
            raise RcdiagError(
                f"--config {path}: [{command}] has no option `{name}`",
                hint=f"did you mean `{near[0]}`?" if near else f"see rcdiag {command} --help",
            )
    return options
