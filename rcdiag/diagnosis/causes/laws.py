"""What all causes in the law of sampling ask of a table."""

from __future__ import annotations

import numpy as np

from rcdiag.diagnosis.features import Features

# Below this rms log-ratio a law cannot be told from the noise of engines.
VISIBLE = 0.012
# A mean of ratios is not 1 beyond so many clustered standard errors.
BROKEN, HOLDS = 4.0, 3.5
FEWEST = 400  # tokens by which a law is told
# So many tokens are certain, and hardly any is nearly so, where sets of one token were kept.
CERTAIN, NEARLY, FEW_NEARLY = 20, -1e-3, 0.05
RARE = -1.5  # nats; some tokens have less, under any law


def usable(features: Features) -> bool:
    """Tell whether a table has tokens enough to tell a law of sampling by, rare ones too.

    Where a floor has taken the rare ones, means over the others say nothing of the law.
    """
    tokens = features.case.tokens
    return len(tokens) >= FEWEST and float(tokens.sampler.min()) < RARE


def sets_of_one(features: Features, policy: str | None) -> bool:
    """Tell whether a column is of laws that were renormalised over kept sets, by its zeros.

    A set of one token makes that token certain. In a whole law the surer tokens are, the nearer
    their log-probs come to 0, and few reach it.
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
