"""TRL's policy losses, and those of trainers that follow it: PPO, CISPO, SAPO and VESPO.

log_ratio = current - old, in nats, unclamped. The ratio is that of a token, or one for the whole
sequence, whose gradient goes through the mean. A loss_type of TRL is a loss here and the way in
which it is reduced. Source: trl 1.16.0, trl/trainer/grpo_trainer.py, `_compute_loss`.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from rcdiag.losses import clipped
from rcdiag.losses.aggregation import (
    SEQ_MEAN_TOKEN_MEAN,
    SEQ_MEAN_TOKEN_SUM,
    SEQ_MEAN_TOKEN_SUM_NORM,
    TOKEN_MEAN,
)
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.clipped import TAU_NEG, TAU_POS, clip_ratio
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import CLIP_HIGH, CLIP_LOW, CLIP_RANGE, LossSetting, LossSettings
from rcdiag.losses.tensor import Tensor
from rcdiag.losses.vespo import VESPO
from rcdiag.trainers.slime.losses import row_mean

IMPORTANCE_SAMPLING_LEVEL = LossSetting(
    name="importance_sampling_level",
    says="Level of the ratio of current to old: token, or sequence for the geometric mean over the "
    "sequence (GSPO). It is not the level of IS weights.",
    default="token",
    choices=("token", "sequence"),
    example="rcdiag replay rollouts.parquet --trainer trl "
    "--loss-setting importance_sampling_level=sequence",
    see=("gspo", "vanilla"),
)
DELTA = LossSetting(
    name="delta",
    says="Upper bound of the unclipped ratio, so that PPO is bounded where the advantage is below "
    "0 too; off by default.",
    default=None,
    above=0.0,
    example="--loss-setting delta=4",
    see=("clip_c",),
)
EPSILON_HIGH = LossSetting(
    name="epsilon_high",
    says="Upper bound of cispo's ratio, itself and not 1 plus it. Without one TRL takes epsilon, "
    "which is 0.2: every ratio near 1 is then beyond it. ScaleRL has 5.",
    default=0.2,
    above=0.0,
    example="--loss cispo --loss-setting epsilon_high=5",
    see=("cispo",),
)


def by_sequence(settings: LossSettings) -> bool:
    """Tell whether the PPO ratio is one for the whole sequence."""
    return bool(settings.value(IMPORTANCE_SAMPLING_LEVEL) != "token")


def ppo_ratio(batch: LossBatch, settings: LossSettings) -> Tensor:
    """Return the ratio of each token, or at each token that of its sequence, [tokens].

    At level `sequence_token` the gradient goes through the token's own log-prob alone.
    """
    if not by_sequence(settings):
        return batch.log_ratio.exp()
    means = (batch.row_sums(batch.log_ratio) / batch.lengths.clamp(min=1))[batch.rows]
    if settings.value(IMPORTANCE_SAMPLING_LEVEL) == "sequence_token":
        means = batch.current - batch.current.detach() + means.detach()
    return means.exp()


def vanilla(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO losses without dual clip; where `delta` is given it bounds the free ratio."""
    ratio = ppo_ratio(batch, settings)
    held = ratio if (bound := settings.value(DELTA)) is None else ratio.clamp(max=bound)
    free = -batch.advantages * held
    losses = free.maximum(-batch.advantages * clip_ratio(ratio, settings))
    return TokenLosses(losses * batch.kept, clipped_sides(batch, held, settings))


def clipped_sides(batch: LossBatch, ratio: Tensor, settings: LossSettings) -> dict[str, Tensor]:
    """Tell at which tokens PPO's clip holds a ratio from below, from above, on either side."""
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
    """Return -A sigmoid(tau (ratio - 1)) 4 / tau; tau is tau_pos where A > 0, else tau_neg."""
    ratio = ppo_ratio(batch, settings)
    tau = ratio.new_full(ratio.shape, settings.value(TAU_POS))
    tau = tau.where(batch.advantages > 0, settings.value(TAU_NEG))
    losses = -(tau * (ratio - 1.0)).sigmoid() * 4.0 / tau * batch.advantages
    return TokenLosses(losses * batch.kept, {})


def row_shares(batch: LossBatch, values: Tensor) -> Tensor:
    """Return the mean of token values over each row, 0 for a row without a token, [rows]."""
    return batch.row_sums(values.double()) / batch.lengths.clamp(min=1)


def clip_shares(
    batch: LossBatch, losses: TokenLosses, settings: LossSettings, over: Tensor
) -> dict[str, float]:
    """Return the means of what a loss has, by key: over the tokens `over`, or over all sequences.

    They are over sequences where the ratio is one for the sequence.
    """
    keys = {"cispo": "cispo_clip_ratio"}
    by_row, count = by_sequence(settings), over.double().sum().clamp(min=1.0)
    return {
        keys.get(name, f"clip_ratio/{name}_mean"): float(
            row_shares(batch, flags).mean() if by_row else (flags & over).sum() / count
        )
        for name, flags in losses.logged.items()
    }


def logged(batch: LossBatch, losses: TokenLosses, settings: LossSettings) -> dict[str, float]:
    """Return what TRL logs of a loss; the smallest and the largest share are those of sequences."""
    if "phi" in losses.logged:  # one number for the sequence; 1 for one without a token
        phi = row_shares(batch, losses.logged["phi"]).where(batch.lengths > 0, 1.0)
        return {"vespo/phi_seq_mean": float(phi.mean())}
    shares = clip_shares(batch, losses, settings, batch.kept.new_ones(batch.kept.shape))
    for name, key in (("low", "clip_ratio/low_min"), ("high", "clip_ratio/high_max")):
        if name in losses.logged:
            rows = row_shares(batch, losses.logged[name])
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
AGGREGATIONS = {
    "token-mean": replace(TOKEN_MEAN, default="all"),
    "seq-mean-token-mean": replace(SEQ_MEAN_TOKEN_MEAN, within=row_mean, default="all"),
    "seq-mean-token-sum": replace(SEQ_MEAN_TOKEN_SUM, default="all"),
    "seq-mean-token-sum-norm": replace(SEQ_MEAN_TOKEN_SUM_NORM, default="all"),
}
# `loss_type`: a loss, and how it is reduced. `max_completion_length` divides in dr_grpo.
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
