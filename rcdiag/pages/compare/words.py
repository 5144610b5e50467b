"""Terminal and page say this about several policies."""

from __future__ import annotations

from rcdiag.pages.formats import number, percent
from rcdiag.pages.score.words import alone
from rcdiag.results import CompareResult


def answer(result: CompareResult) -> str:
    """Say of several policies the largest step, and who is near the sampler."""
    if not result.pairs:
        return alone(next(iter(result.policies)))
    ladder = result.ladder
    near = f"nearest to the sampler: {', '.join(result.nearest_policies) or 'not known'}"
    if not ladder.rungs:
        return near
    whole = f"{ladder.policies[0]} → {ladder.policies[-1]}: k2 {number(ladder.whole.value)} nats"
    largest = max(ladder.rungs, key=lambda rung: rung.contribution.value or 0.0)
    adds = f", {largest.start} → {largest.end} adds {percent(largest.share)} of it"
    more = adds if len(ladder.rungs) > 1 and largest.share.value is not None else ""
    return f"{whole} per token{more}; {near}"


def counted_policies(result: CompareResult) -> str:
    """Count the policies of a comparison in words."""
    count = len(result.policies)
    return "1 policy" if count == 1 else f"{count} policies"
