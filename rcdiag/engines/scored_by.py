"""Combine the metadata of a policy's parts into the policy's entry in the table's metadata."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

About = Mapping[str, Any]
# Keys of a part's metadata that are not facts about its engine.
TOKENS, SECONDS = "tokens", "seconds"
# Key of a sentence for the user: a way in which scoring departed from the policy.
NOTE = "note"
# Key of the table's metadata with the tokens per second of one engine, by policy.
RATES = "tokens_per_second"


def facts_of(parts: Sequence[About]) -> dict[str, Any]:
    """Return the facts that a table's metadata keep of a policy, from those of its parts.

    Engines may differ in host, device, versions or anything else. The facts are then those of the
    kind of engine that scored most tokens; `differs` names the facts that differ, and `engines`
    lists for every kind its host, the differing facts, its parts and its tokens.
    """
    kinds: dict[str, list[About]] = {}
    for part in parts:
        kinds.setdefault(json.dumps(_facts(part), sort_keys=True), []).append(part)
    most = max(kinds.values(), key=_tokens)
    facts = _facts(most[0])
    if len(kinds) == 1:
        return {name: value for name, value in facts.items() if name != "host"}
    flat = [_flat(of_kind[0]) for of_kind in kinds.values()]
    differs = sorted(
        name
        for name in set().union(*flat)
        if len({json.dumps(one.get(name), sort_keys=True) for one in flat}) > 1
    )
    engines = [
        {
            "host": one.get("host"),
            **{name: one.get(name) for name in differs if name != "host"},
            "parts": len(of_kind),
            "tokens": _tokens(of_kind),
        }
        for one, of_kind in zip(flat, kinds.values(), strict=True)
    ]
    return {**facts, "differs": differs, "engines": engines}


def rate_of(parts: Iterable[About]) -> float | None:
    """Return the tokens that one engine scored per second; None if no part has a time."""
    timed = [one for one in parts if _is_size(one.get(TOKENS)) and _is_size(one.get(SECONDS))]
    seconds = sum(one[SECONDS] for one in timed)
    return _tokens(timed) / seconds if seconds > 0 else None


def notes_of(parts: Iterable[About]) -> list[str]:
    """Return the distinct notes of the parts."""
    return sorted({str(part[NOTE]) for part in parts if NOTE in part})


def engine_differences(facts: About) -> str:
    """Say in which facts a policy's engines differ; "" if only in their host."""
    differs = facts.get("differs")
    engines = facts.get("engines")
    if not isinstance(differs, list) or not isinstance(engines, list):
        return ""
    names = [str(name) for name in differs if name != "host"]
    if not names:
        return ""
    kinds = "; ".join(
        f"{engine.get('host')}: {', '.join(str(engine.get(name)) for name in names)}"
        for engine in engines
        if isinstance(engine, Mapping)
    )
    return f"{len(engines)} kinds of engines that differ in {', '.join(names)} ({kinds})"


def _facts(part: About) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name not in (TOKENS, SECONDS, NOTE)}


def _tokens(parts: Iterable[About]) -> int:
    return sum(int(part.get(TOKENS, 0)) for part in parts)


def _flat(part: About) -> dict[str, Any]:
    """Return an engine's facts, with nested ones as `object.name`."""
    flat: dict[str, Any] = {}
    for name, value in _facts(part).items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": one for inner, one in value.items()}
        else:
            flat[name] = value
    return flat


def _is_size(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
