"""Losses that treat a few tokens otherwise, by their covariance. arXiv 2505.22617.

`log_ratio` = current - old, in nats; ratio = current / old. Formulas: verl `core_algos.py`, as in
reference/verl.md 3.
"""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

from rcdiag.errors import RcdiagError
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.settings import LossSettings


def covariances(tokens: LossBatch) -> Tensor:
    """(A - mean A) (current - mean current), means over all tokens of the batch, [tokens]."""
    current = tokens.current.detach()
    return (tokens.advantages - tokens.advantages.mean()) * (current - current.mean())


def kl_cov(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """-A ratio; + ppo_kl_coef |log_ratio| on the share kl_cov_ratio with the largest covariance.

    At least one token; verl picks in each micro-batch (verl #7829), here the batch is one. Its
    `ppo_kl` is the mean of |log_ratio|.
    """
    share = settings.kl_cov_ratio
    if not 0.0 < share <= 1.0:
        raise RcdiagError(f"kl_cov_ratio: {share:g} is no share of tokens", "verl's is 2e-4")
    distance = tokens.log_ratio.abs()
    chosen = torch.zeros_like(distance)
    if len(chosen):
        count = max(1, int(len(chosen) * share))
        chosen[torch.topk(covariances(tokens), count).indices] = 1.0
    penalty = settings.ppo_kl_coef * distance * chosen
    losses = -tokens.advantages * tokens.log_ratio.exp() + penalty
    return TokenLosses(losses, {"ppo_kl": distance})


def clip_cov(tokens: LossBatch, settings: LossSettings) -> NoReturn:
    """Refused: verl leaves a random choice of tokens out."""
    raise RcdiagError(
        "clip_cov: its tokens are drawn by torch.randperm, so the trainer's loss cannot be "
        "reproduced without the state of its random generator",
        "take another loss, e.g. kl_cov",
    )
