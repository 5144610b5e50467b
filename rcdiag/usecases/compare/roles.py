"""Who is who among the policies of a table, and their order from the sampler to the trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rcdiag.errors import RcdiagError

LOW_PRECISION = ("bfloat16", "float16", "auto")


def _is_low(about: Mapping[str, Any]) -> bool:
    return about.get("dtype") in LOW_PRECISION


def _options(about: Mapping[str, Any]) -> Mapping[str, Any]:
    return about.get("options") or {}


def repeat_of(about: Mapping[str, Any]) -> str | None:
    """The policy that this one is a second run of."""
    return _options(about).get("repeat_of")


def role(name: str, about: Mapping[str, Any], behavior: str) -> str:
    """Sampler, engine (re-scored), trainer (scored), repeat, or recorded by somebody."""
    if name == behavior:
        return "sampler"
    if repeat_of(about):
        return "repeat"
    return {"vllm": "engine", "hf": "trainer"}.get(str(about.get("backend")), "recorded")


def describe(about: Mapping[str, Any]) -> str:
    """Engine and precision in a few words."""
    if not about.get("backend"):
        return "recorded"
    options = _options(about)
    words = [str(about["backend"]), str(about.get("dtype", ""))]
    path = options.get("path") or about.get("path")
    words += [str(path)] if path else []
    words += [f"autocast {options['autocast']}"] if "autocast" in options else []
    words += [f"{options['lm_head']} head"] if "lm_head" in options else []
    known = ("path", "autocast", "lm_head", "repeat_of")
    words += [f"{key}={value}" for key, value in options.items() if key not in known]
    return " ".join(words)


def _rank(name: str, about: Mapping[str, Any], behavior: str) -> int:
    """Place on the way from sampler to trainer: decode, prefill, low precision, ..., float32."""
    options = _options(about)
    if name == behavior:
        return 0
    if about.get("backend") == "vllm":
        return (1 if options.get("path") == "decode" else 2) if _is_low(about) else 6
    if about.get("backend") == "hf":
        if _is_low(about):
            return 5 if options.get("lm_head") == "float32" else 3
        return 4 if "autocast" in options else 7
    return 8


def ladder_order(
    names: Sequence[str], policies: Mapping[str, Any], behavior: str, target: str | None
) -> list[str]:
    """Behavior first, target last, between them by engine and precision; no repeats."""
    once = [name for name in names if not repeat_of(policies.get(name, {}))]
    between = [name for name in once if name not in (behavior, target)]
    between.sort(key=lambda name: _rank(name, policies.get(name, {}), behavior))
    first = [behavior] if behavior in once else []
    last = [target] if target in once and target != behavior else []
    return [*first, *between, *last]


def choose(names: Sequence[str], chosen: Sequence[str], where: str, *, least: int = 2) -> list[str]:
    """The policies to compare: all, or those chosen, in the order given."""
    for name in chosen:
        if name not in names:
            raise RcdiagError(
                f"{where}: no `{name}_log_probs`; there are policies {', '.join(names)}",
                hint="score it first: rcdiag score ... -o FILE",
            )
    wanted = list(dict.fromkeys(chosen)) or list(names)
    if len(wanted) < least:
        raise RcdiagError(
            f"{where}: {len(wanted)} policies to compare ({', '.join(wanted) or 'none'})",
            hint="score another: --policy NAME=BACKEND:DTYPE --model PATH",
        )
    return wanted
