"""Losses that bound the ratio: PPO, GSPO, GMPO, CISPO, SAPO.

`log_ratio` = current - old, in nats; ratio = exp(log_ratio) = current / old. What is returned is
minimised, before IS weights. Formulas: verl `core_algos.py`, as in reference/verl.md 3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rcdiag.losses.batch import EPSILON, LossBatch, TokenLosses
from rcdiag.losses.settings import LossSettings, above_one, dual_clip_bound

BOUND = 20.0  # nats


def bounded_log_ratio(tokens: LossBatch) -> Tensor:
    """The log-ratio within +-20 nats, [tokens]; beyond it the gradient is 0."""
    return tokens.log_ratio.clamp(-BOUND, BOUND)


def clip_ratio(ratio: Tensor, settings: LossSettings) -> Tensor:
    """The ratio within [1 - clip_low, 1 + clip_high]; clip-higher raises the upper one alone."""
    return ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)


def ppo(ratio: Tensor, advantages: Tensor, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """max(-A ratio, -A clip(ratio)), and where the clipped one is the larger; both [tokens]."""
    free = -advantages * ratio
    clipped = -advantages * clip_ratio(ratio, settings)
    return torch.maximum(free, clipped), clipped > free


def dual_clip(losses: Tensor, advantages: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """min(losses, -A bound) where A < 0, and where that binds; both [tokens]. arXiv 1912.09729."""
    ceiling = -advantages * bound
    negative = advantages < 0
    limited = torch.where(negative, torch.minimum(ceiling, losses), losses)
    return limited, (losses > ceiling) & negative


def vanilla(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """PPO with dual clip, on the ratio of each token. In bypass mode: `old` is the rollout's."""
    log_ratio = bounded_log_ratio(tokens)
    losses, clipped = ppo(log_ratio.exp(), tokens.advantages, settings)
    losses, lower = dual_clip(losses, tokens.advantages, above_one(dual_clip_bound(settings)))
    logged = {"pg_clipfrac": clipped, "ppo_kl": -log_ratio, "pg_clipfrac_lower": lower}
    return TokenLosses(losses, logged)


def gspo(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """PPO on s = exp(row mean of log_ratio), without dual clip. arXiv 2507.18071.

    s is a constant of each token's gradient but for its own log-prob: d s / d current = s.
    """
    log_ratio = tokens.log_ratio.detach()
    means = tokens.row_sums(log_ratio) / tokens.lengths.clamp(min=1)
    log_s = tokens.current - tokens.current.detach() + means[tokens.rows]
    losses, clipped = ppo(log_s.clamp(max=10.0).exp(), tokens.advantages, settings)
    never = torch.zeros_like(clipped)
    return TokenLosses(
        losses, {"pg_clipfrac": clipped, "ppo_kl": -log_ratio, "pg_clipfrac_lower": never}
    )


def cispo(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """-stop_gradient(clip(ratio)) A current. arXiv 2506.13585."""
    log_ratio = bounded_log_ratio(tokens)
    ratio = log_ratio.exp()
    clipped = clip_ratio(ratio, settings)
    losses = -clipped.detach() * tokens.advantages * tokens.current
    logged = {"pg_clipfrac": ratio != clipped, "ppo_kl": -log_ratio}
    return TokenLosses(losses, logged | {"pg_clipfrac_lower": torch.zeros_like(ratio)})


def sapo(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """-A sigmoid(tau (ratio - 1)) 4 / tau; tau_pos where A > 0, else tau_neg. arXiv 2511.20347."""
    log_ratio = bounded_log_ratio(tokens)
    positive = torch.full_like(log_ratio, settings.tau_pos)
    tau = torch.where(tokens.advantages > 0, positive, settings.tau_neg)
    losses = -tokens.advantages * torch.sigmoid(tau * (log_ratio.exp() - 1.0)) * 4.0 / tau
    never = torch.zeros_like(losses)
    return TokenLosses(
        losses, {"pg_clipfrac": never, "ppo_kl": -log_ratio, "pg_clipfrac_lower": never}
    )


def geo_mean(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Of each row: -mean(A) exp(mean of x), x = log_ratio, held in [-clip_low, clip_high] nats.

    The bound acts where PPO's would: above for A > 0, below for A < 0. GMPO, arXiv 2507.20673.
    """
    log_ratio, sign = tokens.log_ratio, tokens.advantages.sign()
    held = log_ratio.clamp(-settings.clip_low, settings.clip_high)
    x = sign * torch.minimum(sign * log_ratio, sign * held)
    counts = tokens.lengths + EPSILON
    ratios = (tokens.row_sums(x) / counts).exp()
    outside = log_ratio != held
    logged = {
        "pg_clipfrac": outside & (tokens.advantages > 0),
        "ppo_kl": -log_ratio,
        "pg_clipfrac_lower": outside & (tokens.advantages < 0),
    }
    return TokenLosses(-tokens.row_sums(tokens.advantages) / counts * ratios, logged, by_row=True)


def geometric_row_weights(tokens: LossBatch, weights: Tensor) -> Tensor:
    """exp(row mean of ln(w + 1e-10)), [rows]: what GMPO's rows are multiplied by in verl."""
    return (tokens.row_sums((weights + 1e-10).log()) / (tokens.lengths + EPSILON)).exp()
