"""A replayed preset as a part of the result: its loss, its coefficients by token, its health."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.corrections.actual import actual_numbers
from rcdiag.corrections.apply import outcome
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.sequences import rows_of
from rcdiag.diagnosis.correction_health import CorrectionEvidence
from rcdiag.diagnosis.update_health import Evidence, health
from rcdiag.results import (
    AfterStep,
    Coefficients,
    Denominator,
    Factor,
    GradientReport,
    Histogram,
    PresetReplay,
    Shares,
    SplitReport,
)
from rcdiag.table.hashing import mixed
from rcdiag.table.trajectories import segment_sum
from rcdiag.usecases.replay.preset import PresetEffect, PresetLoss, loss_of_effect
from rcdiag.usecases.replay.update import NAIVE, TrainerUpdate
from rcdiag.usecases.replay.update_batch import ReplayBatch

Array = NDArray[np.float64]
DRAWN = 300  # tokens in the scatter plot of a preset
TOP = 0.01  # share of the tokens or sequences, those with the largest sizes, for `top_*`
LISTED = 100  # at most this many sequences have their share listed
EDGES = np.linspace(-12.0, 2.0, 57)  # log10 of a coefficient's size
WEIGHT_EDGES = np.linspace(-4.0, 2.0, 121)  # log10 of a weight


def preset_replay(
    name: str,
    loss: PresetLoss,
    factors: dict[str, Factor],
    update: TrainerUpdate,
    *,
    gradient: GradientReport | None = None,
    after_step: AfterStep | None = None,
    split: SplitReport | None = None,
) -> PresetReplay:
    """Return a preset's part of the result; with a model also gradient, after_step and split."""
    effect, batch, result = loss.effect, loss.batch, loss.result
    policy_loss = update.plan.trainer.update.loss(effect.loss)
    kept_rows = segment_sum(effect.kept.astype(np.int64), batch.lengths) > 0
    metrics = {**effect.metrics, **result.metrics}
    undefined = result.undefined
    if undefined is None and not (
        np.isfinite(result.loss) and np.isfinite(result.coefficients).all()
    ):
        undefined = "the loss or its gradient is not a finite number"
    plain = _uncorrected(batch, update)
    at_one = float(np.abs(plain).sum())
    shared = shares(result.coefficients, batch, plain)
    evidence = Evidence(
        mode=effect.mode,
        undefined=undefined,
        metrics=metrics,
        factors=factors,
        correction=_judged_correction(name, effect.mode, batch, factors["mismatch"], update),
        size=float(np.abs(result.coefficients).sum()) / at_one if at_one else None,
        shares=shared,
        gradient=gradient,
        after=after_step,
    )
    return PresetReplay(
        mode=effect.mode,
        loss_type=policy_loss.loss_type,
        config={} if name == NAIVE else dict(update.plan.configs[name]),
        loss=None if result.undefined else result.loss,
        undefined=result.undefined,
        metrics=metrics,
        coefficients=coefficient_numbers(result.coefficients),
        shares=shared,
        denominator=Denominator(
            basis=result.divided.which,
            counted=result.divided.unit,
            divisor=result.divided.used,
            kept_count=result.divided.kept,
            full_count=result.divided.all,
        ),
        kept_tokens=int(effect.kept.sum()),
        kept_sequences=int(kept_rows.sum()),
        gradient=gradient,
        after_step=after_step,
        split=split,
        health=health(evidence),
        scatter=_scatter(loss),
        weight_histogram=_weight_histogram(effect),
    )


def _uncorrected(batch: ReplayBatch, update: TrainerUpdate) -> Array:
    """Return the coefficients if every ratio and weight were 1 and nothing rejected, [tokens].

    They depend only on lengths, advantages and the aggregation, not on the policies.
    """
    nothing = PresetEffect(np.ones(batch.num_tokens, np.bool_), None, mode=NAIVE, loss=update.loss)
    on_policy = replace(batch.tokens, log_probs=dict.fromkeys(batch.tokens.log_probs, batch.old))
    return loss_of_effect(nothing, replace(batch, tokens=on_policy), update).coefficients


