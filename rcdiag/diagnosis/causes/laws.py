"""What all causes in the law of sampling ask of a table."""

from __future__ import annotations

import numpy as np

from rcdiag.diagnosis.signs import Signs

# Below this rms log-ratio a law cannot be told from the noise of engines.
VISIBLE = 0.012
# A mean of ratios is not 1 beyond so many clustered standard errors.
BROKEN, HOLDS = 4.0, 3.5
FEWEST = 400  # tokens by which a law is told
RARE = -1.5  # nats; some tokens have less, under any law


def usable(signs: Signs) -> bool:
    """Tell whether a table has tokens enough to tell a law of sampling by, rare ones too.

    Where a floor has taken the rare ones, means over the others say nothing of the law.
    """
    tokens = signs.case.tokens
    return len(tokens) >= FEWEST and float(tokens.sampler.min()) < RARE


def declared_kept_set(signs: Signs) -> str | None:
    """Return which kept set the table's columns declare; None where none."""
    facts = signs.case.facts
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
