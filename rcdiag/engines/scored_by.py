"""Summarise what engines recorded with every part as a table's metadata of a scored policy."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

About = Mapping[str, Any]
# What a part says beside the facts of its engine.
TOKENS, SECONDS = "tokens", "seconds"
# A sentence that a user should read: what went otherwise than the policy asks for.
NOTE = "note"
# The key, in a table's metadata, of the tokens that one engine scored in a second, by policy.
RATES = "tokens_per_second"


def facts_of(parts: Sequence[About]) -> dict[str, Any]:
    """Return the facts that a table holds of a policy, whose parts say these things.

    Where engines differ, in host, device, versions or anything else, the facts are those of the
    engine that scored most tokens. `differs` names what differs then, and `engines` lists for every
    kind of engine its host, what differs, its parts and its tokens.
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
    """Return the tokens that one engine has scored in a second; None where no part tells."""
    timed = [one for one in parts if _is_size(one.get(TOKENS)) and _is_size(one.get(SECONDS))]
    seconds = sum(one[SECONDS] for one in timed)
    return _tokens(timed) / seconds if seconds > 0 else None


def notes_of(parts: Iterable[About]) -> list[str]:
    """Return the sentences that engines left in parts, each once."""
    return sorted({str(part[NOTE]) for part in parts if NOTE in part})


def unlike(facts: About) -> str:
    """Say in what the engines of a policy differ; nothing where it is their host alone."""
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
    """Return the facts of an engine with those inside an object as `object.name`."""
    flat: dict[str, Any] = {}
    for name, value in _facts(part).items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": one for inner, one in value.items()}
        else:
            flat[name] = value
    return flat


def _is_size(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
