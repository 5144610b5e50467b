"""DPPO: tokens that moved the policy too far leave the gradient. arXiv 2602.04879.

Distances are those of two coins, the token against all others: p = e^current, q = e^old.
verl takes its clip range for their bounds. Formulas: verl `core_algos.py`, reference/verl.md 3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rcdiag.losses.batch import EPSILON, LossBatch, TokenLosses
from rcdiag.losses.clipped import bounded_log_ratio
from rcdiag.losses.settings import LossSettings, dual_clip_bound


def truncated(tokens: LossBatch, settings: LossSettings, valid: Tensor) -> TokenLosses:
    """-A stop_gradient(min(ratio, c)) current where valid, else 0; ratio = current / old."""
    log_ratio, bound = bounded_log_ratio(tokens), dual_clip_bound(settings)
    ratio = log_ratio.detach().exp()
    losses = -tokens.advantages * ratio.clamp(max=bound) * tokens.current * valid
    logged = {"pg_clipfrac": ~valid, "ppo_kl": -log_ratio}
    return TokenLosses(losses, logged | {"pg_clipfrac_lower": (ratio > bound) & valid})


def dppo_tv(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Valid: p - q <= clip_high where A > 0, p - q >= -clip_low elsewhere."""
    moved = tokens.current.detach().exp() - tokens.old.exp()
    positive = tokens.advantages > 0
    valid = torch.where(positive, moved <= settings.clip_high, moved >= -settings.clip_low)
    return truncated(tokens, settings, valid)


def binary_kl(current: Tensor, old: Tensor) -> Tensor:
    """KL(q || p) = q (old - current) + (1 - q) ln((1 - q) / (1 - p)), nats, [tokens].

    With verl's epsilon in numerator and denominator of the last.
    """
    p, q = current.exp(), old.exp()
    return q * (old - current) + (1.0 - q) * ((1.0 - q + EPSILON) / (1.0 - p + EPSILON)).log()


def dppo_kl(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Valid: KL(q || p) within the bound, or p on the safe side of q for the advantage's sign."""
    current = tokens.current.detach()
    distance, p, q = binary_kl(current, tokens.old), current.exp(), tokens.old.exp()
    above = (distance <= settings.clip_high) | (p <= q)
    below = (distance <= settings.clip_low) | (p >= q)
    return truncated(tokens, settings, torch.where(tokens.advantages > 0, above, below))
