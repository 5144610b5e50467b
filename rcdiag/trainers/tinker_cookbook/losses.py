"""Tinker's policy losses as the cookbook describes them: sums over tokens.

log_ratio = current - rollout, in nats. Source: thinking-machines-lab/tinker-cookbook commit
9dfcc3a2, tutorials/202_loss_functions.py; the servers' code is not public.
"""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.losses import clipped
from rcdiag.losses.aggregation import TOKEN_SUM
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.clipped import clip_ratio, ppo
from rcdiag.losses.policy_loss import CLIPPED_TO, SYMBOLS
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import CLIP_RANGE, LossSettings
from rcdiag.trainers.skyrl.losses import IMPORTANCE_WEIGHTED


def importance_weighted(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """-A ratio, without a bound."""
    return TokenLosses(-tokens.advantages * tokens.log_ratio.exp(), {})


def vanilla(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """PPO on the ratio of each token, without dual clip."""
    losses, _ = ppo(tokens.log_ratio.exp(), tokens.advantages, settings)
    return TokenLosses(losses, {})


def cispo(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """-stop_gradient(clip(ratio)) A current."""
    ratio = clip_ratio(tokens.log_ratio.exp(), settings).detach()
    return TokenLosses(-ratio * tokens.advantages * tokens.current, {})


_FILE = "thinking-machines-lab/tinker-cookbook commit 9dfcc3a2, tutorials/202_loss_functions.py"
UPDATE = UpdateRules(
    losses=by_name(
        (
            replace(IMPORTANCE_WEIGHTED, function=importance_weighted, source=_FILE),
            replace(
                clipped.VANILLA,
                function=vanilla,
                formula=f"max(-A r, -A clip(r)); {CLIPPED_TO}; {SYMBOLS}",
                source=_FILE,
                settings=CLIP_RANGE,
            ),
            replace(clipped.CISPO, function=cispo, source=_FILE),
        )
    ),
    aggregations={"token-sum": replace(TOKEN_SUM, default="all")},
    logged=lambda tokens, losses, settings: {},
    defaults=LossSettings(aggregation="token-sum"),
)
