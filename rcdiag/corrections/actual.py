"""Numbers of a correction without the trainer's clamps and rounding, next to those that it logs.

Ratios are not clamped; weights are those in the loss, truncated if the correction truncates.

Weights and effective sample sizes follow Owen, "Monte Carlo theory, methods and examples",
chapter 9 (artowen.su.domains/mc); a bias bound holds for any quantity f with |f| <= 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.corrections.apply import (
    CorrectionOutcome,
    enters_loss,
    log_ratio,
    outcome,
)
from rcdiag.corrections.arithmetic import SAFETY_BOUND
from rcdiag.corrections.correction import Correction, Rejection
from rcdiag.corrections.quantities import excess, true_ratio, unsafe
from rcdiag.corrections.sequences import Sequences

Array = NDArray[np.float64]
Numbers = dict[str, Any]


def actual_numbers(rows: Sequences, correction: Correction, applied: CorrectionOutcome) -> Numbers:
    """Return the numbers of one correction by name; None for a number that is not defined."""
    lost_token, lost_seq = _lost_mass(rows, correction, applied)
    share = applied.kept / rows.lengths
    final = applied.loss_weights  # before batch normalisation
    # Groups of two or more sequences that keep fewer than two have no baseline any more.
    group, sizes = rows.groups
    kept_of_group = np.bincount(group, weights=applied.kept > 0)
    numbers: Numbers = {
        "ess_token_applied": _ess(final.sum, final.squares, rows.tokens),
        "ess_seq_applied": _ess(
            final.sum / rows.lengths, np.square(final.sum / rows.lengths), len(rows)
        ),
        "lost_target_mass_token": lost_token,
        "lost_target_mass_seq": lost_seq,
        "truncation_loss": _truncation_loss(rows, correction),
        "bias_bound": _bias_bound(rows, correction, applied),
        "unsafe_tokens": _number(rows.sum(unsafe).sum() / rows.tokens),
        "unsafe_sequences": _number(np.mean(np.abs(log_ratio(rows, "sequence")) >= SAFETY_BOUND)),
        "keep_length_correlation": _correlation(share, rows.lengths.astype(np.float64)),
        "keep_reward_correlation": _correlation(share, rows.reward),
        "groups_below_two": int(((sizes >= 2) & (kept_of_group < 2)).sum()),
        "denominator_kept": applied.kept_tokens,
        "denominator_all": rows.tokens,
    }
    return numbers | _by_documents(rows, correction)


def _number(value: float | np.floating) -> float | None:
    return float(value) if np.isfinite(value) else None


def _ess(weights: Array, squares: Array, count: int) -> float | None:
    """Return (sum w)^2 / (n sum w^2); None if all weights are 0.

    `weights` and `squares` [sequences] are sums of w and w^2 over the tokens of each sequence, or
    w and w^2 of the sequences themselves; `count` is n, the number of tokens or of sequences.
    """
    total = squares.sum()
    return _number(weights.sum() ** 2 / (count * total)) if total > 0 else None


def _lost_mass(
    rows: Sequences, correction: Correction, applied: CorrectionOutcome
) -> tuple[float | None, float | None]:
    """Return E[ratio 1(discarded)] / E[ratio]: over tokens, and over sequences without any token.

    Rejected tokens are discarded, and so are those of weight 0, which stay in the loss mask.
    """
    true, by_token = rows.sum(true_ratio), enters_loss(correction)
    kept = true if by_token is None else rows.sum(true_ratio.where(by_token))
    discarded = (applied.kept == 0) | (applied.loss_weights.sum == 0)
    kept = np.where(discarded, 0.0, kept)
    logs = log_ratio(rows, "sequence")
    # Divided by the largest ratio, so that products of ratios do not overflow.
    of_rows = np.exp(logs - logs.max()) if np.isfinite(logs.max()) else np.full(len(rows), np.nan)
    return (
        _number(1.0 - kept.sum() / true.sum()),
        _number(of_rows[discarded].sum() / of_rows.sum()),
    )


def _truncation_loss(rows: Sequences, correction: Correction) -> float | None:
    """Return E[max(ratio - C, 0)] / E[ratio] at the weights' level; None without truncation."""
    weighting = correction.loss_weighting
    if weighting is None or weighting.outside not in ("truncate", "clip"):
        return None
    if weighting.level == "segment" or weighting.upper == np.inf:
        return None
    if weighting.level == "token":
        beyond = rows.sum(excess(weighting.upper)).sum()
        return _number(beyond / rows.sum(true_ratio).sum())
    with np.errstate(over="ignore"):
        true = np.exp(log_ratio(rows, weighting.level))
    return _number(np.maximum(true - weighting.upper, 0.0).sum() / true.sum())


def _bias_bound(
    rows: Sequences, correction: Correction, applied: CorrectionOutcome
) -> float | None:
    """Return E|ratio - weight| / E[ratio] over sequences; rejected ones have weight 0.

    It bounds the bias, because |E[(ratio - weight) f]| <= E|ratio - weight| for |f| <= 1. For
    truncated weights it is the truncation loss, for rejection the lost mass. There is no such bound
    for weights by token, or if kept sequences have weight 1.
    """
    weighting = correction.loss_weighting
    if weighting is None or weighting.level != "sequence":
        return None
    with np.errstate(over="ignore"):
        true = np.exp(log_ratio(rows, "sequence"))
    weights = applied.loss_weights.sum / rows.lengths
    return _number(np.abs(true - weights).sum() / true.sum())


def _correlation(share: Array, values: Array) -> float | None:
    """Return the Pearson correlation of kept share and values; None if one of them is constant."""
    finite = np.isfinite(values)
    share, values = share[finite], values[finite]
    if len(share) < 2 or np.ptp(share) == 0.0 or np.ptp(values) == 0.0:
        return None
    return float(np.corrcoef(share, values)[0, 1])


def mirrored(correction: Correction) -> Correction | None:
    """Return the correction as verl documents it, with k1 bounds on the ratio; None if equal."""
    asymmetric = [
        rejection
        for rejection in correction.rejections
        if rejection.statistic.endswith("k1")
        and rejection.lower is not None
        and rejection.lower != -rejection.upper
    ]
    if not asymmetric:
        return None

    def turned(rejection: Rejection) -> Rejection:
        if not rejection.statistic.endswith("k1") or rejection.lower is None:
            return rejection
        return replace(rejection, lower=-rejection.upper, upper=-rejection.lower)

    return replace(correction, rejections=tuple(map(turned, correction.rejections)))


def _by_documents(rows: Sequences, correction: Correction) -> Numbers:
    """Compare the ratios that k1 options accept according to verl's code and to its documents."""
    by_documents = mirrored(correction)
    if by_documents is None:
        return {}
    documented = outcome(rows, by_documents)
    sets = {
        rejection.statistic: {
            "code": [float(np.exp(-rejection.upper)), float(np.exp(-(rejection.lower or 0.0)))],
            "documents": [float(np.exp(rejection.lower or 0.0)), float(np.exp(rejection.upper))],
        }
        for rejection in correction.rejections
        if rejection.statistic.endswith("k1")
    }
    return {
        "accepted_ratios": sets,
        "kept_tokens_by_documents": documented.kept_tokens,
        "kept_sequences_by_documents": documented.kept_sequences,
    }
