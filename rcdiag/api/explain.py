"""`rcdiag.explain`: what a name in a result, a configuration or an option means."""

from __future__ import annotations

from typing import overload

from rcdiag.glossary import Entry, names
from rcdiag.glossary import explain as entry_of


@overload
def explain(name: str) -> Entry: ...
@overload
def explain(name: None = None) -> dict[str, dict[str, str]]: ...
def explain(name: str | None = None) -> Entry | dict[str, dict[str, str]]:
    """Say what a name means: formula, unit, direction, healthy range, and who calls it what.

    Without a name: all names with a line each, by kind. Upper case, spaces, `-` and `_` make no
    difference; RcdiagError with near names for one that nothing has.
    """
    return names() if name is None else entry_of(name)
