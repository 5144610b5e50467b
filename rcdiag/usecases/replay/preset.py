"""One preset on one batch: its weights and mask, its loss, and the coefficient of every token."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.corrections.apply import TokenEffects, token_effects
from rcdiag.corrections.arithmetic import Tokens
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import tokens_kept
from rcdiag.corrections.sequences import rows_of
from rcdiag.corrections.trainer_means import Batch
from rcdiag.errors import RcdiagError, setting
from rcdiag.losses.batch import loss_batch
from rcdiag.losses.evaluate import LossResult, evaluate
from rcdiag.losses.policy_loss import PolicyLoss
from rcdiag.table.trajectories import segment_sum
from rcdiag.usecases.replay.token_advantages import formula_of, without_rejected
from rcdiag.usecases.replay.update import NAIVE, TrainerUpdate
from rcdiag.usecases.replay.update_batch import ReplayBatch

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


class PresetEffect(TokenEffects, frozen=True, kw_only=True):
    """The weights and mask of a preset in the loss of one batch, after batch normalisation."""

    mode: str  # decoupled, bypass or naive
    loss: str  # name of the policy loss
    metrics: Mapping[str, float] = field(default_factory=dict)  # as the trainer logs them
    weights_of_rows: bool = False  # whether all tokens of a sequence have one weight
    # [tokens] tokens that count as sampled: others leave the mask before denominators. None: all.
    in_mask: Flags | None = None

    def take(self, tokens: Flags) -> PresetEffect:
        """Return the effect on some of the tokens."""
        weights = None if self.weights is None else self.weights[tokens]
        in_mask = None if self.in_mask is None else self.in_mask[tokens]
        return replace(self, kept=self.kept[tokens], weights=weights, in_mask=in_mask)


class PresetLoss(Struct, frozen=True, eq=False):
    """The loss of one preset on one batch, and its exact derivative."""

    effect: PresetEffect
    batch: ReplayBatch  # with the advantages that were used
    result: LossResult

    @property
    def coefficients(self) -> Array:
        """Return the derivatives d loss / d current log-prob, [tokens]."""
        return self.result.coefficients


def apply_preset(name: str, batch: ReplayBatch, update: TrainerUpdate) -> PresetEffect:
    """Apply the correction of a preset to a batch; `naive` has none.

    In decoupled mode weights are of the ratios old / rollout, in bypass mode of current / rollout.
    Rejections by the current policy use current / rollout in both modes.
    Source: verl 0.9.1, verl/trainer/ppo/core_algos.py, compute_policy_loss_bypass_mode.
    """
    if name == NAIVE:
        everything = np.ones(batch.num_tokens, np.bool_)
        return PresetEffect(everything, None, mode=NAIVE, loss=update.loss)
    trainer, whole = update.plan.trainer, update.plan.corrections[name]
    correction = replace(
        whole, rejections=tuple(one for one in whole.rejections if not one.of_current)
    )
    bypass = correction.mode == "bypass"
    loss = trainer.update.loss_of_type(correction.loss) if correction.has_own_loss else update.loss
    _check_level(name, correction, trainer.update.loss(loss))
    with np.errstate(all="ignore"):
        pair = batch.pair("rollout", "current" if bypass else "old")
        rows = rows_of(pair, empty=batch.empty).under(correction.guard)
        tokens = Tokens.of(pair)
        effects = token_effects(correction, tokens, rows)
        first = [one for one in correction.rejections if one.leaves_denominators]
        in_mask = tokens_kept(tokens.under(correction.guard), first) if first else None
        metrics = trainer.metrics(Batch(rows), correction)
        of_current = [one for one in whole.rejections if one.of_current]
        current = Tokens.of(batch.pair("rollout", "current")).under(whole.guard)
        kept = effects.kept & tokens_kept(current, of_current)
    weights = None if correction.weights_in_loss else effects.weights
    if weights is not None and correction.batch_normalize:
        weights = weights / trainer.normaliser(Batch(rows), correction)
    weighting = correction.weighting
    return PresetEffect(
        kept,
        weights,
        mode=correction.mode,
        loss=loss,
        metrics=metrics,
        weights_of_rows=weighting is not None and not weighting.by_token,
        in_mask=in_mask,
    )


def _check_level(name: str, correction: Correction, loss: PolicyLoss) -> None:
    """Refuse sequence weights for a loss that accepts only token weights."""
    weighting = correction.loss_weighting
    if loss.weights_of_tokens and weighting is not None and not weighting.by_token:
        raise RcdiagError(
            f"{name}: {loss.name} takes token weights, but these are of level {weighting.level}; "
            "the trainer stops",
            hint=f"choose others: {setting('presets', 'NAME', '--preset')}",
        )


def loss_of_preset(name: str, batch: ReplayBatch, update: TrainerUpdate) -> PresetLoss:
    """Return the loss of a preset, or of `naive`, on a batch."""
    effect = apply_preset(name, batch, update)
    if update.rebaseline:
        formula = formula_of(update.advantage)
        batch = batch.with_advantages(without_rejected(batch.tokens, effect.kept, formula))
    return loss_of_effect(effect, batch, update)


def loss_of_effect(effect: PresetEffect, batch: ReplayBatch, update: TrainerUpdate) -> PresetLoss:
    """Return the loss for given weights and mask.

    The PPO ratio is current / rollout in bypass mode, else current / old.
    """
    inside = np.ones(batch.num_tokens, np.bool_) if effect.in_mask is None else effect.in_mask
    old = batch.rollout if effect.mode == "bypass" else batch.old
    lengths = segment_sum(inside.astype(np.float64), batch.lengths).astype(np.int64)
    tokens = loss_batch(
        batch.current[inside],
        old[inside],
        batch.advantages[inside],
        # Rows without a token come last: some losses and denominators count them.
        np.concatenate([lengths, np.zeros(batch.empty, np.int64)]),
        kept=effect.kept[inside],
        weights=None if effect.weights is None else effect.weights[inside],
        padded_width=batch.tokens.width,
        rollout=batch.rollout[inside],
        weights_of_rows=effect.weights_of_rows,
        groups=batch.group,
        rewards=batch.tokens.rewards,
        positions=batch.tokens.position[inside],
    )
    result = evaluate(tokens, effect.loss, update.settings, update.plan.trainer.update)
    coefficients = np.zeros(batch.num_tokens)
    coefficients[inside] = result.coefficients
    return PresetLoss(effect, batch, replace(result, coefficients=coefficients))
