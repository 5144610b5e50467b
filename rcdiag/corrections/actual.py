"""Beside what a trainer logs, what is so: unclamped, per valid sequence, in float64.

Weights and effective sample sizes are those of Owen, "Monte Carlo theory, methods and examples",
chapter 9 (artowen.su.domains/mc); a bound on a bias is that for a quantity |f| <= 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.apply import (
    Outcome,
    WeightSums,
    kept_quantity,
    log_ratio,
    outcome,
    quantities_of,
)
from rcdiag.corrections.correction import Correction, Rejection
from rcdiag.corrections.quantities import (
    SAFETY_BOUND,
    Excess,
    LogRatio,
    Quantity,
    TrueRatio,
    Unsafe,
)
from rcdiag.corrections.sequences import Rows

Array = NDArray[np.float64]
Numbers = dict[str, Any]


def needed(correction: Correction) -> list[Quantity]:
    """What `honest` reads of the tokens."""
    found: list[Quantity] = [LogRatio(), TrueRatio(), Unsafe()]
    kept = kept_quantity(correction.rejections, TrueRatio())
    found += [kept] if kept is not None else []
    weighting = correction.loss_weighting
    if weighting is not None and weighting.level == "token":
        found.append(Excess(weighting.upper))
    if (by_documents := mirrored(correction)) is not None:
        found += quantities_of(by_documents)
    return found


def honest(rows: Rows, correction: Correction, done: Outcome) -> Numbers:
    """Numbers about one correction; None where one is not defined."""
    lost_token, lost_seq = _lost_mass(rows, correction, done)
    share = done.kept / rows.lengths
    found: Numbers = {
        "ess_token_applied": _ess_tokens(rows, done),
        "ess_seq_applied": _ess_rows(rows, done),
        "lost_target_mass_token": lost_token,
        "lost_target_mass_seq": lost_seq,
        "truncation_loss": _truncation_loss(rows, correction),
        "bias_bound": _bias_bound(rows, correction, done),
        "unsafe_tokens": _number(rows.columns[Unsafe()].sum.sum() / rows.tokens),
        "unsafe_sequences": _number(np.mean(np.abs(log_ratio(rows, "sequence")) >= SAFETY_BOUND)),
        "keep_length_correlation": _correlation(share, rows.lengths.astype(np.float64)),
        "keep_reward_correlation": _correlation(share, rows.reward),
        "groups_below_two": _groups_below_two(rows, done),
        "denominator_kept": done.kept_tokens,
        "denominator_all": rows.tokens,
    }
    return found | _by_documents(rows, correction)


def _number(value: float | np.floating) -> float | None:
    return float(value) if np.isfinite(value) else None


def _final(done: Outcome) -> WeightSums:
    """Weights with which tokens enter the loss, batch normalisation aside; 1 without weights."""
    return done.kept_weights or WeightSums(done.kept, done.kept)


def _ess_tokens(rows: Rows, done: Outcome) -> float | None:
    """(sum w)^2 / (N sum w^2) over all tokens, rejected ones with weight 0."""
    final = _final(done)
    squares = final.squares.sum()
    return _number(final.sum.sum() ** 2 / (rows.tokens * squares)) if squares > 0 else None


def _ess_rows(rows: Rows, done: Outcome) -> float | None:
    """The same over sequences, each with the mean weight of its tokens."""
    means = _final(done).sum / rows.lengths
    squares = np.square(means).sum()
    return _number(means.sum() ** 2 / (len(rows) * squares)) if squares > 0 else None


def _lost_mass(
    rows: Rows, correction: Correction, done: Outcome
) -> tuple[float | None, float | None]:
    """E[ratio 1(rejected)] / E[ratio], by token and by sequence (all of its tokens rejected)."""
    true = rows.columns[TrueRatio()].sum
    by_token = kept_quantity(correction.rejections, TrueRatio())
    kept = true if by_token is None else rows.columns[by_token].sum
    kept = np.where(done.kept > 0, kept, 0.0)
    logs = log_ratio(rows, "sequence")
    # Scaled by the largest, so that no product of ratios overflows.
    of_rows = np.exp(logs - logs.max()) if np.isfinite(logs.max()) else np.full(len(rows), np.nan)
    return (
        _number(1.0 - kept.sum() / true.sum()),
        _number(of_rows[done.kept == 0].sum() / of_rows.sum()),
    )


def _truncation_loss(rows: Rows, correction: Correction) -> float | None:
    """E[(ratio - C)+] / E[ratio] at the level of the weights; None where nothing is truncated."""
    weighting = correction.loss_weighting
    if weighting is None or weighting.outside not in ("truncate", "clip"):
        return None
    if weighting.level == "token":
        excess, all_of_it = rows.columns[Excess(weighting.upper)], rows.columns[TrueRatio()]
        return _number(excess.sum.sum() / all_of_it.sum.sum())
    with np.errstate(over="ignore"):
        true = np.exp(log_ratio(rows, weighting.level))
    return _number(np.maximum(true - weighting.upper, 0.0).sum() / true.sum())


def _bias_bound(rows: Rows, correction: Correction, done: Outcome) -> float | None:
    """E|ratio - weight| / E[ratio] over sequences, 0 for those rejected: bounds the bias.

    For truncated weights it is the truncation loss, for rejection the lost mass. Weights by token,
    and kept sequences with weight 1, have no such bound. It is
    |E[(ratio - weight) f]| <= E|ratio - weight| for |f| <= 1.
    """
    weighting = correction.loss_weighting
    if weighting is None or weighting.level != "sequence":
        return None
    with np.errstate(over="ignore"):
        true = np.exp(log_ratio(rows, "sequence"))
    weights = _final(done).sum / rows.lengths
    return _number(np.abs(true - weights).sum() / true.sum())


def _correlation(share: Array, values: Array) -> float | None:
    """Pearson correlation over sequences of the kept share; None if a side is constant."""
    known = np.isfinite(values)
    share, values = share[known], values[known]
    if len(share) < 2 or np.ptp(share) == 0.0 or np.ptp(values) == 0.0:
        return None
    return float(np.corrcoef(share, values)[0, 1])


def _groups_below_two(rows: Rows, done: Outcome) -> int:
    """Groups of two sequences or more of which fewer than two are kept: no baseline is left."""
    _, index, sizes = np.unique(rows.cluster, return_inverse=True, return_counts=True)
    kept = np.bincount(index, weights=done.kept > 0)
    return int(((sizes >= 2) & (kept < 2)).sum())


def mirrored(correction: Correction) -> Correction | None:
    """The correction as verl's documents have it: k1 bounds on the ratio and not on 1 / ratio."""
    asymmetric = [
        each
        for each in correction.rejections
        if each.statistic.endswith("k1") and each.lower is not None and each.lower != -each.upper
    ]
    if not asymmetric:
        return None
    return replace(correction, rejections=tuple(map(_mirror, correction.rejections)))


def _mirror(rejection: Rejection) -> Rejection:
    if not rejection.statistic.endswith("k1") or rejection.lower is None:
        return rejection
    return replace(rejection, lower=-rejection.upper, upper=-rejection.lower)


def _by_documents(rows: Rows, correction: Correction) -> Numbers:
    """Ratios that each k1 option accepts by the code and by the documents, where they differ."""
    by_documents = mirrored(correction)
    if by_documents is None:
        return {}
    done = outcome(rows, by_documents)
    sets = {
        each.statistic: {
            "code": [float(np.exp(-each.upper)), float(np.exp(-(each.lower or 0.0)))],
            "documents": [float(np.exp(each.lower or 0.0)), float(np.exp(each.upper))],
        }
        for each in correction.rejections
        if each.statistic.endswith("k1")
    }
    return {
        "accepted_ratios": sets,
        "kept_tokens_by_documents": done.kept_tokens,
        "kept_sequences_by_documents": done.kept_sequences,
    }
