"""Losses that treat tokens by the covariance of advantage and log-prob. arXiv 2505.22617.

`log_ratio` = current - old, in nats; ratio = current / old. The code follows core_algos.py of
verl 0.9.1.
"""

from __future__ import annotations

from rcdiag.errors import RcdiagError
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.clipped import ppo
from rcdiag.losses.policy_loss import CLIPPED_TO, SYMBOLS, VERL_FILE, PolicyLoss
from rcdiag.losses.settings import CLIP_RANGE, LossSetting, LossSettings
from rcdiag.losses.tensor import Tensor

KL_COV_RATIO = LossSetting(
    name="kl_cov_ratio",
    says="Share of the tokens that get kl_cov's penalty; at least one token gets it.",
    default=2e-4,
    above=0.0,
    example="10,000 tokens: two of them get it",
    see=("kl_cov",),
)
PPO_KL_COEF = LossSetting(
    name="ppo_kl_coef",
    says="Coefficient of kl_cov's penalty |d|. verl's docstring says 1, its config 0.1.",
    default=0.1,
    example="log_ratio -0.5: a penalty of 0.05",
    see=("kl_cov",),
)
CLIP_COV_RATIO = LossSetting(
    name="clip_cov_ratio",
    says="Share of the tokens that clip_cov drops at random from its candidates; at least one, if "
    "there is a candidate.",
    default=2e-4,
    above=0.0,
    example="10,000 tokens: two of them are dropped",
    see=("clip_cov", "clip_cov_lb"),
)
CLIP_COV_LB = LossSetting(
    name="clip_cov_lb",
    says="Covariance above which a token is a candidate for clip_cov to drop.",
    default=1.0,
    example="(A - mean A)(log p - mean log p) = 1.2: a candidate, if it is below clip_cov_ub",
    see=("clip_cov", "clip_cov_ub"),
)
CLIP_COV_UB = LossSetting(
    name="clip_cov_ub",
    says="Covariance below which a token is a candidate for clip_cov to drop.",
    default=5.0,
    example="(A - mean A)(log p - mean log p) = 5.5: not a candidate",
    see=("clip_cov", "clip_cov_lb"),
)


def covariances(tokens: LossBatch) -> Tensor:
    """Return (A - mean A) (current - mean current), means over all tokens, [tokens]."""
    current = tokens.current.detach()
    return (tokens.advantages - tokens.advantages.mean()) * (current - current.mean())


def kl_cov(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -A ratio, plus ppo_kl_coef |log_ratio| for tokens of the highest covariance.

    The share of these tokens is kl_cov_ratio, at least one token. verl selects them in each
    micro-batch (verl #7829); here the batch is one micro-batch. The loss's `ppo_kl` is the mean of
    |log_ratio|.
    """
    share = settings.value(KL_COV_RATIO)
    if not 0.0 < share <= 1.0:
        raise RcdiagError(
            f"kl_cov_ratio: {share:g} is not a share of tokens",
            "it is above 0 and at most 1; verl's default is 2e-4",
        )
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
    says="No clip, but a penalty on the few tokens with the highest covariance of advantage and "
    "log-prob. Its ppo_kl is the mean of |d|. verl selects tokens in each micro-batch (verl "
    "#7829), rcdiag in the whole batch.",
    formula="-A r, plus ppo_kl_coef |d| for the share kl_cov_ratio with the largest (A - mean "
    f"A)(log p - mean log p), at least one token; 0.1 and 2e-4; {SYMBOLS}",
    source=f"arXiv 2505.22617; {VERL_FILE}, loss_mode kl_cov",
    function=kl_cov,
    settings=(KL_COV_RATIO, PPO_KL_COEF),
    see=("kl_cov_ratio", "ppo_kl_coef", "clip_cov"),
)


def expected_to_stay(covariance: Tensor, clipped: Tensor, settings: LossSettings) -> Tensor:
    """Return the probability that clip_cov keeps a token in the loss, [tokens].

    Candidates are unclipped tokens whose covariance lies between the bounds. verl draws
    clip_cov_ratio x all tokens (at least one) uniformly from them and drops these from the loss.
    """
    low, high = settings.value(CLIP_COV_LB), settings.value(CLIP_COV_UB)
    candidates = (covariance > low) & (covariance < high) & ~clipped
    drawn = max(int(settings.value(CLIP_COV_RATIO) * len(covariance)), 1)
    count = int(candidates.sum())
    expected: Tensor = 1.0 - candidates.double() * (min(drawn, count) / max(count, 1))
    return expected


def clip_cov(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO without dual clip, times the probability that the token is not dropped.

    This is the expectation of verl's loss over its random choice, and the gradient is the expected
    gradient. pg_clipfrac, the share of dropped tokens, is the same for every choice.
    """
    log_ratio = tokens.log_ratio
    losses, clipped = ppo(log_ratio.exp(), tokens.advantages, settings)
    stay = expected_to_stay(covariances(tokens), clipped, settings)
    return TokenLosses(losses * stay, {"pg_clipfrac": 1.0 - stay, "ppo_kl": -log_ratio})


CLIP_COV = PolicyLoss(
    name="clip_cov",
    says="PPO that drops a few tokens of high covariance at random. rcdiag gives the expectation "
    "over this random choice; the trainer's loss differs from it by chance. Its pg_clipfrac is the "
    "share of dropped tokens, which is the same for every choice. verl draws in each micro-batch, "
    "rcdiag in the whole batch.",
    formula="max(-A r, -A clip(r)) (1 - k/m) for the m candidates: unclipped, with clip_cov_lb < "
    "(A - mean A)(log p - mean log p) < clip_cov_ub; k = min(m, clip_cov_ratio x tokens, at least "
    f"1); 1, 5 and 2e-4; {CLIPPED_TO}; {SYMBOLS}",
    source=f"arXiv 2505.22617; {VERL_FILE}, loss_mode clip_cov",
    function=clip_cov,
    settings=(*CLIP_RANGE, CLIP_COV_RATIO, CLIP_COV_LB, CLIP_COV_UB),
    see=("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov"),
)
