"""Entries of terms without a definition in code: field terms, levels, verdicts, roles, choices.

They are in `words.toml`.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

import msgspec
from msgspec import structs

from rcdiag.entry import Entry, first_clause
from rcdiag.glossary.kinds import NameKind, also_called

FILE = Path(__file__).with_name("words.toml")


class Word(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file: the entry of a term, and other names of the term."""

    aliases: tuple[str, ...] = ()

    def entry(self) -> Entry:
        """Return the entry without the aliases."""
        return Entry(**{one.name: getattr(self, one.name) for one in structs.fields(Entry)})


@cache
def words() -> dict[str, dict[str, Word]]:
    """Return all terms by kind and name."""
    tables = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return msgspec.convert(tables, dict[str, dict[str, Word]])


def _kind(name: str, title: str, plural: str) -> NameKind:
    aliases = {alias: word for word, entry in words()[name].items() for alias in entry.aliases}
    return NameKind(
        title=title,
        plural=plural,
        definitions=lambda: words()[name],
        line=lambda word: first_clause(word.what),
        aliases=aliases | also_called(words()[name]),
    )


LEVEL = _kind("level", "level", "Levels")
# Named `verdict-healthy` in the file, since the cause `healthy` has the bare name.
VERDICT = _kind("verdict", "verdict", "Verdicts")
TERM = _kind("word", "word", "Words")
TREATMENT = _kind("treatment", "treatment of weights", "Treatments of weights outside the bounds")
ANSWER = _kind("answer", "answer of a sweep", "Answers of `rcdiag sweep`")
ROLE = _kind("role", "role of a policy", "Roles of policies in `rcdiag compare`")
CHOICE = _kind("choice", "choice of a replay", "What can be chosen in `rcdiag replay`")
NAME = structs.replace(
    _kind("name", "name in results", "Names in results"),
    # The entry of `layer 0` explains every layer.
    find=lambda name: "layer 0" if re.fullmatch(r"layer[\s_-]*\d+", name.lower()) else None,
)
