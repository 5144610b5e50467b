"""open-instruct's policy losses: DAPO and CISPO, times rho's weights, over all tokens.

Source: open-instruct commit e6c3044a, open_instruct/grpo_utils.py, `compute_grpo_loss`.
"""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.losses import clipped
from rcdiag.losses.aggregation import TOKEN_MEAN
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.clipped import ppo
from rcdiag.losses.policy_loss import SYMBOLS
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import CLIP_HIGH, CLIP_RANGE, LossSettings


def logged(tokens: LossBatch, losses: TokenLosses, settings: LossSettings) -> dict[str, float]:
    """Return means over all tokens, whatever the loss's denominator; they include weights."""
    weights = 1.0 if tokens.weights is None else tokens.weights
    of_tokens = {
        "policy/clipfrac_avg": losses.logged["clipped"] * (weights != 0),
        "loss/policy_avg": losses.values.detach() * weights,
        "val/ratio": tokens.log_ratio.detach().exp(),
    }
    return {name: values.double().mean().item() for name, values in of_tokens.items()}


def dapo(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO losses with clip-higher on the unclamped ratio of each token."""
    losses, beyond = ppo(tokens.log_ratio.exp(), tokens.advantages, settings)
    return TokenLosses(losses, {"clipped": beyond})


def cispo(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -stop_gradient(min(ratio, 1 + clip_high)) A current: no lower bound."""
    ratio = tokens.log_ratio.exp().detach()
    highest = 1.0 + settings.value(CLIP_HIGH)
    losses = -tokens.advantages * ratio.clamp(max=highest) * tokens.current
    return TokenLosses(losses, {"clipped": ratio > highest})


_FILE = "open-instruct commit e6c3044a, open_instruct/grpo_utils.py, compute_grpo_loss"
VANILLA = replace(
    clipped.VANILLA,
    says="PPO on the ratio of each token, with clip-higher and without dual clip: --loss_fn dapo.",
    formula="max(-A r, -A clip(r)), clip to [1 - clip_low, 1 + clip_high], 0.2 and 0.272; "
    f"{SYMBOLS}",
    source=f"arXiv 2503.14476; {_FILE}",
    function=dapo,
    settings=CLIP_RANGE,
)
CISPO = replace(
    clipped.CISPO,
    says="The ratio, bounded only from above, as a constant weight on the policy gradient.",
    formula="-sg(min(r, 1 + clip_high)) A log p_current, sg a constant of the gradient, 0.272; "
    f"{SYMBOLS}",
    source=f"arXiv 2506.13585; {_FILE}",
    function=cispo,
    settings=(CLIP_HIGH,),
)
# --loss_denominator is `token`, or a number, which is `--denominator constant`.
UPDATE = UpdateRules(
    losses=by_name((VANILLA, CISPO)),
    aggregations=by_name((replace(TOKEN_MEAN, default="all"),)),
    sees_rejected=True,
    logged=logged,
    defaults=LossSettings(own={"clip_high": 0.272}),
)
