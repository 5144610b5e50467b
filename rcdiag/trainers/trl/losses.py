"""Policy losses of TRL and of trainers that follow it: PPO, CISPO, SAPO and VESPO.

log_ratio = current - old, in nats, unclamped. The ratio is that of a token, or one for the whole
sequence, with the gradient through the mean. A loss_type of TRL is a loss together with a
reduction. Source: trl 1.16.0, trl/trainer/grpo_trainer.py, `_compute_loss`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec.structs import replace

from rcdiag.losses import clipped
from rcdiag.losses.aggregation import (
    SEQ_MEAN_TOKEN_MEAN,
    SEQ_MEAN_TOKEN_SUM,
    SEQ_MEAN_TOKEN_SUM_NORM,
    TOKEN_MEAN,
    counted_row_mean,
)
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.clipped import TAU_NEG, TAU_POS, clip_ratio, soft_gate
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import CLIP_HIGH, CLIP_LOW, CLIP_RANGE, LossSettings
from rcdiag.losses.tensor import Tensor
from rcdiag.losses.vespo import VESPO
from rcdiag.trainers.settings_table import read_loss_settings

_OWN = read_loss_settings("rcdiag.trainers.trl")
IMPORTANCE_SAMPLING_LEVEL = _OWN["importance_sampling_level"]
DELTA, EPSILON_HIGH = _OWN["delta"], _OWN["epsilon_high"]


def by_sequence(settings: LossSettings) -> bool:
    """Tell whether there is one PPO ratio for the whole sequence."""
    return bool(settings.value(IMPORTANCE_SAMPLING_LEVEL) != "token")


def ppo_ratio(batch: LossBatch, settings: LossSettings) -> Tensor:
    """Return the ratio of each token, or at each token the ratio of its sequence, [tokens].

    At level `sequence_token` the gradient only goes through the token's own log-prob.
    """
    if not by_sequence(settings):
        return batch.log_ratio.exp()
    means = batch.row_means(batch.log_ratio)[batch.rows]
    if settings.value(IMPORTANCE_SAMPLING_LEVEL) == "sequence_token":
        means = batch.current - batch.current.detach() + means.detach()
    return means.exp()


def vanilla(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO losses without dual clip; `delta`, if given, bounds the unclipped ratio."""
    ratio = ppo_ratio(batch, settings)
    held = ratio if (bound := settings.value(DELTA)) is None else ratio.clamp(max=bound)
    free = -batch.advantages * held
    losses = free.maximum(-batch.advantages * clip_ratio(ratio, settings))
    return TokenLosses(losses * batch.kept, clipped_sides(batch, held, settings))


def clipped_sides(batch: LossBatch, ratio: Tensor, settings: LossSettings) -> dict[str, Tensor]:
    """Tell at which tokens PPO's clip is active: at the lower bound, the upper bound, either."""
    below = (ratio < 1.0 - settings.value(CLIP_LOW)) & (batch.advantages < 0)
    above = (ratio > 1.0 + settings.value(CLIP_HIGH)) & (batch.advantages > 0)
    return {"low": below, "high": above, "region": below | above}


def cispo(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -stop_gradient(min(ratio, epsilon_high)) A current."""
    ratio, bound = ppo_ratio(batch, settings), settings.value(EPSILON_HIGH)
    losses = -ratio.clamp(max=bound).detach() * batch.advantages * batch.current
    clipped_up = (ratio > bound) & (batch.advantages > 0)
    return TokenLosses(losses * batch.kept, {"cispo": clipped_up})


def sapo(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -A times the soft gate of the ratio."""
    gate = soft_gate(ppo_ratio(batch, settings), batch.advantages, settings)
    return TokenLosses(-gate * batch.advantages * batch.kept, {})


def clip_shares(
    batch: LossBatch, losses: TokenLosses, settings: LossSettings, over: Tensor
) -> dict[str, float]:
    """Return the means of a loss's flags by key: over the tokens `over`, or over all sequences.

    They are over sequences if there is one ratio per sequence.
    """
    keys = {"cispo": "cispo_clip_ratio"}
    by_row, count = by_sequence(settings), over.double().sum().clamp(min=1.0)
    return {
        keys.get(name, f"clip_ratio/{name}_mean"): float(
            batch.row_means(flags).mean() if by_row else (flags & over).sum() / count
        )
        for name, flags in losses.logged.items()
    }


def extremes_of_one_process(shares: Mapping[str, float]) -> dict[str, float]:
    """Return the minimum and maximum share of trainers that take them over processes, not rows.

    Here there is one process, so both equal its share.
    """
    extremes = {"clip_ratio/low_min": "low", "clip_ratio/high_max": "high"}
    means = {key: f"clip_ratio/{name}_mean" for key, name in extremes.items()}
    return {key: shares[mean] for key, mean in means.items() if mean in shares}


def logged(batch: LossBatch, losses: TokenLosses, settings: LossSettings) -> dict[str, float]:
    """Return what TRL logs of a loss; the minimum and maximum share are over sequences."""
    if "phi" in losses.logged:  # one number per sequence; 1 for a sequence without a token
        phi = batch.row_means(losses.logged["phi"]).where(batch.lengths > 0, 1.0)
        return {"vespo/phi_seq_mean": float(phi.mean())}
    shares = clip_shares(batch, losses, settings, batch.kept.new_ones(batch.kept.shape))
    for name, key in (("low", "clip_ratio/low_min"), ("high", "clip_ratio/high_max")):
        if name in losses.logged:
            rows = batch.row_means(losses.logged[name])
            if not by_sequence(settings):  # a row without a token is 0/0, which TRL leaves out
                rows = rows[batch.lengths > 0]
            extreme = rows.amin if name == "low" else rows.amax
            shares[key] = float(extreme()) if len(rows) else math.nan
    return shares


_FILE = "trl 1.16.0, trl/trainer/grpo_trainer.py, _compute_loss"
PPO_SETTINGS = (*CLIP_RANGE, DELTA, IMPORTANCE_SAMPLING_LEVEL)
VANILLA = replace(clipped.VANILLA, function=vanilla, source=_FILE, settings=PPO_SETTINGS)
CISPO = replace(
    clipped.CISPO,
    function=cispo,
    source=_FILE,
    settings=(EPSILON_HIGH, IMPORTANCE_SAMPLING_LEVEL),
)
SAPO = replace(
    clipped.SAPO,
    function=sapo,
    source=_FILE,
    settings=(TAU_POS, TAU_NEG, IMPORTANCE_SAMPLING_LEVEL),
)
# By loss_type: dapo and bnpo, grpo, luspo, dr_grpo.
AGGREGATIONS = by_name(
    replace(one, default="all")
    for one in (
        TOKEN_MEAN,
        replace(SEQ_MEAN_TOKEN_MEAN, within=counted_row_mean),
        SEQ_MEAN_TOKEN_SUM,
        SEQ_MEAN_TOKEN_SUM_NORM,
    )
)
# `loss_type` is a loss with a reduction. `max_completion_length` is the divisor in dr_grpo.
UPDATE = UpdateRules(
    losses=by_name((VANILLA, CISPO, SAPO, VESPO)),
    aggregations=AGGREGATIONS,
    fixed={
        "cispo": "token-mean",
        "sapo": "seq-mean-token-mean",
        "vespo": "token-mean",
    },
    sees_rejected=True,
    logged=logged,
    defaults=LossSettings(scale_factor=512.0),
)
