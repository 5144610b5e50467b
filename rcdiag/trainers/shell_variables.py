"""Replace variables of a shell script by the values that the script assigns; nothing is run."""

from __future__ import annotations

import re

# `NAME=value` as a line of its own, and `: "${NAME:=value}"`, which gives a value to what has none.
_ASSIGNED = re.compile(
    r"^[ \t]*(?:(?:export|readonly|local|declare)[ \t]+)?(?P<name>[A-Za-z_]\w*)="
    r"(?P<value>'[^']*'|\"[^\"\n]*\"|[^\s;&|()'\"]*)[ \t]*;?[ \t]*$",
    re.MULTILINE,
)
_DEFAULT = re.compile(
    r"^[ \t]*:[ \t]+\"?\$\{(?P<name>[A-Za-z_]\w*):?=(?P<value>[^{}\n]*)\}\"?[ \t]*;?[ \t]*$",
    re.MULTILINE,
)
_USED = re.compile(
    r"\$(?:(?P<plain>[A-Za-z_]\w*)|\{(?P<name>\w+)(?::?[-=](?P<default>[^{}\n]*))?\})"
)
VARIABLE = re.compile(r"\$(?:\w+|\{[^{}]*\})")  # of which no value is known
DEEPEST = 8  # variables whose values are variables


def with_values(script: str) -> str:
    """Return a script, which has no comments, with its variables replaced by their values.

    A variable stays where the script assigns it two values, or the output of a command. One that
    the environment may set gets the default that is written.
    """
    values: dict[str, set[str]] = {}
    for found in (*_ASSIGNED.finditer(script), *_DEFAULT.finditer(script)):
        name, value = found["name"], found["value"]
        if value[:1] in ("'", '"') and value[-1:] == value[0] and len(value) > 1:
            value = value[1:-1]
        own = _USED.fullmatch(value)  # NAME=${NAME:-value}
        if own and own["default"] is not None and own["name"] in (name, *"0123456789"):
            value = own["default"].strip("\"'")
        values.setdefault(name, set()).add(value)
    known = {
        name: next(iter(given))
        for name, given in values.items()
        if len(given) == 1 and not re.search(r"\$\(|`", next(iter(given)))
    }

    def value_of(used: re.Match[str]) -> str:
        name = used["plain"] or used["name"]
        if name in known:
            return known[name]
        if used["default"] is not None and name not in values:
            return used["default"].strip("\"'")
        return used[0]

    for _ in range(DEEPEST):
        filled = _USED.sub(value_of, script)
        if filled == script or len(filled) > 4 * len(script) + 10_000:
            break
        script = filled
    return script
