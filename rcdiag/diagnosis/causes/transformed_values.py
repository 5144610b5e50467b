"""A column holds a function of the log-probs: another sign or base, probabilities, sums."""

from __future__ import annotations

from functools import partial

import numpy as np

from rcdiag.diagnosis.case import Array, Case
from rcdiag.diagnosis.causes.cause import EXACT, Suspicion, fact, shipped
from rcdiag.diagnosis.causes.columns import by_column, repaired, share_of_rows
from rcdiag.diagnosis.causes.recording import holds_entropy
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.features.storage import LOG_BASES, StoredColumn
from rcdiag.diagnosis.thresholds import EQUAL, FEWEST, HALF, NEARLY_ALL, RARE, SLIGHT, TWICE

# Two columns of log-probs agree within a factor of two at these quantiles.
ODDS = (0.02, 0.05, 0.1, 0.2)
# With another base of the logarithm values = factor * other, up to noise: tolerance on the log of
# the median factor, and the largest rms of the residual over the rms of the values.
NEAR_THE_BASE, MOST_LEFT_BY_BASE = SLIGHT, 0.35
# Temperatures that runs use: log-probs divided by one of them are multiples of log-probs as well.
TEMPERATURES = np.arange(1, 21) / 10


@by_column
def _sign_flipped(features: Features, policy: str, column: StoredColumn) -> Suspicion | None:
    here = column.in_positive_rows
    if not here.any() or holds_entropy(features, policy):
        return None
    values, other = column.values[here], column.other[here]
    # If both columns lost their sign, neither can confirm the other.
    alone = not column.other_is_informative
    if alone and np.max(values, initial=0.0, where=np.isfinite(values)) <= 1.0:
        return None  # probabilities
    rare = values[other < RARE]
    # At rare tokens surprisals are above -RARE; entropies are one or two nats, and as everywhere.
    ordinary = max(-RARE, 2.0 * float(np.median(values)))
    far = len(rare) >= FEWEST and float(np.median(rare)) > ordinary
    if not (alone or _similar_sizes(-values, other) or far):
        return None
    share = share_of_rows(column, here)
    where = "" if share > NEARLY_ALL else f"In {share:.0%} of the rows "
    all_values = f"{'the' if where else 'The'} values of `{policy}` are positive"
    flipped = features.case.of_sampled(here)
    return Suspicion(
        confidence=EXACT,
        message=f"{where}{all_values}: they are minus the log-probs.",
        evidence=[
            fact(
                "share of positive values",
                "no log-prob is positive",
                **{policy: np.mean(column.values > 0)},
            )
        ],
        share_of_rows=share,
        also_possible=[],
        repaired=repaired(features.case, policy, lambda stored: np.where(flipped, -stored, stored)),
    )


@by_column
def _probabilities(features: Features, policy: str, column: StoredColumn) -> Suspicion | None:
    values = column.values[column.finite]
    inside = np.mean((values >= 0) & (values <= 1 + EQUAL)) if len(values) else 0.0
    if inside < NEARLY_ALL or np.mean(values > 0) < NEARLY_ALL or column.one_value is not None:
        return None
    # Most sampled tokens are likely ones, since most contexts have a low entropy.
    likely = float(np.median(values)) > HALF
    with np.errstate(divide="ignore", invalid="ignore"):
        if not likely and not _similar_sizes(np.log(column.values), column.other):
            return None
    return Suspicion(
        confidence=EXACT,
        message=f"The values of `{policy}` lie between 0 and 1: they are probabilities, and "
        "their logarithms are log-probs.",
        evidence=[fact("share of values from 0 to 1", "probabilities", **{policy: inside})],
        also_possible=[],
        repaired=repaired(features.case, policy, np.log),
    )


def _similar_sizes(values: Array, other: Array) -> bool:
    """Tell whether values have the sizes of another policy's log-probs; True without another one.

    Low quantiles are compared, because the values may belong to other tokens (shifted or swapped),
    and how far they are from the median: entropies of a model that is always unsure are as large as
    its surprisals, but vary much less.
    """
    every = [values[np.isfinite(values)], other[np.isfinite(other)]]
    if not all(len(part) for part in every):
        return not len(every[1])
    low = np.array([np.quantile(part, ODDS) for part in every])
    median = np.array([[np.median(part)] for part in every])
    sizes = np.log(np.maximum(np.concatenate([-low, median - low], axis=1), EQUAL))
    return bool(np.abs(sizes[0] - sizes[1]).max() < TWICE)


@by_column
def _log_base(features: Features, policy: str, column: StoredColumn) -> Suspicion | None:
    k, residual = column.multiple()
    for base, ratio in LOG_BASES.items():
        if residual > MOST_LEFT_BY_BASE or not _is_base(features, k, ratio):
            continue
        return Suspicion(
            confidence=EXACT,
            message=f"The values of `{policy}` are {k:.4f} times the other side's: logarithms "
            f"of base {base}.",
            evidence=[fact("ratio of the columns", f"1 / ln {base} = {ratio:.4f}", ratio=k)],
            also_possible=["log-probs-divided"],
            repaired=repaired(features.case, policy, partial(np.multiply, 1.0 / ratio)),
        )
    return None


def _is_base(features: Features, k: float, ratio: float) -> bool:
    """Tell whether a factor is near that of a base, and nearer to it than to any temperature.

    The temperatures are those that runs use, and the one that rows declare.
    """
    off, declared = abs(np.log(k / ratio)), features.declared.row_temperature
    others = np.abs(np.log(np.concatenate([TEMPERATURES, 1 / TEMPERATURES]) / k))
    if declared is not None and declared > 0:
        others = np.append(others, abs(abs(np.log(k)) - abs(np.log(declared))))
    return bool(off < min(NEAR_THE_BASE, others.min()))


@by_column
def _cumulative(features: Features, policy: str, column: StoredColumn) -> Suspicion | None:
    constant, falling = column.constant_rows, column.falling_rows
    if column.one_value is not None:
        return None  # row means differ between rows; one value everywhere is a sentinel
    if constant > NEARLY_ALL:
        return Suspicion(
            confidence=EXACT,
            message=f"Every token of a row has the same value in `{policy}`: the row's mean "
            "or sum is repeated at each of its tokens.",
            evidence=[
                fact(
                    "share of rows with one value",
                    "log-probs would vary by token",
                    **{policy: constant},
                )
            ],
            also_possible=[],
            repaired=features.case.without_tokens(np.ones(len(features.case.mask), np.bool_)),
        )
    if falling > NEARLY_ALL:
        return Suspicion(
            confidence=EXACT,
            message=f"The values of `{policy}` never rise within a row: they are running sums.",
            evidence=[
                fact("share of rows without a rise", "running sums never rise", **{policy: falling})
            ],
            also_possible=[],
            repaired=_differences(features.case, policy),
        )
    return None


def _differences(case: Case, policy: str) -> Case:
    """Return the case with one policy's running sums replaced by their differences."""
    values = case.log_probs[policy].copy()
    places = np.flatnonzero(case.mask)
    own = values[places]
    terms = np.diff(own, prepend=0.0)
    first = np.diff(case.owner[places], prepend=-1) != 0
    terms[first] = own[first]
    values[places] = terms
    return case.with_log_probs(policy, values)


TRANSFORMED_VALUES = (
    shipped("sign-flipped", "storage", _sign_flipped, needs_two=False),
    shipped("probabilities-stored", "storage", _probabilities, needs_two=False),
    shipped("cumulative-stored", "storage", _cumulative, needs_two=False),
    shipped("log-base", "storage", _log_base),
)
