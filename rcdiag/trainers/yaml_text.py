"""Read untrusted YAML: nothing is executed, and aliases cannot blow it up in memory."""

from __future__ import annotations

from typing import Any

# Trainers' whole configurations have up to 100 kB; a MB of YAML takes ten seconds to parse.
LONGEST = 1 << 19
# Values of a document with every alias (`*name`) written out: a few hundred bytes can stand for
# billions of values. https://en.wikipedia.org/wiki/Billion_laughs_attack
MOST_VALUES = 200_000
DEEPEST = 100


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
