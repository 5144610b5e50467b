"""The commit of rcdiag's own source, read off a clone or off what pip wrote when it installed."""

from __future__ import annotations

import importlib.metadata
import json
import re
from functools import cache
from pathlib import Path

IS_COMMIT = re.compile(r"[0-9a-f]{40,64}")


@cache
def commit() -> str | None:
    """Return the commit of rcdiag's source; None where neither a clone nor pip tells it."""
    clone = Path(__file__).parents[2] / ".git"
    return commit_of_clone(clone) if clone.exists() else _commit_of_installation()


def commit_of_clone(git: Path) -> str | None:
    """Return the commit that is checked out, by the `.git` of a clone or of a tree beside one."""
    try:
        folder = _followed(git, "gitdir: ") if git.is_file() else git
        head = (folder / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return _checked(head)
        name = head.removeprefix("ref: ")
        common = _followed(folder / "commondir", "") if (folder / "commondir").exists() else folder
        for place in (folder, common):
            if (place / name).is_file():
                return _checked((place / name).read_text().strip())
        lines = (line.split() for line in (common / "packed-refs").read_text().splitlines())
        return next((_checked(line[0]) for line in lines if line[1:] == [name]), None)
    except (OSError, UnicodeDecodeError):  # a clone that is damaged, or of somebody else
        return None


def _followed(file: Path, prefix: str) -> Path:
    """Return the folder that a file of git names, by a path of its own folder."""
    return file.parent / file.read_text().strip().removeprefix(prefix)


def _checked(text: str) -> str | None:
    return text if IS_COMMIT.fullmatch(text) else None


def _commit_of_installation() -> str | None:
    try:
        written = importlib.metadata.distribution("rcdiag").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    told = json.loads(written) if written else {}
    return told.get("vcs_info", {}).get("commit_id")
