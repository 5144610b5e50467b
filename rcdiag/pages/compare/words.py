"""Sentences about several policies, for terminal and page."""

from __future__ import annotations

from rcdiag.formats import share, with_interval
from rcdiag.pages.score.words import alone
from rcdiag.results import CompareResult
from rcdiag.results.compare import Ladder
from rcdiag.results.score import NOT_GIVEN, WEIGHTED


def answer(result: CompareResult) -> str:
    """Summarise a comparison: k2 of the whole ladder, its largest step, the best-fitting policy."""
    if not result.pairs:
        return alone(next(iter(result.policies)))
    ladder, near = result.ladder, nearest(result)
    if not ladder.rungs:
        return near
    whole = f"k2({ladder.policies[0]}, {ladder.policies[-1]}) {with_interval(ladder.whole)} nats"
    more = _largest_step(ladder) if len(ladder.rungs) > 1 else ""
    return f"{whole} per token{more}; {near}"


def _largest_step(ladder: Ladder) -> str:
    """Say which step adds most, and its share if that is certain."""
    largest = max(ladder.rungs, key=lambda rung: rung.contribution.value or 0.0)
    if largest.share.value is None:
        return ""
    step = f"{largest.start} → {largest.end}"
    if largest.share.level == "unknown":
        return ", no step's share is certain"
    return f", {step} adds {share(largest.share)} of it"


def sampler_of(result: CompareResult) -> str | None:
    """Return the policy that sampled the tokens; None if it is not compared."""
    policies = result.policies.items()
    return next((name for name, policy in policies if policy.role == "sampler"), None)


def nearest(result: CompareResult) -> str:
    """Say which policies have the highest mean log-prob on the sampled tokens."""
    sampler, names = sampler_of(result), result.nearest_policies
    others = ", ".join(name for name in names if name != sampler)
    if sampler is None or not names:
        return f"best fit to the sampled tokens: {others or 'not known'}"
    if sampler not in names:
        return f"best fit to the sampled tokens: {others}, better than {sampler}"
    if not others:
        return f"{sampler} fits the sampled tokens best"
    return f"{sampler} and {others} fit the sampled tokens best"


def nearness(result: CompareResult, name: str) -> str:
    """Say whether a policy fits the sampled tokens best; "" if others fit better."""
    policy = result.policies[name]
    if policy.role != "sampler":
        return "best fit" if policy.may_be_nearest else ""
    compared = policy.behind.value is not None
    return "not best fit" if compared and not policy.may_be_nearest else "sampler"


def how_rows_are_made(result: CompareResult) -> str:
    """Say which distribution the rows of a KL matrix average over; "" if each over its own."""
    sampler, means = sampler_of(result), {pair.token_means for pair in result.pairs.values()}
    sentences = []
    if WEIGHTED in means:
        rows = "rows are" if sampler is None else f"rows other than {sampler} are"
        sentences.append(f"{rows} reweighted from {'the sampler' if sampler is None else 'it'}")
    if NOT_GIVEN in means:
        few = "too few effective samples after reweighting"
        unknown = sampler is None and WEIGHTED not in means
        sentences.append(f"n/a: {f'the sampler is not recorded, or {few}' if unknown else few}")
    return "; ".join(sentences)
