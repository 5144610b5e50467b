"""Count files and lines of every package: `python -m tools.sizes` updates the table.

The table of ARCHITECTURE.md has a row per package: its .py files and lines at an earlier commit,
those of today, and a description of what was removed or added. Only today's numbers are rewritten.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "ARCHITECTURE.md"
ROW = re.compile(
    r"^\| (`(?P<name>[\w/*.]+)`|all) \|(?P<before> [\d,]+ \| [\d,]+) \| [\d,]+ \| [\d,]+ \|"
    r"(?P<rest>.*)$",
    re.MULTILINE,
)


def counted(name: str | None) -> tuple[int, int]:
    """Return the number of Python files and lines of a package, or of the product for None."""
    if name is None:
        paths = [path for top in ("cli", "rcdiag") for path in (ROOT / top).rglob("*.py")]
    elif name == "rcdiag/*.py":
        paths = list((ROOT / "rcdiag").glob("*.py"))
    elif name in ("cli", "tests"):
        paths = list((ROOT / name).rglob("*.py"))
    else:
        paths = list((ROOT / "rcdiag" / name).rglob("*.py"))
    return len(paths), sum(len(path.read_text().splitlines()) for path in paths)


def written(page: str) -> str:
    """Return a page with today's numbers in every row of its table."""

    def row(match: re.Match[str]) -> str:
        files, lines = counted(match["name"])
        return f"| {match[1]} |{match['before']} | {files:,} | {lines:,} |{match['rest']}"

    return ROW.sub(row, page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
