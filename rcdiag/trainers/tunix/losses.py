"""Tunix's policy loss: PPO, with dual clip if epsilon_c is set; weights are applied after both.

gspo-token is not supported here. Source: google/tunix commit c7d8950f, tunix/rl/algo_core.py
(`grpo_loss_fn`) and tunix/rl/common.py (`aggregate_loss`).
"""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.losses import clipped
from rcdiag.losses.aggregation import (
    SEQ_MEAN_TOKEN_MEAN,
    SEQ_MEAN_TOKEN_SUM,
    TOKEN_MEAN,
    counted_row_mean,
)
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.clipped import bounded_log_ratio, dual_clip, ppo
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import PPO_SETTINGS, LossSettings


def vanilla(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO losses on the ratio of each token."""
    log_ratio = bounded_log_ratio(tokens)
    losses, beyond = ppo(log_ratio.exp(), tokens.advantages, settings)
    logged = {"pg_clipfrac": beyond, "ppo_kl": -tokens.log_ratio}
    losses, _ = dual_clip(losses, tokens.advantages, settings)
    return TokenLosses(losses, logged)


VANILLA = replace(
    clipped.VANILLA,
    function=vanilla,
    source="google/tunix commit c7d8950f, tunix/rl/algo_core.py, grpo_loss_fn",
    settings=PPO_SETTINGS,
)
UPDATE = UpdateRules(
    losses=by_name((VANILLA,)),
    # Means over rows are over rows with a token.
    aggregations=by_name(
        (
            TOKEN_MEAN,
            replace(SEQ_MEAN_TOKEN_MEAN, within=counted_row_mean),
            SEQ_MEAN_TOKEN_SUM,
        )
    ),
    prefix="actor/train/",
    defaults=LossSettings(aggregation="seq-mean-token-mean", own={"clip_c": None}),
)
