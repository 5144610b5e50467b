"""Changes of the sampler's logits: penalties for repeated tokens, and biases."""

from __future__ import annotations

import numpy as np

from rcdiag.diagnosis.case import Array, Counts, Flags
from rcdiag.diagnosis.causes.cause import CLEAR, LIKELY, Suspicion, fact, shipped
from rcdiag.diagnosis.features import ENGINE_NOISE, LARGE_MISMATCH, Features, LogRatios
from rcdiag.diagnosis.thresholds import (
    COARSE,
    FEW,
    FEWEST,
    FEWEST_ROWS,
    LARGE,
    MANY_TIMES,
    MOST,
    MOST_IDS,
    MUCH_LARGER,
    NEARLY_ALL,
    PART,
    ROUNDING,
    SURELY,
    TINY,
)

# Edges of the log-prob bins, nats: repeated tokens are compared with first uses of the same id that
# are about as likely.
LIKE = (-16.0, -2.0, -0.5, -0.05)
FEWEST_OF_KIND = 2  # tokens of an id, repeated and new
LEAST_GAP = 0.06  # between the shares of positive log-ratios
# A log-ratio has a sign if it is larger than rounding and than this share of the rms.
SHARE_SIGNED = 0.05


def _penalty(features: Features) -> Suspicion | None:
    """Detect a penalty as the only fault: then the recorded distribution sampled, and E[ratio] is
    1.
    """
    return None if abs(features.log_ratios.ratio_mean[1]) > 2 * SURELY else penalty(features)


def penalty(features: Features) -> Suspicion | None:
    """Detect a sampler's distribution that depends on whether a token has occurred before.

    Along a response more and more tokens have occurred, so that a penalty does not fade.
    """
    log_ratios = features.log_ratios
    if not log_ratios.show_sampling or not ENGINE_NOISE <= log_ratios.rms <= LARGE:
        return None
    if log_ratios.late < 1 / MUCH_LARGER:
        return None
    gap, z = _repetition_gap(log_ratios)
    if gap < LEAST_GAP or z < SURELY:
        return None
    return Suspicion(
        slug="penalty",
        confidence=CLEAR,
        message="The sampler gives tokens that occurred before a lower probability than the "
        f"trainer does: the log-ratio is positive {100 * gap:.0f} percentage points more often for "
        f"repeated tokens than for new ones of the same id and similar probability ({z:.0f} "
        "standard errors).",
        evidence=[
            fact(
                "share of log-ratios above 0, repeated minus first uses of an id",
                "a penalty for repetition or presence",
                gap=gap,
                z=z,
            )
        ],
        also_possible=["repetition-penalty", "presence-penalty", "logit-bias"],
    )


def _repetition_gap(log_ratios: LogRatios) -> tuple[float, float]:
    """Return P(log_ratio > 0) of repeated tokens minus that of new ones, and its z score.

    Repeated and new tokens of the same id and of similar log-prob are compared: other weights move
    a token by its id and context, whether it has occurred before or not.
    """
    tokens = log_ratios.tokens
    unsure = (tokens.trainer < LIKE[-1]) & (
        np.abs(log_ratios.values) > max(ROUNDING, SHARE_SIGNED * log_ratios.rms)
    )
    kind = tokens.token_id[unsure].astype(np.int64) * len(LIKE)
    kind += np.digitize(tokens.trainer[unsure], LIKE)
    up = log_ratios.values[unsure] > 0
    again = log_ratios.repeated[unsure]
    size = int(kind.max(initial=-1)) + 1
    counts = [np.bincount(kind[part], minlength=size) for part in (again, ~again)]
    shared = (counts[0] >= FEWEST_OF_KIND) & (counts[1] >= FEWEST_OF_KIND)
    if not shared.any():
        return 0.0, 0.0
    many, few = (count[shared] for count in counts)
    ups = [np.bincount(kind[part & up], minlength=size)[shared] for part in (again, ~again)]
    share = (ups[0] + ups[1]) / (many + few)
    variance = np.maximum(share * (1.0 - share), FEW) * (1.0 / many + 1.0 / few)
    total = float(np.sum(1.0 / variance))
    gap = float(np.sum((ups[0] / many - ups[1] / few) / variance)) / total
    return gap, gap * total**0.5


