"""One preset on one batch: its weights and mask, its loss, the pull on every token, its health."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.apply import TokenEffects, quantities_of, token_effects
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import Tokens
from rcdiag.corrections.sequences import rows_of
from rcdiag.corrections.trainer_means import Batch
from rcdiag.diagnosis.update_health import Evidence, health
from rcdiag.losses.batch import loss_batch
from rcdiag.losses.evaluate import Divided, LossResult, evaluate
from rcdiag.losses.rules import UpdateRules
from rcdiag.losses.settings import CLIP_HIGH, CLIP_LOW, LossSettings
from rcdiag.results import Denominator, Factor, Histogram, PresetReplay
from rcdiag.statistics.hashing import mixed
from rcdiag.table.segments import segment_sum
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.replay.batch import ReplayBatch, without_rejected
from rcdiag.usecases.replay.shares import coefficient_numbers, shares

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PresetEffect:
    """What a preset's correction puts into the loss of one batch."""

    mode: str  # decoupled, bypass or naive
    loss: str  # name of the policy loss
    anchor: Array  # [tokens] what the PPO ratio is taken against
    kept: NDArray[np.bool_]  # [tokens]
    weights: Array | None  # [tokens] in the loss; batch normalisation done
    metrics: Mapping[str, float]  # of the correction, as the trainer logs them

    @property
    def final(self) -> Array:
        """Weights in the loss, 0 where a token is rejected, [tokens]."""
        weights = np.ones(len(self.kept)) if self.weights is None else self.weights
        return np.where(self.kept, weights, 0.0)

    def take(self, tokens: NDArray[np.bool_]) -> PresetEffect:
        """The effect on some of the tokens."""
        return replace(
            self,
            anchor=self.anchor[tokens],
            kept=self.kept[tokens],
            weights=None if self.weights is None else self.weights[tokens],
        )


def apply_preset(plan: Plan, name: str, batch: ReplayBatch, loss: str) -> PresetEffect:
    """Apply the correction of a preset to a batch.

    In decoupled mode the weights are those of old / rollout and the anchor of the PPO ratio is the
    old policy; in bypass mode weights are those of current / rollout and the rollout is the anchor.

    Source: verl 0.9.1, verl/trainer/ppo/core_algos.py, compute_policy_loss_bypass_mode.
    """
    correction = plan.corrections[name]
    bypass = correction.mode == "bypass"
    target = "current" if bypass else "old"
    effects, metrics = _effects(plan, correction, batch, target)
    if not bypass:
        return PresetEffect("decoupled", loss, batch.old, effects.kept, effects.weights, metrics)
    kind = "reinforce" if correction.loss == "reinforce" else "vanilla"
    weights = effects.weights if kind == "reinforce" else None
    return PresetEffect("bypass", kind, batch.rollout, effects.kept, weights, metrics)


def naive_effect(batch: ReplayBatch, loss: str) -> PresetEffect:
    """The update without any correction: PPO against the trainer's own log-probs."""
    return PresetEffect("naive", loss, batch.old, np.ones(batch.num_tokens, np.bool_), None, {})


def _effects(
    plan: Plan, correction: Correction, batch: ReplayBatch, target: str
) -> tuple[TokenEffects, Mapping[str, float]]:
    quantities = [*plan.trainer.quantities(correction), *quantities_of(correction)]
    with np.errstate(all="ignore"):
        pair = batch.pair("rollout", target)
        tokens, rows = (
            Tokens(pair.log_ratio),
            rows_of(
                pair,
                list(dict.fromkeys(quantities)),
                batch.empty,
                keep_ratios=plan.trainer.percentiles,
            ),
        )
        effects = token_effects(correction, tokens, rows)
        metrics = plan.trainer.metrics(Batch(rows), correction)
    if effects.weights is None or not correction.batch_normalize:
        return effects, metrics
    factor = plan.trainer.normaliser(Batch(rows), correction)
    return TokenEffects(effects.kept, effects.weights / factor), metrics


NAIVE = "naive"
DRAWN = 300  # tokens of a preset that are drawn
WEIGHT_EDGES = np.linspace(-4.0, 2.0, 121)  # log10 of a weight


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """How the trainer makes a loss of a batch."""

    loss: str
    settings: LossSettings
    advantage: str  # column, grpo, ...
    rebaseline: bool = False  # advantages anew, without the rejected rows

    @property
    def clip_range(self) -> tuple[float, float]:
        """The range within which the PPO ratio is not clipped."""
        return 1.0 - self.settings.value(CLIP_LOW), 1.0 + self.settings.value(CLIP_HIGH)


@dataclass(frozen=True, slots=True, eq=False)
class PresetLoss:
    """The loss of one preset on one batch, and its exact derivative."""

    effect: PresetEffect
    batch: ReplayBatch  # with the advantages that were used
    result: LossResult

    @property
    def coefficients(self) -> Array:
        """D loss / d current log-prob, [tokens]."""
        return self.result.coefficients


