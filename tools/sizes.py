"""Count files and lines of every package: `python -m tools.sizes` writes the table anew.

The table of ARCHITECTURE.md begins with the heading `| package |`. Columns after the third are
those of an earlier commit, which stay.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "ARCHITECTURE.md"
ROW = re.compile(
    r"^\| (`(?P<name>[\w/*.]+)`|all) \| [\d,]+ \| [\d,]+ \|(?P<rest>.*)$", re.MULTILINE
)


def counted(name: str | None) -> tuple[int, int]:
    """Return how many files of .py and .toml a package has, and their lines; None is all."""
    if name is None:
        paths = [path for top in ("cli", "rcdiag") for path in (ROOT / top).rglob("*")]
    elif name == "rcdiag/*.py":
        paths = list((ROOT / "rcdiag").glob("*"))
    else:
        paths = list((ROOT / ("" if name == "cli" else "rcdiag") / name).rglob("*"))
    files = [path for path in paths if path.suffix in (".py", ".toml") and path.is_file()]
    return len(files), sum(len(path.read_text().splitlines()) for path in files)


def written(page: str) -> str:
    """Return a page with the numbers of today in every row of its table."""

    def row(match: re.Match[str]) -> str:
        files, lines = counted(match["name"])
        return f"| {match[1]} | {files:,} | {lines:,} |{match['rest']}"

    return ROW.sub(row, page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
