"""Changes of the sampler's logits: penalties for repeated tokens, and biases."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from rcdiag.diagnosis.case import Array, Counts
from rcdiag.diagnosis.causes.cause import CLEAR, LIKELY, Suspicion, fact, shipped
from rcdiag.diagnosis.features import ENGINE_NOISE, LARGE_MISMATCH, Features, LogRatios
from rcdiag.diagnosis.features.log_ratios import FIRST_APART, VISIBLE
from rcdiag.diagnosis.thresholds import (
    COARSE,
    FEW,
    FEWEST,
    FEWEST_OF_PATTERN,
    FEWEST_ROWS,
    LARGE,
    MANY_TIMES,
    MOST_IDS,
    NEARLY_ALL,
    PART,
    SURELY,
    TINY,
)

# Repeated tokens are compared with new ones of the same id that are about as likely.
LIKE = (-16.0, -2.0, -0.5, -0.05)
FEWEST_OF_KIND = 2  # tokens of an id, repeated and new
LEAST_GAP = 0.06  # between the shares of positive log-ratios
# A log-ratio has a sign beyond rounding from this size on, nats, and from this share of the rms on.
LEAST_SIGNED, SHARE_SIGNED = 0.005, 0.05


def _penalty(features: Features) -> Suspicion | None:
    """Detect a penalty as the only fault: then the recorded distribution sampled, and E[ratio] is
    1.
    """
    return None if abs(features.log_ratios.ratio_mean[1]) > 2 * SURELY else penalty(features)


def penalty(features: Features) -> Suspicion | None:
    """Detect a distribution that depends on whether a token has occurred before."""
    if (
        not features.log_ratios.show_sampling
        or features.log_ratios.rms < VISIBLE
        or features.log_ratios.rms > LARGE
    ):
        return None
    gap, z = _repeated_less_new(features.log_ratios)
    if gap < LEAST_GAP or z < SURELY:
        return None
    return Suspicion(
        confidence=CLEAR,
        message="The sampler gives tokens that occurred before less than the trainer does: the log-"
        f"ratio is positive {100 * gap:.0f} percentage points more often for repeated tokens than "
        f"for new ones of the same id and like probability ({z:.0f} standard errors).",
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


def _repeated_less_new(log_ratios: LogRatios) -> tuple[float, float]:
    """Return how much more often repeated tokens have a positive log-ratio than new ones of the
    same id and of like log-prob, and its z.

    Other weights move each token by its id and context, whether it has occurred or not.
    """
    tokens = log_ratios.tokens
    unsure = (tokens.trainer < LIKE[-1]) & (
        np.abs(log_ratios.values) > max(LEAST_SIGNED, SHARE_SIGNED * log_ratios.rms)
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
    if not features.log_ratios.show_sampling or features.log_ratios.rms < VISIBLE:
        return None
    log_ratios = features.log_ratios
    if log_ratios.first_tokens > FIRST_APART or log_ratios.rms > LARGE:
        return None
    if log_ratios.ratio_mean[1] < -SURELY:
        return None  # a bias leaves every token possible: E[ratio] stays 1
    few = _one_way(log_ratios)
    if few is None:
        return None
    named = np.isin(log_ratios.tokens.token_id, few.ids)
    return Suspicion(
        confidence=LIKELY,
        message=few.message,
        evidence=[
            fact(
                "log-ratio of these ids",
                few.reads,
                ids=few.ids[:8],
                mean=log_ratios.values[named].mean(),
                share_of_squares=round(few.held, 3),
            )
        ],
        also_possible=["tied-head-desync", "penalty"],
    )


class _FewIds(Struct, frozen=True):
    """Few token ids that are moved while hardly any other is."""

    ids: list[int]  # the largest first
    held: float  # share of squared log-ratios
    message: str
    reads: str


def _one_way(log_ratios: LogRatios) -> _FewIds | None:
    """Find a few ids with log-ratios of one sign while normalisation moves all others slightly to
    the other sign.
    """
    ids, values = log_ratios.tokens.token_id, log_ratios.values
    counts = np.bincount(ids)
    seen = np.flatnonzero(counts >= FEWEST_ROWS)
    if len(seen) < FEWEST:
        return None
    # A bias hardly moves near-certain tokens, so the rms of an id is informative and its mean is
    # not.
    squares = np.bincount(ids, values**2)
    rms = np.sqrt(squares / np.maximum(counts, 1))
    apart = seen[rms[seen] > max(MANY_TIMES * float(np.median(rms[seen])), COARSE)]
    if not len(apart):
        return None
    signed = np.bincount(ids, np.sign(values) * values**2)
    loudest = apart[np.argsort(-squares[apart])]
    sign = np.sign(signed[loudest[0]])
    chosen = loudest[np.sign(signed[loudest]) == sign]
    if len(chosen) > max(MOST_IDS, FEW * len(seen)):
        return None
    named = np.isin(ids, chosen)
    others = values[~named]
    other_way = _share_of_sign(others[np.abs(others) > ENGINE_NOISE], -sign)
    held = float(squares[chosen].sum() / max(squares.sum(), TINY))
    if _share_of_sign(values[named], sign) < NEARLY_ALL or held < PART or other_way < NEARLY_ALL:
        return None
    if not _one_edge(log_ratios, chosen, sign):
        return None
    up = sign < 0
    return _FewIds(
        [int(one) for one in chosen],
        held,
        f"The sampler gives {_named(chosen)} {'more' if up else 'less'} than the trainer does, by "
        f"up to {float((sign * values[named]).max()):.1f} nats, and all others a little "
        f"{'less' if up else 'more'}: a bias on their logits.",
        "of the other sign than those of all other ids",
    )


def _one_edge(log_ratios: LogRatios, ids: Counts, sign: float) -> bool:
    """Tell whether log-ratios of some ids go to one side, up to one constant.

    A bias moves a token by all of its size where the token is rare, and never by more. Other
    weights move each id as far as they happen to.
    """
    to_side = [sign * log_ratios.values[log_ratios.tokens.token_id == one] for one in ids]
    edge = max(float(values.max()) for values in to_side)
    near = [int((values > NEARLY_ALL * edge).sum()) for values in to_side]
    if sum(near) >= FEWEST_OF_PATTERN and (len(ids) == 1 or sum(count > 0 for count in near) >= 2):
        return True
    return _residual_share_of_one_bias(log_ratios, ids, -sign * edge) < FEW


def _residual_share_of_one_bias(log_ratios: LogRatios, ids: Counts, size: float) -> float:
    """Return the residual share of squared log-ratios of some ids under one logit bias.

    A bias b moves a token of the trainer's probability p by log(1 + p (e^b - 1)) - b, which is
    near 0 where the token is sure anyway.
    """
    chosen = np.isin(log_ratios.tokens.token_id, ids)
    moved = log_ratios.values[chosen]
    if np.count_nonzero(np.abs(moved) > LARGE_MISMATCH) < FEWEST:
        return 1.0
    expected = np.log1p(np.exp(log_ratios.tokens.trainer[chosen]) * np.expm1(size)) - size
    return float(np.sum((moved - expected) ** 2) / max(float(np.sum(moved**2)), TINY))


def _named(ids: Counts) -> str:
    """Write token ids, at most four of them."""
    text = ", ".join(str(one) for one in ids[:4])
    return f"token id{'s' if len(ids) > 1 else ''} {text}"


def _share_of_sign(values: Array, sign: float) -> float:
    """Return the share of squared log-ratios with the given sign."""
    squares = values**2
    return float(squares[np.sign(values) == sign].sum() / max(squares.sum(), TINY))


PENALTIES = (shipped("penalty", "law", _penalty),)
