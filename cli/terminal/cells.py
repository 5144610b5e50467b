"""All tables on the terminal share these cells."""

from __future__ import annotations

COLOURS = {"ok": "green", "unknown": "magenta", "note": "cyan", "warning": "yellow", "error": "red"}
BLOCKS = " ▁▂▃▄▅▆▇█"


def level(name: str | None) -> str:
    """Write a level in its colour."""
    return f"[{COLOURS[name]}]{name}[/]" if name else ""
