"""Losses with the ratio current / rollout instead of current / old, so it includes the mismatch.

ratio = exp(current - rollout). The code follows skyrl 0.4.0:
skyrl/backends/skyrl_train/utils/ppo_utils.py.
"""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.clipped import BOUND, CISPO, clip_ratio
from rcdiag.losses.policy_loss import PolicyLoss
from rcdiag.losses.settings import CLIP_HIGH, CLIP_LOW, CLIP_RANGE, LossSettings
from rcdiag.losses.tensor import Tensor

SKYRL_FILE = "skyrl 0.4.0, skyrl/backends/skyrl_train/utils/ppo_utils.py"
# Defaults of ScaleRL, arXiv 2510.13786: no lower bound, upper bound 5.
WIDE_CLIP = (replace(CLIP_LOW, default=1.0), replace(CLIP_HIGH, default=4.0))
_SYMBOLS = "d = current - rollout, r = e^d, A the advantage, d within +-20 nats"


def log_ratio_to_rollout(tokens: LossBatch) -> Tensor:
    """Return current - rollout log-prob clamped to +-20 nats, [tokens]."""
    return (tokens.current - rollout_of(tokens)).clamp(-BOUND, BOUND)


def rollout_of(tokens: LossBatch) -> Tensor:
    """Return the sampler's log-probs, or those of the old policy if none were recorded."""
    return tokens.old if tokens.rollout is None else tokens.rollout


def rollout_is(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -stop_gradient(ratio) A current where lower < ratio < upper, else 0; [tokens]."""
    ratio = log_ratio_to_rollout(tokens).exp()
    low, high = 1.0 - settings.value(CLIP_LOW), 1.0 + settings.value(CLIP_HIGH)
    inside = (ratio > low) & (ratio < high)
    weights = ratio.where(inside, ratio.new_zeros(ratio.shape)).detach()
    return TokenLosses(-weights * tokens.advantages * tokens.current, {"clipped": ~inside})


ROLLOUT_IS = PolicyLoss(
    name="icepop_rollout",
    says="rollout_is of SkyRL: the ratio to the rollout is a constant weight on the policy "
    "gradient, set to 0 outside an open interval around 1.",
    formula="-sg(r) A log p_current where 1 - clip_low < r < 1 + clip_high, else 0; sg = stop "
    f"gradient, 0.2 and 0.2; {_SYMBOLS}",
    source=f"arXiv 2602.15763, section 4.1.2; {SKYRL_FILE}, policy_loss_type rollout_is",
    function=rollout_is,
    settings=CLIP_RANGE,
    see=("cispo_rollout", "IcePop"),
)


def cispo_rollout(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -stop_gradient(clip(ratio)) A current, [tokens]."""
    ratio = log_ratio_to_rollout(tokens).exp()
    bounded = clip_ratio(ratio, settings, WIDE_CLIP)
    losses = -bounded.detach() * tokens.advantages * tokens.current
    return TokenLosses(losses, {"clipped": ratio != bounded, "ratio": ratio, "bounded": bounded})


CISPO_ROLLOUT = replace(
    CISPO,
    name="cispo_rollout",
    says="cispo with the ratio to the rollout policy instead of the old policy: the clipped ratio "
    "is a constant weight on the policy gradient.",
    formula="-sg(clip(r)) A log p_current, sg = stop gradient; clip to [1 - clip_low, "
    f"1 + clip_high], 1 and 4; {_SYMBOLS}",
    source=f"arXiv 2506.13585; {SKYRL_FILE}, cispo_anchor rollout",
    function=cispo_rollout,
    settings=WIDE_CLIP,
    see=("cispo", "icepop_rollout"),
)
