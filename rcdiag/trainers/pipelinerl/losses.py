"""PipelineRL's policy losses: summed over tokens, divided by the samples of a step.

log_ratio = current - rollout, in nats, unclamped. Source: ServiceNow/PipelineRL commit 58d39345,
pipelinerl/finetune/rl/__init__.py (`rl_step`).
"""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.losses.aggregation import SEQ_MEAN_TOKEN_SUM
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.clipped import SINGLE_CLIP
from rcdiag.losses.policy_loss import SYMBOLS, PolicyLoss
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import CLIP_HIGH, LossSettings


def truncated_pg(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -stop_gradient(min(ratio, 1 + clip_high)) A current."""
    ratio = tokens.log_ratio.exp().clamp(0.0, 1.0 + settings.value(CLIP_HIGH))
    return TokenLosses(-ratio.detach() * tokens.advantages * tokens.current, {})


_FILE = "ServiceNow/PipelineRL commit 58d39345, pipelinerl/finetune/rl/__init__.py, rl_step"
VANILLA = replace(
    SINGLE_CLIP,
    says="PPO on the ratio of each token relative to the sampler, without dual clip.",
    source=_FILE,
)
TRUNCATED_PG = PolicyLoss(
    name="truncated_pg",
    says="REINFORCE times the ratio to the sampler's policy, truncated and constant in the "
    "gradient.",
    formula=f"-sg(min(r, 1 + clip_high)) A log p_current, sg a constant of the gradient; {SYMBOLS}",
    source=_FILE,
    function=truncated_pg,
    settings=(CLIP_HIGH,),
    see=("cispo", "epsilon_high"),
)
UPDATE = UpdateRules(
    losses=by_name((TRUNCATED_PG, VANILLA)),
    aggregations=by_name((replace(SEQ_MEAN_TOKEN_SUM, default="all"),)),
    logged=lambda tokens, losses, settings: {},  # all metrics belong to the correction
    defaults=LossSettings(
        aggregation="seq-mean-token-sum", own={"clip_low": 0.02, "clip_high": 0.02}
    ),
)
