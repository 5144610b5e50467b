"""Which policy is nearest to what really sampled the tokens."""

from __future__ import annotations

from rcdiag.comparing.moments import Moments, mean
from rcdiag.results import MetricValue


def behind_the_best(moments: Moments) -> dict[str, MetricValue]:
    """Mean log-prob of the best policy less each policy's, paired by token, nats per token.

    Whatever policy s sampled, E_s[log p - log q] = KL(s || q) - KL(s || p): of several policies the
    one with the highest mean log-prob is nearest to s, and the difference says by how much.
    Source: reference/theory.md 0, F2.
    """
    totals = {name: float(moments.difference(name).sum()) for name in moments.policies}
    best = max(totals, key=lambda name: totals[name])
    return {
        name: mean(moments.difference(best) - moments.difference(name), moments.tokens)
        for name in moments.policies
    }


def is_nearest(behind: MetricValue) -> bool:
    """Whether its distance from the best may be 0; without an interval only the best itself."""
    if behind.low is None:
        return behind.value == 0.0
    return behind.low <= 0.0
