"""Who is who among the policies of a table, and their order from the sampler to the trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rcdiag.engines import BACKENDS
from rcdiag.engines.backend import COMMON_OPTIONS, LadderRung
from rcdiag.engines.backend import describe as describe_policy
from rcdiag.errors import RcdiagError

SAMPLER, UNKNOWN = 0, 1 + max(LadderRung)  # before and after all places of scored policies


def repeat_of(about: Mapping[str, Any]) -> str | None:
    """The policy that this one is a second run of."""
    return (about.get("options") or {}).get("repeat_of")


def role(name: str, about: Mapping[str, Any], behavior: str) -> str:
    """What a policy stands for: sampler, engine, trainer, repeat, or recorded.

    `engine` and `trainer` are policies that rcdiag scored. The role of a policy that a backend
    scored which is not installed here is that backend's name.
    """
    if name == behavior:
        return "sampler"
    if repeat_of(about):
        return "repeat"
    backend = about.get("backend")
    if not backend:
        return "recorded"
    return BACKENDS[backend].role if backend in BACKENDS else str(backend)


def describe(about: Mapping[str, Any]) -> str:
    """Backend, precision and options of a policy in a few words."""
    backend = about.get("backend")
    if not backend:
        return "recorded"
    if backend not in BACKENDS:
        return describe_policy(about, COMMON_OPTIONS)
    return describe_policy(about, {**BACKENDS[backend].options, **COMMON_OPTIONS})


def _rank(name: str, about: Mapping[str, Any], behavior: str) -> int:
    """Place on the way from sampler to trainer; policies of unknown making stand last."""
    if name == behavior:
        return SAMPLER
    backend = str(about.get("backend"))
    return BACKENDS[backend].place(about) if backend in BACKENDS else UNKNOWN


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
    policies = list(dict.fromkeys(chosen)) or list(names)
    if len(policies) < least:
        raise RcdiagError(
            f"{where}: {len(policies)} policies to compare ({', '.join(policies) or 'none'})",
            hint="score another: rcdiag score ... --policy NAME=BACKEND:DTYPE --model PATH -o FILE",
        )
    return policies
