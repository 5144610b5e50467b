"""Read untrusted configuration text: YAML, and variables of shell scripts.

Nothing is executed, and aliases of YAML cannot blow it up in memory.
"""

from __future__ import annotations

import re
from typing import Any

# Trainers' whole configurations have up to 100 kB; a MB of YAML takes ten seconds to parse.
LONGEST = 1 << 19
# Values of a document with every alias (`*name`) written out: a few hundred bytes can stand for
# billions of values. https://en.wikipedia.org/wiki/Billion_laughs_attack
MOST_VALUES = 200_000
DEEPEST = 100

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
MOST_REPLACEMENTS = 8  # variables whose values are variables


def read_yaml(text: str, *, as_text: bool = False) -> Any:
    """Return the value of a YAML document, with `as_text` every number in it as it is written.

    ValueError says what is wrong with a text that is no YAML, is too long or too deep, or stands
    for too many values.
    """
    import yaml

    if len(text) > LONGEST:
        raise ValueError(f"{len(text):,} characters; a configuration has at most {LONGEST:,}")
    loader = None
    try:
        loader = (yaml.BaseLoader if as_text else yaml.SafeLoader)(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _size(node, {}, 0)
        return loader.construct_document(node)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except (yaml.YAMLError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(next(iter(str(error).splitlines()), "no YAML")) from error
    finally:
        if loader is not None:
            loader.dispose()


def _size(node: Any, known: dict[int, int], depth: int) -> int:
    """Return how many values a node stands for; ValueError beyond the limits.

    `known` are the sizes of nodes that were counted, by identity; 0 marks one around this node.
    """
    if id(node) in known:
        if not known[id(node)]:
            raise ValueError("an alias (`*name`) stands inside of what it names")
        return known[id(node)]
    if depth > DEEPEST:
        raise ValueError("it is nested too deeply")
    known[id(node)] = 0
    size = 1
    for part in node.value if isinstance(node.value, list) else ():
        for inner in part if isinstance(part, tuple) else (part,):
            size += _size(inner, known, depth + 1)
            if size > MOST_VALUES:
                raise ValueError(
                    f"its aliases (`*name`) stand for more than {MOST_VALUES:,} values"
                )
    known[id(node)] = size
    return size


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

    for _ in range(MOST_REPLACEMENTS):
        filled = _USED.sub(value_of, script)
        if filled == script or len(filled) > 4 * len(script) + 10_000:
            break
        script = filled
    return script
