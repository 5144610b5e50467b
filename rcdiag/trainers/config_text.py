"""Parse untrusted configuration text: YAML, and variables of shell scripts.

Nothing is executed, and YAML aliases cannot exhaust memory.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

# Whole configurations of trainers have up to 100 kB; parsing 1 MB of YAML takes ten seconds.
LONGEST = 1 << 19
# Limit on values after expansion of all aliases (`*name`): a few hundred bytes may expand to
# billions of values. https://en.wikipedia.org/wiki/Billion_laughs_attack
MOST_VALUES = 200_000
DEEPEST = 100

# `NAME=value` on its own line, and `: "${NAME:=value}"`, which sets a variable that has no value.
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
VARIABLE = re.compile(r"\$(?:\w+|\{[^{}]*\})")  # a variable that could not be replaced
MOST_REPLACEMENTS = 8  # limit on variables whose values are variables


def read_yaml(text: str, *, as_text: bool = False) -> Any:
    """Return the value of a YAML document; with `as_text`, numbers are returned as text.

    ValueError if the text is not YAML, is too long or nested too deeply, or expands to too many
    values.
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
    """Return the number of values in a node, aliases expanded; ValueError beyond the limits.

    `known` maps the id of a counted node to its size; 0 marks a node that contains this one.
    """
    if id(node) in known:
        if not known[id(node)]:
            raise ValueError("an alias (`*name`) refers to a value that contains it")
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


def is_python(text: str) -> bool:
    """Tell whether a text is a Python program that imports or defines something.

    XTuner and torchtitan are configured by such files. A line like `a.b=c` is Python too, and an
    override of a command line.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        try:
            body = ast.parse(text[: LONGEST + 1]).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return any(isinstance(one, (ast.Import, ast.ImportFrom, ast.FunctionDef)) for one in body)


def with_values(script: str) -> str:
    """Replace the variables of a script (without comments) by their values.

    A variable is not replaced if the script assigns it two values or the output of a command. A
    variable that the environment may set gets the default in the script.
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
