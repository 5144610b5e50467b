"""rLLM's policy losses: those of verl 0.8.0, or PPO on Fireworks' servers.

For Fireworks' servers rLLM multiplies advantages by the weights; since weights are not negative,
that is PPO times the weights. Its losses other than grpo are not supported here. Sources:
fw-ai/cookbook commit bba676c6, training/utils/rl/grpo.py (`make_grpo_loss_fn`), builtin_losses.py
and skills/dev/references/rl/gradient-accumulation.md; rllm-org/rllm commit 9beb6e0f,
rllm/trainer/fireworks/fireworks_policy_trainer.py (`optim_step`).
"""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.losses import clipped
from rcdiag.losses.aggregation import (
    SEQ_MEAN_TOKEN_MEAN,
    SEQ_MEAN_TOKEN_SUM,
    TOKEN_MEAN,
    TOKEN_SUM,
    counted_row_mean,
)
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.clipped import bounded_log_ratio, ppo
from rcdiag.losses.policy_loss import CLIPPED_TO, SYMBOLS, WITHIN_20
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import LossSettings
from rcdiag.trainers.verl import losses as verl

VERL = verl.UPDATE_071  # verl 0.8.0 has the losses of 0.7.1


def grpo(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO losses on the ratio of each token, without dual clip."""
    losses, _ = ppo(bounded_log_ratio(tokens).exp(), tokens.advantages, settings)
    return TokenLosses(losses, {})


GRPO = replace(
    clipped.SINGLE_CLIP,
    says="PPO on the ratio of each token, without dual clip: loss_fn grpo, the default.",
    formula=f"max(-A r, -A clip(r)); {CLIPPED_TO}; {SYMBOLS}, {WITHIN_20}",
    source="fw-ai/cookbook commit bba676c6, training/utils/rl/grpo.py",
    function=grpo,
)
# The gradients of a step are summed and divided once, at the optimizer step. Without loss_agg_mode
# nothing divides them.
_ROW_MEANS = replace(SEQ_MEAN_TOKEN_MEAN, within=counted_row_mean)  # without an epsilon
FIREWORKS = UpdateRules(
    losses=by_name((GRPO,)),
    aggregations=by_name(
        replace(one, default="all")
        for one in (TOKEN_SUM, TOKEN_MEAN, SEQ_MEAN_TOKEN_SUM, _ROW_MEANS)
    ),
    logged=lambda tokens, losses, settings: {},  # what the servers log is unknown
    defaults=LossSettings(aggregation="token-sum"),
)
