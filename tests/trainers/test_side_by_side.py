"""docs/trainers-side-by-side.md names existing code of rcdiag."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "trainers-side-by-side.md").read_text(encoding="utf-8")
SHARED = ("corrections", "losses")  # in addition to the trainer's folder
_SECTION = re.compile(
    r"^## .*?\bHere:\s+`rcdiag/trainers/(\w+)/`.*?(?=^## |\Z)", re.MULTILINE | re.S
)


def named(section: str) -> Iterator[str]:
    """Return the code words in the last column of a section's tables."""
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.split(" | ")]
        if line.startswith("| ") and len(cells) > 1:
            for code in re.findall(r"`([^`]+)`", cells[-1]):
                yield from re.findall(r"[A-Za-z_]{2,}", code)


SECTIONS = {found[1]: found[0] for found in _SECTION.finditer(PAGE)}


def test_the_page_has_three_trainers() -> None:
    assert list(SECTIONS) == ["verl", "slime", "trl"]


@pytest.mark.parametrize("trainer", SECTIONS)
def test_names_in_it_are_in_the_code(trainer: str) -> None:
    folders = [f"trainers/{trainer}", *SHARED]
    files = [path for folder in folders for path in (ROOT / "rcdiag" / folder).glob("*")]
    texts = [path.name + path.read_text(encoding="utf-8") for path in files if path.is_file()]
    known = set(re.findall(r"[A-Za-z_]{2,}", " ".join(texts))) | {"rcdiag", *SHARED}
    assert [word for word in named(SECTIONS[trainer]) if word not in known] == []
