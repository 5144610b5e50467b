"""Causes by which the sampler pushes tokens: penalties for those that occurred, and biases."""

from __future__ import annotations

import numpy as np

from rcdiag.diagnosis.causes.cause import Suspicion, fact, shipped
from rcdiag.diagnosis.causes.laws import BROKEN, VISIBLE, usable
from rcdiag.diagnosis.signs import Law, Signs

# Repeated tokens are compared with new ones of the same id that are about as likely.
LIKE = (-16.0, -2.0, -0.5, -0.05)
FEWEST_OF_KIND = 2  # tokens of an id, repeated and new
LEAST_GAP, SURELY = 0.06, 5.0  # of shares, and standard errors


def _penalty(signs: Signs) -> Suspicion | None:
    """Look for a law that depends on whether a token has occurred."""
    if not usable(signs) or signs.law.rms < VISIBLE or signs.law.rms > 1.0:
        return None
    gap, z = _repeated_less_new(signs.law)
    if gap < LEAST_GAP or z < SURELY or abs(signs.law.ratio_mean[1]) > 2 * BROKEN:
        return None
    return Suspicion(
        confidence=0.85,
        message="The sampler gives tokens that occurred before less than the trainer does: the log-"
        f"ratio is positive {100 * gap:.0f} percentage points more often for repeated tokens than "
        f"for new ones of the same id and like probability ({z:.0f} standard errors).",
        evidence=[
            fact(
                "share of log-ratios above 0, repeated less new tokens of the same id",
                "a penalty for repetition or presence",
                gap=gap,
                z=z,
            )
        ],
        also_possible=["repetition-penalty", "presence-penalty", "logit-bias"],
    )


def _repeated_less_new(law: Law) -> tuple[float, float]:
    """Return how much more often repeated tokens have a positive log-ratio than new ones of the
    same id and of like log-prob, and its z.

    Other weights move each token by its id and context, whether it has occurred or not.
    """
    tokens = law.tokens
    unsure = (tokens.trainer < LIKE[-1]) & (np.abs(law.log_ratio) > max(0.005, 0.05 * law.rms))
    kind = tokens.token_id[unsure].astype(np.int64) * len(LIKE)
    kind += np.digitize(tokens.trainer[unsure], LIKE)
    up = law.log_ratio[unsure] > 0
    again = law.repeated[unsure]
    size = int(kind.max(initial=-1)) + 1
    counts = [np.bincount(kind[part], minlength=size) for part in (again, ~again)]
    shared = (counts[0] >= FEWEST_OF_KIND) & (counts[1] >= FEWEST_OF_KIND)
    if not shared.any():
        return 0.0, 0.0
    many, few = (count[shared] for count in counts)
    ups = [np.bincount(kind[part & up], minlength=size)[shared] for part in (again, ~again)]
    share = (ups[0] + ups[1]) / (many + few)
    variance = np.maximum(share * (1.0 - share), 0.02) * (1.0 / many + 1.0 / few)
    total = float(np.sum(1.0 / variance))
    gap = float(np.sum((ups[0] / many - ups[1] / few) / variance)) / total
    return gap, gap * total**0.5


def pushed(signs: Signs) -> Suspicion | None:
    """Look for few token ids that the sampler pushes by a constant, all else being honest."""
    if not usable(signs) or signs.law.rms < VISIBLE:
        return None
    law = signs.law
    few = _few_ids(law)
    if few is None or law.first_tokens > 4 or law.rms > 1.0:
        return None
    ids, mean, held = few
    up = mean < 0
    return Suspicion(
        confidence=0.75,
        message=f"The sampler gives token id{'s' if len(ids) > 1 else ''} "
        f"{', '.join(str(one) for one in ids[:4])} {'more' if up else 'less'} than the trainer "
        f"does, by {abs(mean):.1f} nats on the mean, and all others a little "
        f"{'less' if up else 'more'}: a bias on their logits.",
        evidence=[
            fact(
                "log-ratio of these ids",
                "of the other sign than those of all other ids",
                ids=ids[:8],
                mean=mean,
                share_of_squares=held,
            )
        ],
        also_possible=["tied-head-desync", "penalty"],
    )


def _few_ids(law: Law) -> tuple[list[int], float, float] | None:
    """Return few ids that stand apart to one side, their mean log-ratio, and the share of squared
    log-ratios that they hold; None unless all other ids are moved the other way, as normalising
    moves them.
    """
    ids, values = law.tokens.token_id, law.log_ratio
    counts = np.bincount(ids)
    means = np.bincount(ids, values) / np.maximum(counts, 1)
    seen = np.flatnonzero(counts >= 8)
    if len(seen) < 20:
        return None
    middle = float(np.median(means[seen]))
    spread = float(np.median(np.abs(means[seen] - middle)))
    apart = seen[np.abs(means[seen] - middle) > max(8.0 * spread, 0.15)]
    if not len(apart):
        return None
    squares = np.bincount(ids, values**2)
    loudest = apart[np.argsort(-squares[apart])]
    sign = np.sign(means[loudest[0]])
    pushed_ids = loudest[np.sign(means[loudest]) == sign]
    if len(pushed_ids) > max(8, len(seen) // 20):
        return None
    named = np.isin(ids, pushed_ids)
    alike = float(np.mean(np.sign(values[named]) == sign)) > 0.9
    rest = values[~named] ** 2
    other_way = float(rest[np.sign(values[~named]) == -sign].sum() / max(rest.sum(), 1e-300))
    held = float(squares[pushed_ids].sum() / max(squares.sum(), 1e-300))
    if not alike or held < 0.15 or other_way < 0.9:
        return None
    return [int(one) for one in pushed_ids], float(values[named].mean()), held


PENALTIES = (shipped("penalty", "law", _penalty),)
