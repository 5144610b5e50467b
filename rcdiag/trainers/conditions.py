"""Conditions of a trainer's tables, such as `when = { use_tis = true, tis_clip = { above = 1 } }`.

All of them have to hold. A condition is a value that the name must have, a list of such values, or
a table of tests: see TESTS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from rcdiag.errors import RcdiagError, did_you_mean

Conditions = Mapping[str, Any]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _one_of(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, list) else bool(value == wanted)


# Name of a test -> whether a value passes it.
TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    "is": _one_of,
    "null": lambda value, wanted: (value is None) == wanted,
    "on": lambda value, wanted: bool(value) == wanted,  # as Python's `if` takes it
    "not": lambda value, unwanted: not _one_of(value, unwanted),
    "above": lambda value, bound: _is_number(value) and value > bound,
    "at_most": lambda value, bound: _is_number(value) and value <= bound,
    "matches": lambda value, pattern: (
        isinstance(value, str) and re.search(pattern, value) is not None
    ),
    "count_above": lambda names, count: len(names or ()) > count,
    "beyond": lambda names, known: bool(beyond(names, known)),  # it has others than the known ones
}


def beyond(names: Any, known: Any) -> list[str]:
    """Return the names that are not known; a single name counts as a list of one."""
    several = () if names is None else (names,) if isinstance(names, str) else names
    return [name for name in several if name not in known]


def holds(when: Conditions, value_of: Callable[[str], Any]) -> bool:
    """Tell whether all conditions hold for the values of the names that they are about."""
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