def pushed(features: Features) -> Suspicion | None:
    """Detect a constant bias on the logits of a few token ids."""
    log_ratios = features.log_ratios
    if (
        not log_ratios.show_sampling
        or log_ratios.rms < ENGINE_NOISE
        or log_ratios.first_tokens > MUCH_LARGER
    ):
        return None
    found = _biased_ids(log_ratios)
    if found is None:
        return None
    ids, sign = found
    named = np.isin(log_ratios.tokens.token_id, ids)
    moved, squares = log_ratios.values[named], log_ratios.values**2
    edge = float((sign * moved).max())
    if _left_by_one_bias(log_ratios, named, -sign * edge) >= FEW:
        return None
    names = f"token id{'s' if len(ids) > 1 else ''} {', '.join(map(str, ids[:4]))}"
    more, less = ("more", "less") if sign < 0 else ("less", "more")
    return Suspicion(
        confidence=LIKELY,
        message=f"The sampler gives {names} {more} probability than the trainer does, by up to "
        f"{edge:.1f} nats, and all others a little {less}: a bias on their logits.",
        evidence=[
            fact(
                "log-ratio of these ids",
                "of the other sign than those of most other ids",
                ids=ids[:8].tolist(),
                mean=moved.mean(),
                share_of_squares=round(float(squares[named].sum() / squares.sum()), 3),
            )
        ],
        also_possible=["tied-head-desync", "penalty"],
    )


def _biased_ids(log_ratios: LogRatios) -> tuple[Counts, float] | None:
    """Find a few token ids whose log-ratios have one sign while most others have the other sign.

    A bias on a few logits looks like this: normalisation moves all other ids slightly the other
    way. Ids too rare to be chosen may be biased too. Return the ids, the one with the largest sum
    of squares first, and the sign.
    """
    ids, values = log_ratios.tokens.token_id, log_ratios.values
    counts = np.bincount(ids)
    seen = np.flatnonzero(counts >= FEWEST_ROWS)
    if len(seen) < FEWEST:
        return None
    # A bias hardly moves near-certain tokens, so the rms of an id's log-ratios is informative and
    # their mean is not.
    squares = np.bincount(ids, values**2)
    rms = np.sqrt(squares / np.maximum(counts, 1))
    apart = seen[rms[seen] > max(MANY_TIMES * float(np.median(rms[seen])), COARSE)]
    if not len(apart):
        return None
    signed = np.bincount(ids, np.sign(values) * values**2)
    loudest = apart[np.argsort(-squares[apart])]
    sign = float(np.sign(signed[loudest[0]]))
    chosen = loudest[np.sign(signed[loudest]) == sign]
    if len(chosen) > max(MOST_IDS, FEW * len(seen)):
        return None
    named = np.isin(ids, chosen)
    others = values[~named]
    other_way = _share_of_sign(others[np.abs(others) > ENGINE_NOISE], -sign)
    held = float(squares[chosen].sum() / max(squares.sum(), TINY))
    if _share_of_sign(values[named], sign) < NEARLY_ALL or held < PART or other_way < MOST:
        return None
    return chosen, sign


def _left_by_one_bias(log_ratios: LogRatios, named: Flags, size: float) -> float:
    """Return the share of some ids' squared log-ratios that a bias on their logits leaves.

    A bias b on a token of the trainer's probability p makes the log-ratio
    log(1 + p (e^b - 1)) - b: -b where the token is rare, near 0 where it is certain, and never
    beyond. Other weights move each id by an amount of its own.
    """
    moved = log_ratios.values[named]
    if np.count_nonzero(np.abs(moved) > LARGE_MISMATCH) < FEWEST_ROWS:
        return 1.0
    expected = np.log1p(np.exp(log_ratios.tokens.trainer[named]) * np.expm1(size)) - size
    return float(np.sum((moved - expected) ** 2) / max(float(np.sum(moved**2)), TINY))


def _share_of_sign(values: Array, sign: float) -> float:
    """Return the share of squared log-ratios with the given sign."""
    squares = values**2
    return float(squares[np.sign(values) == sign].sum() / max(squares.sum(), TINY))


PENALTIES = (shipped("penalty", "distribution", _penalty),)
