"""A part of the vocabulary is wrong, or missing from the softmax sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from rcdiag.diagnosis.causes.cause import LIKELY, Suspicion, fact, shipped
from rcdiag.diagnosis.features import Features, LogRatios
from rcdiag.diagnosis.thresholds import (
    FEWEST,
    FEWEST_OF_PATTERN,
    LARGE,
    MOST,
    MUCH_LARGER,
    NEARLY_ALL,
    PART,
    RARE,
    SURELY,
)
from rcdiag.formats import mean_ratio


def _vocab_shard(features: Features) -> Suspicion | None:
    """Detect a trainer whose softmax sum or output head lacks a part of the vocabulary."""
    # A wrong part of the vocabulary shows at every position, another prompt mostly at the first.
    if not features.log_ratios.show_sampling or features.log_ratios.first_tokens > MUCH_LARGER:
        return None
    log_ratios = features.log_ratios
    mean, (inverse, inverse_z) = log_ratios.ratio_mean[0], log_ratios.inverse_mean
    block = _id_block(features)
    # If the trainer's distribution sums to 1, E[1 / ratio] cannot be below 1; a few large ratios
    # hardly move this mean.
    missing = mean > 1.0 and inverse_z < -SURELY and log_ratios.one_sided > NEARLY_ALL
    missing &= not features.case.without_rare
    # A missing part of the sum does not change log-prob differences within one context.
    missing &= features.shared_prefixes is None or not features.shared_prefixes.is_one_power
    # The part is missing in every row: log-ratios above 0 in a few groups alone have another cause.
    tokens = features.case.tokens
    above = tokens.row_sums(log_ratios.values)[tokens.per_row > 0] > 0
    missing = missing and float(np.mean(above)) > MOST
    if not missing and block is None:
        return None
    if missing or block is None:
        evidence = _sums(log_ratios)
        message = (
            f"E[ratio] is {mean_ratio(mean)} and E[1 / ratio] {mean_ratio(inverse)}: the trainer's "
            "probabilities sum to more than 1, as when a part of the vocabulary is left out of the "
            "sum."
        )
    else:
        evidence = _of_block(log_ratios, block)
        message = (
            f"Only token ids {block[0]} to {block[1]} have log-probs that are far too low: a part "
            "of the vocabulary is wrong."
        )
    return Suspicion(
        confidence=LIKELY,
        message=message,
        evidence=[evidence],
        also_possible=["vocabulary-padding", "shard-wrong", "truncated-law"],
    )


def _sums(log_ratios: LogRatios) -> dict[str, Any]:
    """Return the means that show that the trainer's probabilities do not sum to 1."""
    (mean, z), (inverse, inverse_z) = log_ratios.ratio_mean, log_ratios.inverse_mean
    return fact(
        "E[ratio] and E[1 / ratio]",
        "the trainer's probabilities do not sum to 1",
        ratio=mean,
        ratio_z=z,
        inverse=inverse,
        inverse_z=inverse_z,
    )


def _of_block(log_ratios: LogRatios, block: tuple[int, int]) -> dict[str, Any]:
    """Return the mean log-ratio of a range of ids, and of all others."""
    ids = log_ratios.tokens.token_id
    inside = (ids >= block[0]) & (ids <= block[1])
    return fact(
        "mean log-ratio by token id",
        "one range of ids differs",
        in_range=log_ratios.values[inside].mean(),
        others=float(log_ratios.values[~inside].mean()) if not inside.all() else 0.0,
    )


def _id_block(features: Features) -> tuple[int, int] | None:
    """Return the range of ids whose log-probs are far too low, while hardly any other id's are."""
    tokens, log_ratios = features.case.tokens, features.log_ratios
    counts = np.bincount(tokens.token_id)
    means = np.bincount(tokens.token_id, log_ratios.values) / np.maximum(counts, 1)
    seen = np.flatnonzero(counts >= 2)
    bad = seen[means[seen] < -LARGE]
    if len(bad) < FEWEST_OF_PATTERN or len(seen) < 2 * FEWEST or np.median(means[bad]) > RARE:
        return None
    first, last = np.quantile(bad, [1 - NEARLY_ALL, NEARLY_ALL])
    inside = seen[(seen >= first) & (seen <= last)]
    wide = (last - first) / max(int(seen.max()), 1)
    # A wide range counts only if there are many ids outside it, and hardly any of them is too low.
    outside = seen[(seen < bad.min()) | (seen > bad.max())]
    if wide > PART and (len(outside) < FEWEST or np.mean(means[outside] > -LARGE) <= NEARLY_ALL):
        return None
    if np.mean(means[inside] < -LARGE) < MOST or len(inside) < MOST * len(bad):
        return None
    return int(bad.min()), int(bad.max())


VOCABULARY = (shipped("vocab-shard-wrong", "distribution", _vocab_shard),)
