"""A column holds values other than the sampled token's log-prob."""

from __future__ import annotations

import numpy as np

from rcdiag.diagnosis.case import Array
from rcdiag.diagnosis.causes.cause import CLEAR, EXACT, LIKELY, Suspicion, fact, shipped
from rcdiag.diagnosis.causes.columns import by_column, side_of
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.features.storage import StoredColumn
from rcdiag.diagnosis.thresholds import (
    ALL,
    CERTAIN,
    COARSE,
    EQUAL,
    FEWEST,
    HARDLY_EVER,
    NEARLY_ALL,
    RARE,
    RELATED,
    ROUNDING,
    SAME,
    TWICE,
    UNSURE,
)

MAJORITY = -TWICE  # nats; a token with more than half of the mass is the likeliest one
LARGEST_ENTROPY = 8.0  # nats; no context has more


def _columns_identical(features: Features) -> Suspicion | None:
    tokens = features.case.tokens
    if len(tokens) < FEWEST:
        return None
    same = float(np.mean(tokens.sampler == tokens.trainer))
    if same < ALL:
        return None
    if features.declared.bitwise or _computed_again(features):
        return None
    return Suspicion(
        confidence=CLEAR,
        message="Both columns hold the same numbers to the last bit: one is a copy of the other, "
        "or one engine made both. There is no mismatch to measure.",
        evidence=[fact("share of equal values", "two engines never agree exactly", value=same)],
        verdict="inconclusive",
    )


def _computed_again(features: Features) -> bool:
    """Tell whether a re-score reproduces both columns to the last bit.

    Both sides can then have computed these values. The sampler's engine is asked first: if only the
    trainer's model reproduces the values, the sampler's column is a copy.
    """
    tokens = features.case.tokens
    engine, model = features.rescored
    name = engine or model
    if name is None:
        return False
    return float(np.mean(features.case.log_probs[name][tokens.place] == tokens.sampler)) > ALL


def _top_one(features: Features) -> Suspicion | None:
    case = features.case
    tokens = case.tokens
    for policy, own, other in (
        (case.sampler, tokens.sampler, tokens.trainer),
        (str(case.trainer), tokens.trainer, tokens.sampler),
    ):
        likely = other > MAJORITY
        rare = (other > HARDLY_EVER) & (other < UNSURE)
        if min(likely.sum(), rare.sum()) < FEWEST:
            continue
        if np.median(own[rare] - other[rare]) < TWICE:
            continue
        # The likeliest token has at most 1 minus the probability of another sampled one.
        remaining = np.log(-np.expm1(np.clip(other[rare], -30, -EQUAL)))
        fits = float(np.mean(own[rare] <= remaining + COARSE))
        above = float(np.mean(own >= other - COARSE))
        # A sampled token with more than half of the mass is the likeliest one itself.
        equal = float(np.mean(np.abs(own - other)[likely] < COARSE))
        # The probability of the likeliest token does not depend on how rare the sampled one is.
        follows = float(np.corrcoef(own[rare], other[rare])[0, 1])
        if min(fits, above, equal) > NEARLY_ALL and not follows > SAME:
            return Suspicion(
                confidence=CLEAR,
                message=f"`{policy}` gives rare tokens the probability of the likeliest one: "
                f"a median of {np.exp(np.median(own[rare])):.2f}, where the other side gives "
                f"{np.exp(np.median(other[rare])):.2g}.",
                evidence=[
                    fact(
                        "log-prob of rare tokens",
                        "it is that of the most likely token",
                        **{policy: np.median(own[rare])},
                        other_side=np.median(other[rare]),
                    )
                ],
                side=side_of(features, policy),
                also_possible=["entropy-recorded"],
            )
    return None


@by_column
def _entropy_recorded(features: Features, policy: str, column: StoredColumn) -> Suspicion | None:
    positive = float(np.mean(column.values[column.finite] >= 0)) if column.finite.any() else 0
    values = -np.abs(column.values) if positive > NEARLY_ALL else column.values
    stated = _states_entropy(features, policy)
    if not stated and not _like_entropy(values, column.other):
        return None
    others = column.other[np.isfinite(column.other)]
    spread = float(np.std(others)) if len(others) else 0.0
    return Suspicion(
        confidence=EXACT if stated else LIKELY,
        message=f"The values of `{policy}` are the entropy of the next token"
        f"{'' if positive > NEARLY_ALL else ' with a minus sign'}, not the sampled token's "
        "log-prob: rare tokens have ordinary values, and likely ones values that are too low.",
        evidence=[
            fact(
                "spread of values / spread of the other side's",
                "entropies spread less",
                **{policy: float(np.std(values)) / max(spread, EQUAL)},
            )
        ],
        also_possible=["top-one-recorded"],
        repaired=features.case.without_tokens(np.ones(len(features.case.mask), np.bool_)),
    )


def holds_entropy(features: Features, policy: str) -> bool:
    """Tell whether a policy's values are entropies, with or without a minus sign."""
    column = features.columns[policy]
    values = -np.abs(column.values)
    return _states_entropy(features, policy) or _like_entropy(values, column.other)


def _states_entropy(features: Features, policy: str) -> bool:
    """Tell whether a policy's values are those of its column of entropies."""
    if policy not in features.case.entropy:
        return False
    entropy = features.case.entropy[policy][features.case.mask]
    values = np.abs(features.columns[policy].values)
    usable = np.isfinite(values) & np.isfinite(entropy) & (entropy > COARSE)
    apart = np.abs(values - entropy)[usable]
    return len(apart) > FEWEST and float(np.median(apart)) < ROUNDING


def _like_entropy(values: Array, other: Array) -> bool:
    """Tell whether values are minus the entropies of contexts in which `other` sampled."""
    usable = np.isfinite(values) & np.isfinite(other)
    values, other = values[usable], other[usable]
    likely, rare = (other > MAJORITY) & (other < CERTAIN), other < RARE
    if min(likely.sum(), rare.sum()) < FEWEST:
        return False
    # The entropy is at least minus the log-prob of the likeliest token, never very large, and at
    # rare tokens mostly below the surprisal.
    lower = float(np.mean(values[likely] < other[likely]))
    alike = float(np.corrcoef(values[rare], other[rare])[0, 1])
    return (
        alike < RELATED
        and lower > NEARLY_ALL
        and float(np.median(values[rare] - other[rare])) > 0.0
        and float(np.min(values)) > -LARGEST_ENTROPY
    )


RECORDING = (
    shipped("columns-identical", "recording", _columns_identical),
    shipped("entropy-recorded", "recording", _entropy_recorded, needs_two=False),
    shipped("top-one-recorded", "recording", _top_one),
)
