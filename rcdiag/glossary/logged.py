"""Entries of the keys that trainers log, from the descriptions beside each trainer."""

from __future__ import annotations

from functools import lru_cache

from msgspec.structs import replace

from rcdiag.entry import Entry
from rcdiag.glossary.kinds import NameKind, also_called
from rcdiag.registry import revision
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.by_generation import grouped
from rcdiag.trainers.toml_words import KeyWords, read_keys


def _all_keys() -> dict[str, list[KeyWords]]:
    """Return, by key without prefix, the descriptions of the trainers that log it."""
    packages = dict.fromkeys(trainer.package for trainer in TRAINERS.values())
    words_by_key: dict[str, list[KeyWords]] = {}
    for package in packages:
        for name, words in read_keys(package).items():
            words_by_key.setdefault(name, []).append(words)
    return words_by_key


def _description(name: str) -> KeyWords | None:
    """Return the first trainer's description of a key, with or without prefix, or None."""
    return _spellings_at(revision()).get(name)


@lru_cache(maxsize=1)
def _spellings_at(at: int) -> dict[str, KeyWords]:
    """Return descriptions by every spelling of their key; `at` is the registries' revision."""
    words_by_spelling: dict[str, KeyWords] = {}
    for words in (words for meanings in _all_keys().values() for words in meanings):
        for spelling in words.spellings:
            words_by_spelling.setdefault(spelling, words)
    for spelling, words in list(words_by_spelling.items()):
        words_by_spelling.setdefault(spelling.rpartition("/")[2], words)
    for words in list(words_by_spelling.values()):
        for name in words.also_called:
            words_by_spelling.setdefault(name, words)
            for logger in words.loggers:
                words_by_spelling.setdefault(logger + name, words)
    return words_by_spelling


def find(name: str) -> str | None:
    """Return a name that some trainer logs, with or without prefix; None for any other name.

    A name that only documents use is replaced by the one that is logged.
    """
    words = _description(name)
    if words is None:
        return None
    return listed(words) if name.rpartition("/")[2] in words.also_called else name


def bare(name: str) -> str:
    """Return a key without prefixes; an unknown name loses everything up to `/`, and `mis_`."""
    words = _description(name)
    return words.name if words else name.rpartition("/")[2].removeprefix("mis_")


def listed(words: KeyWords) -> str:
    """Return a key as the newest generation spells it; a bare one gets the logger's prefix."""
    newest = list(words.names.values())[-1]
    return words.loggers[0] + newest if newest == words.name and words.loggers else newest


def generations(key: str) -> dict[str, str]:
    """Return, by group of generations, how they spell a key and what it means for them."""
    return grouped(
        {
            trainer: words.names[trainer] + (f": {text}" if text else "")
            for words in _all_keys()[key]
            for trainer, text in words.generations.items()
        }
    )


def _entry(name: str, words: KeyWords) -> Entry:
    """Return the entry of a key: one trainer's description, and the meaning in each trainer."""
    keys = _all_keys()[words.name]
    formulas = (key.entry().formula for key in (words, *keys))
    numbers = {trainer: f"{value:.4g}" for key in keys for trainer, value in key.numbers.items()}
    values = "; ".join(f"{value} in {trainers}" for trainers, value in grouped(numbers).items())
    return replace(
        words.entry(),
        formula=next(filter(None, formulas), None),
        generations=generations(words.name),
        example=f"{keys[0].example}: {values}" if values else keys[0].example,
    )


def _listed() -> dict[str, KeyWords]:
    """Return keys by their listed names; of keys that differ only in a placeholder, the first."""
    keys: dict[str, KeyWords] = {}
    patterns: set[str] = set()
    for words in (meanings[0] for meanings in _all_keys().values()):
        if words.pattern is None or words.pattern not in patterns:
            keys[listed(words)] = words
        patterns.add(words.pattern or "")
    return keys


KEYS = NameKind(
    title="number that trainers log",
    plural="Numbers that trainers log (a prefix may be left out)",
    definitions=_listed,
    definition=_description,
    entry=_entry,
    find=find,
    aliases=also_called(_listed()),
)
