"""Tinker's policy losses as the cookbook describes them: sums over tokens.

log_ratio = current - rollout, in nats. Source: thinking-machines-lab/tinker-cookbook commit
9dfcc3a2, tutorials/202_loss_functions.py; the servers' code is not public.
"""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.losses import clipped
from rcdiag.losses.aggregation import TOKEN_SUM
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.clipped import clip_ratio
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import LossSettings
from rcdiag.trainers.skyrl.losses import IMPORTANCE_WEIGHTED


def importance_weighted(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -A ratio, without a bound."""
    return TokenLosses(-tokens.advantages * tokens.log_ratio.exp(), {})


def cispo(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -stop_gradient(clip(ratio)) A current."""
    ratio = clip_ratio(tokens.log_ratio.exp(), settings).detach()
    return TokenLosses(-ratio * tokens.advantages * tokens.current, {})


_FILE = "thinking-machines-lab/tinker-cookbook commit 9dfcc3a2, tutorials/202_loss_functions.py"
UPDATE = UpdateRules(
    losses=by_name(
        (
            replace(IMPORTANCE_WEIGHTED, function=importance_weighted, source=_FILE),
            replace(clipped.SINGLE_CLIP, source=_FILE),
            replace(clipped.CISPO, function=cispo, source=_FILE),
        )
    ),
    aggregations=by_name((replace(TOKEN_SUM, default="all"),)),
    logged=lambda tokens, losses, settings: {},
    defaults=LossSettings(aggregation="token-sum"),
)
