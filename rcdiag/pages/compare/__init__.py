"""The page of `rcdiag compare` shows all pairs of the policies of a table."""

from __future__ import annotations

from typing import Any

from rcdiag.pages.compare import pairs, policies
from rcdiag.pages.compare.words import answer, counted_policies, means, nearness, sampler_of
from rcdiag.pages.definitions import Page
from rcdiag.pages.score.words import alone
from rcdiag.results import CompareResult


def context(result: CompareResult) -> dict[str, Any]:
    """Return how each policy was scored, how near it is, and how the pairs' numbers are made."""
    scored = {name: policy.scoring for name, policy in result.policies.items() if policy.scoring}
    sampler = sampler_of(result)
    return {
        "provenance_of_policies": scored,
        "nearness": {name: nearness(result, name) for name in result.policies},
        "means": {name: means(pair, sampler) for name, pair in result.pairs.items()},
        "counted": counted_policies(result),
        "alone": alone(next(iter(result.policies))),
    }


PAGE = Page(name="compare", template="compare/page.html.j2", context=context, answer=answer)

FIGURES = (*policies.FIGURES, *pairs.FIGURES)