def loss_of_preset(plan: Plan, name: str, batch: ReplayBatch, update: Update) -> PresetLoss:
    """The loss of a preset, or of `naive`, on a batch."""
    if name == NAIVE:
        effect = naive_effect(batch, update.loss)
    else:
        effect = apply_preset(plan, name, batch, update.loss)
    if update.rebaseline:
        computed = "grpo" if update.advantage == "column" else update.advantage
        advantages = without_rejected(batch, effect.kept, computed)
        batch = replace(batch, advantages=advantages)
    return loss_of_effect(effect, batch, update, plan.trainer.update)


def loss_of_effect(
    effect: PresetEffect, batch: ReplayBatch, update: Update, rules: UpdateRules
) -> PresetLoss:
    """The loss for weights and a mask that are made already."""
    given = loss_batch(
        batch.current,
        effect.anchor,
        batch.advantages,
        # Rows without a token come last: some losses and denominators count them.
        np.concatenate([batch.lengths, np.zeros(batch.empty, np.int64)]),
        kept=effect.kept,
        weights=effect.weights,
        padded_width=batch.width,
        rollout=batch.rollout,
    )
    return PresetLoss(effect, batch, evaluate(given, effect.loss, update.settings, rules))


def preset_replay(
    plan: Plan,
    name: str,
    loss: PresetLoss,
    factors: dict[str, Factor],
    **model_parts,
) -> PresetReplay:
    """A preset in the result; `model_parts` are gradient, after_step and split of a model run."""
    effect, batch, result = loss.effect, loss.batch, loss.result
    kept_rows = segment_sum(effect.kept.astype(np.int64), batch.lengths) > 0
    metrics = {**effect.metrics, **result.metrics}
    shared = shares(result.coefficients, batch)
    gradient, after = model_parts.get("gradient"), model_parts.get("after_step")
    evidence = Evidence(
        mode=effect.mode,
        loss_type=effect.loss,
        undefined=result.undefined or _no_number(result),
        metrics=metrics,
        factors=factors,
        kept_token_share=float(effect.kept.mean()),
        kept_sequence_share=float(kept_rows.mean()),
        ess_seq=_ess(effect.final, batch),
        shares=shared,
        gradient=gradient,
        after=after,
        uncorrected=name == NAIVE or plan.corrections[name].leaves_loss_alone,
        double_counted=_double_counted(plan, name),
    )
    return PresetReplay(
        mode=effect.mode,
        loss_type="ppo_clip" if effect.loss == "vanilla" else effect.loss,
        config={} if name == NAIVE else dict(plan.configs[name]),
        loss=None if result.undefined else result.loss,
        undefined=result.undefined,
        metrics=metrics,
        coefficients=coefficient_numbers(result.coefficients),
        shares=shared,
        denominator=_denominator(result.divided),
        kept_tokens=int(effect.kept.sum()),
        kept_sequences=int(kept_rows.sum()),
        gradient=gradient,
        after_step=after,
        split=model_parts.get("split"),
        health=health(evidence),
        scatter=_scatter(loss),
        weight_histogram=_weights(effect),
    )


def _denominator(divided: Divided) -> Denominator:
    return Denominator(
        basis=divided.which,
        counted=divided.unit,
        divisor=divided.used,
        kept_count=divided.kept,
        full_count=divided.all,
    )


def _no_number(result: LossResult) -> str | None:
    """Why there is no step although something is kept."""
    if np.isfinite(result.loss) and np.isfinite(result.coefficients).all():
        return None
    return "the loss or its gradient is not a finite number"


def _ess(final: Array, batch: ReplayBatch) -> float | None:
    """(sum m)^2 / (n sum m^2) over sequences, m the mean weight of their tokens."""
    means = segment_sum(final, batch.lengths) / batch.lengths
    squares = float(np.square(means).sum())
    if not squares or not np.isfinite(squares):
        return None
    return float(means.sum() ** 2 / (len(means) * squares))


def _double_counted(plan: Plan, name: str) -> bool:
    if name == NAIVE:
        return False
    correction = plan.corrections[name]
    bypass = correction.mode == "bypass" and correction.loss == "ppo_clip"
    return bypass and correction.weighting is not None


def _weights(effect: PresetEffect) -> Histogram | None:
    """Counts of kept tokens by the size of their weight; those of 0 are in the lowest bin."""
    if effect.weights is None:
        return None
    kept = effect.weights[effect.kept]
    logs = np.full(len(kept), WEIGHT_EDGES[0])
    np.log10(kept, out=logs, where=kept > 0)
    counts, _ = np.histogram(np.clip(logs, WEIGHT_EDGES[0], WEIGHT_EDGES[-1]), WEIGHT_EDGES)
    return {"edges": WEIGHT_EDGES.tolist(), "counts": counts.astype(float).tolist()}


def _scatter(loss: PresetLoss) -> list[list[float]]:
    """Log-prob, advantage and coefficient of a few tokens that are pulled at, by a hash."""
    pulled = np.flatnonzero(loss.coefficients)
    keys = mixed(pulled.astype(np.uint64))
    some = np.sort(pulled[np.argsort(keys, kind="stable")[:DRAWN]])
    columns = (loss.batch.current, loss.batch.advantages, loss.coefficients)
    rows = np.stack([column[some] for column in columns], axis=1)
    return [[float(f"{value:.4g}") for value in row] for row in rows[np.isfinite(rows).all(axis=1)]]
