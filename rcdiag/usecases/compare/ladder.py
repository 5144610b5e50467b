"""Roles of policies, their order from the sampler to the trainer, and what each step adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rcdiag.diagnosis.guides import judged_share
from rcdiag.diagnosis.triangulation import at_floor
from rcdiag.engines import BACKENDS
from rcdiag.engines.backend import COMMON_OPTIONS, LadderRung
from rcdiag.engines.backend import describe as describe_policy
from rcdiag.errors import RcdiagError
from rcdiag.results import Ladder, MetricValue, NoiseFloor, Rung
from rcdiag.statistics.moments import Moments, mean
from rcdiag.statistics.ratios import Array

UNKNOWN = 1 + max(LadderRung)  # place of policies of unknown origin, after all scored ones


def repeat_of(about: Mapping[str, Any]) -> str | None:
    """Return the policy that this one is a second run of, or None."""
    return (about.get("options") or {}).get("repeat_of")


def role(name: str, about: Mapping[str, Any], sampler: str | None) -> str:
    """Return the role of a policy: sampler, engine, trainer, repeat, or recorded.

    `engine` and `trainer` are policies that rcdiag scored. If a policy was scored by a backend that
    is not installed here, its role is the backend's name.
    """
    if name == sampler:
        return "sampler"
    if repeat_of(about):
        return "repeat"
    backend = about.get("backend")
    if not backend:
        return "recorded"
    return BACKENDS[backend].role if backend in BACKENDS else str(backend)


def describe(about: Mapping[str, Any]) -> str:
    """Describe a policy by its backend, precision and options."""
    backend = about.get("backend")
    if not backend:
        return "recorded"
    if backend not in BACKENDS:
        return describe_policy(about, COMMON_OPTIONS)
    return describe_policy(about, {**BACKENDS[backend].options, **COMMON_OPTIONS})


def ladder_order(
    names: Sequence[str], policies: Mapping[str, Any], behavior: str, target: str | None
) -> list[str]:
    """Return the policies, without repeats: behavior, others by engine and precision, target.

    `current`, the policy that is being updated, follows the target, from which it started.
    """

    def rank(name: str) -> int:
        """Return the place between sampler and trainer; policies of unknown origin come last."""
        about = policies.get(name, {})
        backend = str(about.get("backend"))
        return BACKENDS[backend].place(about) if backend in BACKENDS else UNKNOWN

    once = [name for name in names if not repeat_of(policies.get(name, {}))]
    first = [behavior] if behavior in once else []
    last = [name for name in (target, "current") if name in once and name not in first]
    between = sorted((name for name in once if name not in (*first, *last)), key=rank)
    return list(dict.fromkeys([*first, *between, *last]))


def choose(names: Sequence[str], chosen: Sequence[str], where: str, *, least: int = 2) -> list[str]:
    """Return the policies to compare: all, or the chosen ones in their order."""
    for name in chosen:
        if name not in names:
            raise RcdiagError(
                f"{where}: no `{name}_log_probs`; there are policies {', '.join(names)}",
                hint="score it first: rcdiag score ... -o FILE",
            )
    policies = list(dict.fromkeys(chosen)) or list(names)
    if len(policies) < least:
        raise RcdiagError(
            f"{where}: compare needs two policies; there is {', '.join(policies) or 'none'}",
            hint="score another: rcdiag score ... --policy NAME=BACKEND:DTYPE --model PATH -o FILE",
        )
    return policies


def behind_the_best(moments: Moments) -> dict[str, MetricValue]:
    """Return the mean log-prob of the best policy minus each policy's, nats per token.

    Differences are paired by token. For any sampling policy s, E_s[log p - log q] =
    KL(s || q) - KL(s || p): of several policies the one with the highest mean log-prob is nearest
    to s, by the difference of these means.
    Source: the logarithmic score is strictly proper, Gneiting and Raftery 2007, Strictly Proper
    Scoring Rules, Prediction, and Estimation, section 3.
    """
    totals = {name: float(moments.difference(name).sum()) for name in moments.policies}
    best = max(totals, key=lambda name: totals[name])
    with np.errstate(invalid="ignore"):  # the difference of infinite sums is NaN
        return {
            name: mean(moments.difference(best) - moments.difference(name), moments.tokens)
            for name in moments.policies
        }


def is_nearest(behind: MetricValue) -> bool:
    """Tell whether a policy's distance from the best one may be 0, or without an interval is 0."""
    if behind.low is None:
        return behind.value == 0.0
    return behind.low <= 0.0


def ladder(
    moments: Moments,
    distances: Mapping[tuple[str, str], MetricValue],
    order: Sequence[str],
    floor: NoiseFloor | None,
) -> Ladder:
    """Every step's part in the mismatch between both ends; `distances` holds the k2 of every pair.

    With d the log-ratio between both ends and e_i that of a step, d = sum e_i, so
    E[d^2] / 2 = sum E[e_i d] / 2 exactly. A contribution is negative if a step reverses others.
    """
    if len(order) < 2:
        return Ladder(policies=list(order), whole=MetricValue(value=None), rungs=[])
    rungs = [_rung(moments, distances, order, index, floor) for index in range(1, len(order))]
    return Ladder(policies=list(order), whole=distances[order[0], order[-1]], rungs=rungs)


def _rung(
    moments: Moments,
    distances: Mapping[tuple[str, str], MetricValue],
    order: Sequence[str],
    index: int,
    floor: NoiseFloor | None,
) -> Rung:
    start, end, first, last = order[index - 1], order[index], order[0], order[-1]

    def with_whole(name: str) -> Array:
        """Return sums by cluster of the policy's log-prob times the log-ratio of both ends."""
        return moments.product(name, last) - moments.product(name, first)

    part = 0.5 * (with_whole(end) - with_whole(start))
    whole = 0.5 * moments.squares(first, last)
    share = mean(part, whole)
    # The only step, or the only one between different log-probs, is the whole: one number has one
    # interval.
    alone = len(order) == 2 or np.allclose(part, whole, rtol=1e-12, atol=0.0)
    apart = distances[start, end]
    return Rung(
        start=start,
        end=end,
        contribution=distances[first, last] if alone else mean(part, moments.tokens),
        share=share if alone else judged_share(share),
        k2=apart,
        log_ratio_mean=mean(moments.difference(end) - moments.difference(start), moments.tokens),
        at_floor=at_floor(apart, floor),
    )
