"""Conditions in a trainer's tables: on settings and facts, and on a whole configuration file.

`when = { use_tis = true, tis_clip = { above = 1 } }` holds if all of its conditions hold. A
condition is a value that the named setting must have, a list of such values, or a table of tests:
see TESTS. A `ClaimRule` determines for which generation of which trainer a configuration file is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec

from rcdiag.errors import RcdiagError, did_you_mean
from rcdiag.trainers.settings_document import MISSING, Document

Conditions = Mapping[str, Any]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _one_of(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, list) else bool(value == wanted)


# Test -> whether a value passes it.
TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    "is": _one_of,
    "null": lambda value, wanted: (value is None) == wanted,
    "on": lambda value, wanted: bool(value) == wanted,  # truth value, as in Python's `if`
    "not": lambda value, unwanted: not _one_of(value, unwanted),
    "above": lambda value, bound: _is_number(value) and value > bound,
    "at_most": lambda value, bound: _is_number(value) and value <= bound,
    "matches": lambda value, pattern: (
        isinstance(value, str) and re.search(pattern, value) is not None
    ),
    "count_above": lambda names, count: len(names or ()) > count,
    "beyond": lambda names, known: bool(beyond(names, known)),  # has names that are not known
}


def beyond(names: Any, known: Any) -> list[str]:
    """Return the names that are not in `known`; a single name counts as a list of one."""
    several = () if names is None else (names,) if isinstance(names, str) else names
    return [name for name in several if name not in known]


def holds(when: Conditions, value_of: Callable[[str], Any]) -> bool:
    """Tell whether all conditions hold for the values of their names."""
    for name, wanted in when.items():
        tests = wanted if isinstance(wanted, dict) else {"is": wanted}
        for test, argument in tests.items():
            if test not in TESTS:
                raise RcdiagError(
                    f"a trainer's table tests `{name}` by `{test}`",
                    hint=f"{did_you_mean(test, TESTS)}there are {', '.join(TESTS)}",
                )
            if not TESTS[test](value_of(name), argument):
                return False
    return True


class ClaimRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A generation claims a file if all conditions of a rule hold for it.

    The first of several rules that holds decides; certainty 0 means that the file belongs to
    another generation. Names are dotted and found at any depth.
    """

    certainty: float  # 0 to 1; 1 if its names occur in no other trainer
    doubt: str = ""  # which other generation could have written the file
    sets: tuple[str, ...] = ()  # the file has one of these settings; "*": any of the trainer's
    has: tuple[str, ...] = ()  # the file has one of these keys
    has_all: tuple[str, ...] = ()
    top: tuple[str, ...] = ()  # all of these keys are at the top of the file
    when: Conditions = {}  # on its settings; a missing one is null
    where: Conditions = {}  # on its keys; a missing one is null
    format: Literal["", "yaml", "toml", "flags"] = ""
    mentions: str = ""  # a shell script contains this word,
    more_than: str = ""  # and contains it more often than this one

    def holds(self, settings: Mapping[str, Any], document: Document, known: Iterable[str]) -> bool:
        """Tell whether the rule holds; `settings` are those in the file."""
        sets = set(self.sets) if "*" not in self.sets else set(known)
        mentioned = document.mentions(self.mentions) if self.mentions else 0

        def in_file(name: str) -> Any:
            value = document.find(name)
            return None if value is MISSING else value

        return (
            not (sets and not sets & settings.keys())
            and not (self.has and not document.has(*self.has))
            and all(document.has(name) for name in self.has_all)
            and all(name in document.tree for name in self.top)
            and holds(self.when, settings.get)
            and holds(self.where, in_file)
            and self.format in ("", document.format)
            and not (self.mentions and not mentioned)
            and not (self.more_than and mentioned <= document.mentions(self.more_than))
        )


def claim_by_rules(
    rules: Iterable[ClaimRule],
    known: Iterable[str],
    settings: Mapping[str, Any],
    document: Document,
) -> ClaimRule | None:
    """Return the first rule that holds; None if the file is not the trainer's."""
    first = next((rule for rule in rules if rule.holds(settings, document, known)), None)
    return first if first is not None and first.certainty else None
