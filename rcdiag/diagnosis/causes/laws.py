"""Tests that all causes in the sampling distribution share."""

from __future__ import annotations

import numpy as np

from rcdiag.diagnosis.features import Features

# Below this rms log-ratio no sampling cause stands out from engine noise.
VISIBLE = 0.012
# Clustered standard errors from which a mean ratio is not 1, and up to which it is.
BROKEN, HOLDS = 4.0, 3.5
FEWEST = 400  # fewest tokens to judge the sampling distribution
# Kept sets of one token: fewest exact zeros, what counts as nearly 0 (nats), and the most of these
# as a share of the zeros.
CERTAIN, NEARLY, FEW_NEARLY = 20, -1e-3, 0.05
RARE = -1.5  # nats; some tokens have less, under any distribution


def usable(features: Features) -> bool:
    """Tell whether there are enough tokens to judge the sampling distribution, rare ones included.

    If a floor removed the rare ones, means over the others are biased.
    """
    tokens = features.case.tokens
    return len(tokens) >= FEWEST and float(tokens.sampler.min()) < RARE


def sets_of_one(features: Features, policy: str | None) -> bool:
    """Detect kept sets of one token in a column: many exact zeros, and hardly a value near 0.

    Without a kept set there are more values near 0 than zeros.
    """
    column = features.columns.get(policy or "")
    if column is None or column.decimals is not None:
        return False
    certain = int((column.values == 0.0).sum())
    nearly = int(((column.values < 0.0) & (column.values > NEARLY)).sum())
    return certain >= CERTAIN and nearly <= FEW_NEARLY * certain


def declared_kept_set(features: Features) -> str | None:
    """Return which kept set the table's columns declare; None where none."""
    facts = features.case.facts
    for slug, values, acts in (
        ("top-p-renormalised", facts.top_p, lambda v: v < 1.0),
        ("top-k-renormalised", facts.top_k, lambda v: v > 0),
        ("min-p-renormalised", facts.min_p, lambda v: v > 0.0),
    ):
        if values is not None and np.isfinite(values).any():
            known = values[np.isfinite(values)]
            if float(np.mean(acts(known))) > 0.9:
                return slug
    return None
