"""DPPO: tokens on which the policy has moved too far are left out of the gradient.

arXiv 2602.04879. The distance is between two Bernoulli distributions, the token against all others,
with p = e^current and q = e^old. The bounds are verl's clip range: core_algos.py of verl 0.9.1.
"""

from __future__ import annotations

from rcdiag.losses.batch import EPSILON, LossBatch, TokenLosses
from rcdiag.losses.clipped import bounded_log_ratio
from rcdiag.losses.policy_loss import SYMBOLS, VERL_FILE, WITHIN_20, PolicyLoss
from rcdiag.losses.settings import (
    CLIP_HIGH,
    CLIP_LOW,
    PPO_SETTINGS,
    LossSettings,
    dual_clip_bound,
)
from rcdiag.losses.tensor import Tensor


def truncated(tokens: LossBatch, settings: LossSettings, valid: Tensor) -> TokenLosses:
    """Return -A stop_gradient(min(ratio, c)) current where valid, else 0, [tokens]."""
    log_ratio, bound = bounded_log_ratio(tokens), dual_clip_bound(settings)
    ratio = log_ratio.detach().exp()
    losses = -tokens.advantages * ratio.clamp(max=bound) * tokens.current * valid
    logged = {"pg_clipfrac": ~valid, "ppo_kl": -log_ratio}
    return TokenLosses(losses, logged | {"pg_clipfrac_lower": (ratio > bound) & valid})


def dppo_tv(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return the loss where p - q <= clip_high (A > 0) or p - q >= -clip_low, else 0, [tokens]."""
    moved = tokens.current.detach().exp() - tokens.old.exp()
    above, below = moved <= settings.value(CLIP_HIGH), moved >= -settings.value(CLIP_LOW)
    return truncated(tokens, settings, above.where(tokens.advantages > 0, below))


DPPO_TV = PolicyLoss(
    name="dppo_tv",
    says="Tokens whose probability moved too far in the advantage's direction get no gradient.",
    formula="-A sg(min(r, c)) log p_current where p - q <= clip_high (A > 0) or p - q >= "
    f"-clip_low, else 0; p current, q old, c = clip_c = 3, 0.2 and 0.2; {SYMBOLS}, {WITHIN_20}",
    source=f"arXiv 2602.04879; {VERL_FILE}, loss_mode dppo_tv",
    function=dppo_tv,
    settings=PPO_SETTINGS,
    see=("dppo_kl", "clip_c"),
)


def binary_kl(current: Tensor, old: Tensor) -> Tensor:
    """Return KL(q || p) = q (old - current) + (1 - q) ln((1 - q) / (1 - p)), nats, [tokens].

    The last term has verl's epsilon in numerator and denominator.
    """
    p, q = current.exp(), old.exp()
    return q * (old - current) + (1.0 - q) * ((1.0 - q + EPSILON) / (1.0 - p + EPSILON)).log()


def dppo_kl(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return the loss where KL(q || p) is within bounds or p moved against A, else 0, [tokens].

    p has moved against the advantage if p <= q where A > 0, or p >= q where A <= 0.
    """
    current = tokens.current.detach()
    distance, p, q = binary_kl(current, tokens.old), current.exp(), tokens.old.exp()
    above = (distance <= settings.value(CLIP_HIGH)) | (p <= q)
    below = (distance <= settings.value(CLIP_LOW)) | (p >= q)
    return truncated(tokens, settings, above.where(tokens.advantages > 0, below))


DPPO_KL = PolicyLoss(
    name="dppo_kl",
    says="DPPO by the KL divergence of two Bernoulli distributions, the token against all others, "
    "instead of the difference of probabilities.",
    formula="as dppo_tv, where KL(q || p) <= clip_high (A > 0) or clip_low, or p <= q (A > 0) or "
    f"p >= q; 0.2 and 0.2 nats, c = clip_c = 3; {SYMBOLS}, {WITHIN_20}",
    source=f"arXiv 2602.04879; {VERL_FILE}, loss_mode dppo_kl",
    function=dppo_kl,
    settings=PPO_SETTINGS,
    see=("dppo_tv", "clip_c"),
)
