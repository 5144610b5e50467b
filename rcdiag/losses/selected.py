"""These losses treat a few tokens otherwise, by their covariance. arXiv 2505.22617.

`log_ratio` = current - old, in nats; ratio = current / old. They are computed as core_algos.py of
verl 0.9.1 does.
"""

from __future__ import annotations

from typing import NoReturn

from rcdiag.errors import RcdiagError
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.policy_loss import SYMBOLS, VERL_FILE, PolicyLoss
from rcdiag.losses.settings import LossSetting, LossSettings
from rcdiag.losses.tensor import Tensor

KL_COV_RATIO = LossSetting(
    name="kl_cov_ratio",
    says="Share of the tokens that get kl_cov's penalty, one at least.",
    default=2e-4,
    above=0.0,
    example="10,000 tokens: two of them",
    see=("kl_cov",),
)
PPO_KL_COEF = LossSetting(
    name="ppo_kl_coef",
    says="What kl_cov's penalty |d| is multiplied by. verl's docstring says 1, its config 0.1.",
    default=0.1,
    example="log_ratio -0.5: + 0.05",
    see=("kl_cov",),
)


def covariances(tokens: LossBatch) -> Tensor:
    """Return (A - mean A) (current - mean current), means over all tokens, [tokens]."""
    current = tokens.current.detach()
    return (tokens.advantages - tokens.advantages.mean()) * (current - current.mean())


def kl_cov(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -A ratio, + ppo_kl_coef |log_ratio| on the share kl_cov_ratio that covaries most.

    At least one token is chosen. verl chooses in each micro-batch (verl #7829), here the batch is
    one. The `ppo_kl` of this loss is the mean of |log_ratio|.
    """
    share = settings.value(KL_COV_RATIO)
    if not 0.0 < share <= 1.0:
        raise RcdiagError(f"kl_cov_ratio: {share:g} is no share of tokens", "verl's is 2e-4")
    distance = tokens.log_ratio.abs()
    chosen = distance.new_zeros(distance.shape)
    if len(chosen):
        count = max(1, int(len(chosen) * share))
        chosen[covariances(tokens).topk(count).indices] = 1.0
    penalty = settings.value(PPO_KL_COEF) * distance * chosen
    losses = -tokens.advantages * tokens.log_ratio.exp() + penalty
    return TokenLosses(losses, {"ppo_kl": distance})


KL_COV = PolicyLoss(
    name="kl_cov",
    says="No clip, and a penalty on the few tokens whose advantage and log-prob go together most. "
    "Its ppo_kl is a mean of sizes. verl picks in each micro-batch (verl "
    "#7829), rcdiag in the batch.",
    formula="-A r, and + ppo_kl_coef |d| on the largest kl_cov_ratio of (A - mean A)(log p - "
    f"mean log p), one token at least; 0.1 and 2e-4; {SYMBOLS}",
    source=f"arXiv 2505.22617; {VERL_FILE}, loss_mode kl_cov",
    function=kl_cov,
    settings=(KL_COV_RATIO, PPO_KL_COEF),
    see=("kl_cov_ratio", "ppo_kl_coef", "clip_cov"),
)


def clip_cov(tokens: LossBatch, settings: LossSettings) -> NoReturn:
    """Refuse the loss: verl leaves a random choice of tokens out."""
    raise RcdiagError(
        "clip_cov: its tokens are drawn by torch.randperm, so the trainer's loss cannot be "
        "reproduced without the state of its random generator",
        "take another loss, e.g. kl_cov",
    )


CLIP_COV = PolicyLoss(
    name="clip_cov",
    says="PPO that leaves a random choice of tokens of high covariance out. "
    "rcdiag refuses it: without the trainer's random generator it cannot be repeated. Its "
    "pg_clipfrac in verl is the share left out.",
    formula=f"max(-A r, -A clip(r)), 0 for those drawn; {SYMBOLS}",
    source=f"arXiv 2505.22617; {VERL_FILE}, loss_mode clip_cov",
    function=clip_cov,
    see=("kl_cov",),
    refused=True,
)
