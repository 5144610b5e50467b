"""What all tables on the terminal share."""

from __future__ import annotations

COLOURS = {"ok": "green", "unknown": "magenta", "note": "cyan", "warning": "yellow", "error": "red"}
BLOCKS = " ▁▂▃▄▅▆▇█"


def level(name: str | None) -> str:
    """A level in its colour."""
    return f"[{COLOURS[name]}]{name}[/]" if name else ""