def _judged_correction(
    name: str, mode: str, batch: ReplayBatch, mismatch: Factor, update: TrainerUpdate
) -> CorrectionEvidence:
    """Return what the rules that `score` applies need of the correction, on this batch.

    Ratios are those of the mode, current / rollout in bypass mode.
    """
    correction = Correction() if name == NAIVE else update.plan.corrections[name]
    pair = batch.pair("rollout", "current" if mode == "bypass" else "old")
    with np.errstate(all="ignore"):
        rows = rows_of(pair, empty=batch.empty).under(correction.guard)
        applied = outcome(rows, correction)
        numbers = actual_numbers(rows, correction, applied)
    between = {"k3_kl": mismatch.k3_kl, "ess_seq": mismatch.ess_seq}
    return CorrectionEvidence.of(correction, numbers, applied, between)


def _weight_histogram(effect: PresetEffect) -> Histogram | None:
    """Return counts of kept tokens by log10 of their weight; weights of 0 are in the lowest bin."""
    if effect.weights is None:
        return None
    kept = effect.weights[effect.kept]
    logs = np.full(len(kept), WEIGHT_EDGES[0])
    np.log10(kept, out=logs, where=kept > 0)
    counts, _ = np.histogram(np.clip(logs, WEIGHT_EDGES[0], WEIGHT_EDGES[-1]), WEIGHT_EDGES)
    return {"edges": WEIGHT_EDGES.tolist(), "counts": counts.astype(float).tolist()}


def _scatter(loss: PresetLoss) -> list[list[float]]:
    """Return log-prob, advantage and coefficient of a few tokens with a non-zero coefficient.

    They are chosen by a hash of their index, so that the choice is reproducible.
    """
    pulled = np.flatnonzero(loss.coefficients)
    keys = mixed(pulled.astype(np.uint64))
    some = np.sort(pulled[np.argsort(keys, kind="stable")[:DRAWN]])
    columns = (loss.batch.current, loss.batch.advantages, loss.coefficients)
    rows = np.stack([column[some] for column in columns], axis=1)
    return [[float(f"{value:.4g}") for value in row] for row in rows[np.isfinite(rows).all(axis=1)]]


def coefficient_numbers(coefficients: Array) -> Coefficients:
    """Return norm, sum, sum of sizes, number of non-zeros and largest size over tokens."""
    sizes = np.abs(coefficients)
    return Coefficients(
        norm=float(np.sqrt(np.square(coefficients).sum())),
        sum=float(coefficients.sum()),
        abs_sum=float(sizes.sum()),
        nonzero=int(np.count_nonzero(coefficients)),
        largest=float(sizes.max(initial=0.0)),
    )


def shares(coefficients: Array, batch: ReplayBatch, uncorrected: Array) -> Shares | None:
    """Return shares of sum |coefficient| by length, advantage and size; None if the sum is 0.

    `uncorrected` are the batch's coefficients if every ratio and weight were 1 and nothing were
    rejected.
    """
    sizes = np.abs(coefficients)
    total = float(sizes.sum())
    if not total or not np.isfinite(total):
        return None
    by_row = segment_sum(sizes, batch.lengths) / total
    plain = segment_sum(np.abs(uncorrected), batch.lengths)
    # 0 for the shortest quarter of the sequences, 3 for the longest; equal lengths stay together.
    cuts = np.quantile(batch.lengths, [0.25, 0.5, 0.75])
    quarter = np.searchsorted(cuts, batch.lengths, side="left")
    ordered = np.sort(by_row)[::-1]
    logs = np.log10(sizes[sizes > 0])
    counts, _ = np.histogram(np.clip(logs, EDGES[0], EDGES[-1]), EDGES)
    return Shares(
        by_length=np.bincount(quarter, by_row, 4).tolist(),
        tokens_by_length=(np.bincount(quarter, batch.lengths, 4) / batch.num_tokens).tolist(),
        positive_advantage=float(sizes[batch.advantages > 0].sum() / total),
        negative_advantage=float(sizes[batch.advantages < 0].sum() / total),
        top_tokens=_top(sizes / total),
        top_sequences=_top(by_row),
        top_sequences_uncorrected=_top(plain / plain.sum()) if plain.any() else None,
        sequences=ordered[:LISTED].tolist(),
        histogram={"edges": EDGES.tolist(), "counts": counts.astype(float).tolist()},
    )


def _top(parts: Array) -> float:
    """Return the sum of the largest 1% of the parts, at least of one part."""
    count = max(round(TOP * len(parts)), 1)
    return float(np.partition(parts, len(parts) - count)[-count:].sum())
