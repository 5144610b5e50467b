"""RLinf's policy losses: PPO, and PPO around recomputed log-probs in the decoupled loss.

Weights multiply advantages; as they are not negative, this is PPO times the weights. The ratio is
not clamped, unless clip_log_ratio_min or _max is set, which is not supported here. Source:
RLinf/RLinf commit a3816b59, rlinf/algorithms/losses.py (`compute_ppo_actor_loss`,
`compute_decoupled_ppo_actor_loss`) and rlinf/utils/utils.py (`masked_mean` and others).
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from rcdiag.losses import clipped
from rcdiag.losses.aggregation import (
    SEQ_MEAN_TOKEN_MEAN,
    SEQ_MEAN_TOKEN_SUM,
    TOKEN_MEAN,
    counted_row_mean,
)
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.clipped import clip_ratio, ppo
from rcdiag.losses.policy_loss import CLIPPED_TO, SYMBOLS
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import CLIP_C, PPO_SETTINGS, LossSettings, above_one
from rcdiag.losses.tensor import Tensor


def _ppo(batch: LossBatch, settings: LossSettings) -> tuple[Tensor, Tensor, Tensor]:
    """Return PPO losses (dual clip if `clip_c` is set), and where clip and dual clip are active.

    Comparisons use advantages times weights: with a weight of 0 nothing counts as clipped.
    """
    losses, beyond = ppo(batch.log_ratio.exp(), batch.advantages, settings)
    dual = beyond.new_zeros(beyond.shape)
    if (bound := settings.value(CLIP_C)) is not None:
        ceiling = batch.advantages.abs() * above_one(bound)
        dual = ceiling < losses
        losses = losses.minimum(ceiling)
    if batch.weights is not None:
        beyond, dual = beyond & (batch.weights > 0), dual & (batch.weights > 0)
    return losses, beyond, dual


def vanilla(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO losses on the ratio of each token."""
    losses, beyond, dual = _ppo(batch, settings)
    ratio = batch.log_ratio.exp()
    weights = 1.0 if batch.weights is None else batch.weights
    logged = {
        "policy_loss_abs": (losses * weights).abs(),
        "ratio": ratio,
        "ratio_abs": (ratio - 1.0).abs(),
        "clipped_ratio": clip_ratio(ratio, settings),
        "dual_cliped_ratio": ratio.where(dual, ratio.new_zeros(())),
        "approx_kl": -batch.log_ratio,
        "clip_fraction": beyond,
    }
    return TokenLosses(losses, logged)


def decoupled_ppo(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO losses on current / old; logged numbers include the dropped tokens."""
    losses, _, dual = _ppo(replace(batch, weights=None), settings)
    ratio = batch.log_ratio.exp()
    _, beyond = ppo(ratio, batch.advantages, settings)
    logged = {
        "proximal_ratio": ratio,
        "clipped_proximal_ratio": clip_ratio(ratio, settings),
        "clip_fraction": beyond,
        "dual_clip_fraction": dual,
        "proximal_approx_kl": -batch.log_ratio,
    }
    return TokenLosses(losses.where(batch.kept, losses.new_zeros(())), logged)


def logged(batch: LossBatch, losses: TokenLosses, settings: LossSettings) -> dict[str, float]:
    """Return means over all tokens; policy_loss_abs is aggregated like the loss."""
    numbers = {}
    for name, column in losses.logged.items():
        values = column.detach().double()
        if name == "policy_loss_abs":
            which = AGGREGATIONS[settings.aggregation]
            total = (values * which.within(batch, which.denominator(settings))).sum()
            spoilt = which.empty_rows_spoil and bool((batch.lengths == 0).any())
            numbers[name] = math.nan if spoilt else float(total) / which.divisor(batch, settings)
        else:
            numbers[name] = float(values.sum()) / max(len(values), 1)
    return numbers


_FILE = "RLinf/RLinf commit a3816b59, rlinf/algorithms/losses.py"
VANILLA = replace(
    clipped.VANILLA,
    function=vanilla,
    source=f"{_FILE}, compute_ppo_actor_loss",
    settings=PPO_SETTINGS,
)
DECOUPLED = replace(
    clipped.VANILLA,
    name="decoupled_ppo",
    alias="",
    says="PPO around the recomputed log-probs, times the raw ratio of these to the rollout's.",
    formula=f"max(-A r, -A clip(r)), at most |A| c; {CLIPPED_TO}; {SYMBOLS}",
    direction="minimised",
    source=f"{_FILE}, compute_decoupled_ppo_actor_loss",
    function=decoupled_ppo,
    settings=PPO_SETTINGS,
    see=("vanilla", "behave_weight_threshold"),
)
AGGREGATIONS = by_name(
    (
        TOKEN_MEAN,
        replace(SEQ_MEAN_TOKEN_SUM, default="all"),
        replace(SEQ_MEAN_TOKEN_MEAN, within=counted_row_mean, default="all", empty_rows_spoil=True),
    )
)
UPDATE = UpdateRules(
    losses=by_name((VANILLA, DECOUPLED)),
    aggregations=AGGREGATIONS,
    fixed={"decoupled_ppo": "token-mean"},
    prefix="actor/",
    sees_rejected=True,
    logged=logged,
    defaults=LossSettings(own={"clip_c": 3.0}),
)
