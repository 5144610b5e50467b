"""Every fragment of the changelog has a kind that a release collects."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_fragment_has_a_kind_that_is_collected_and_named():
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["towncrier"]
    kinds = [kind["directory"] for kind in tool["type"]]
    fragments = (ROOT / "changelog.d").glob("*.md")
    assert {path.name.split(".")[-2] for path in fragments} <= set(kinds)
    (named,) = re.findall(
        r"the kinds are\s(.*?)\.\s", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.DOTALL
    )
    assert re.findall(r"`(\w+)`", named) == kinds
