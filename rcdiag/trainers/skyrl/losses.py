"""SkyRL's policy losses and reductions.

Advantages are divided by counts before rejection, so rejection does not change the denominator.
Source: skyrl 0.4.0, skyrl/backends/skyrl_train/utils/ppo_utils.py.
"""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.losses import clipped, divergence, selected
from rcdiag.losses.aggregation import (
    PROMPT_MEAN_TOKEN_MEAN,
    SEQ_MEAN_TOKEN_MEAN,
    SEQ_MEAN_TOKEN_SUM_NORM,
    TOKEN_MEAN,
    counted_row_mean,
)
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.clipped import bounded_log_ratio, dual_clip, ppo
from rcdiag.losses.divergence import binary_kl
from rcdiag.losses.on_rollout import (
    CISPO_ROLLOUT,
    ROLLOUT_IS,
    SKYRL_FILE,
    WIDE_CLIP,
    cispo_rollout,
    log_ratio_to_rollout,
    rollout_is,
    rollout_of,
)
from rcdiag.losses.policy_loss import SYMBOLS, PolicyLoss
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.selected import KL_COV_RATIO, PPO_KL_COEF
from rcdiag.losses.settings import (
    CLIP_HIGH,
    CLIP_LOW,
    CLIP_RANGE,
    PPO_SETTINGS,
    LossSettings,
)
from rcdiag.losses.tensor import Tensor


def _only_kept(batch: LossBatch, losses: TokenLosses) -> TokenLosses:
    """Multiply losses by the mask, as SkyRL does: NaN stays NaN at a rejected token."""
    return replace(losses, values=losses.values * batch.kept)


def vanilla(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO losses; with dual clip (policy_loss_type dual_clip) if `clip_c` is given."""
    losses, beyond = ppo(bounded_log_ratio(batch).exp(), batch.advantages, settings)
    losses, _ = dual_clip(losses, batch.advantages, settings)
    return _only_kept(batch, TokenLosses(losses, {"clipped": beyond}))


def gspo(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO losses on one ratio per sequence, over all its tokens."""
    losses = clipped.gspo(batch, settings)
    return _only_kept(batch, replace(losses, logged={"clipped": losses.logged["pg_clipfrac"]}))


def sapo(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -A sigmoid(tau (ratio - 1)) 4 / tau; no token counts as clipped."""
    losses = clipped.sapo(batch, settings)
    return _only_kept(batch, replace(losses, logged={"clipped": losses.values.new_zeros(())}))


def cispo(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -stop_gradient(clip(ratio)) A current, ratio = current / old."""
    return _only_kept(batch, cispo_rollout(replace(batch, rollout=batch.old), settings))


def on_rollout(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return the loss rollout_is at kept tokens."""
    return _only_kept(batch, rollout_is(batch, settings))


def cispo_on_rollout(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return cispo relative to the rollout policy, at kept tokens."""
    return _only_kept(batch, cispo_rollout(batch, settings))


def _trust_region(batch: LossBatch, dropped: Tensor) -> TokenLosses:
    """Return -A ratio, ratio = current / rollout without a clamp, and 0 at `dropped` tokens."""
    ratio = log_ratio_to_rollout(batch).exp()
    return _only_kept(
        batch, TokenLosses(-batch.advantages * ratio * ~dropped, {"clipped": dropped})
    )


def dppo_tv(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Drop tokens whose probability moved too far in the direction of the advantage."""
    moved = batch.current.detach().exp() - rollout_of(batch).exp()
    rose = (batch.advantages > 0) & (moved > settings.value(CLIP_HIGH))
    fell = (batch.advantages < 0) & (-moved > settings.value(CLIP_LOW))
    return _trust_region(batch, rose | fell)


def dppo_kl(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Drop tokens that moved in the direction of the advantage, too far by KL(rollout||current)."""
    current, rollout = batch.current.detach(), rollout_of(batch)
    moved, distance = current.exp() - rollout.exp(), binary_kl(current, rollout)
    rose = (batch.advantages > 0) & (moved > 0) & (distance > settings.value(CLIP_HIGH))
    fell = (batch.advantages < 0) & (moved < 0) & (distance > settings.value(CLIP_LOW))
    return _trust_region(batch, rose | fell)


def _advantage_factor(batch: LossBatch, settings: LossSettings) -> Tensor:
    """Return SkyRL's factor on the advantage of each token, [tokens].

    Its losses are sums: the reduction is applied to the advantages beforehand.
    """
    aggregation = AGGREGATIONS[settings.aggregation]
    within = aggregation.within(batch, aggregation.denominator(settings))
    ones = batch.current.new_ones(batch.current.shape)
    return within * ones / aggregation.divisor(batch, settings)


def kl_cov(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -A ratio, plus kl_coef |log_ratio| on the tokens of largest covariance (at least one).

    A correction's weights and mask have no effect. The penalty is not divided by the denominator of
    the loss, and the covariance uses the advantages after the reduction.
    """
    factor = _advantage_factor(batch, settings)
    scaled = selected.covariances(replace(batch, advantages=batch.advantages * factor))
    chosen = scaled.new_zeros(scaled.shape)
    if len(chosen):
        count = max(1, int(len(chosen) * settings.value(KL_COV_RATIO)))
        chosen[scaled.topk(min(count, len(chosen))).indices] = 1.0
    penalty = settings.value(PPO_KL_COEF) * batch.log_ratio.abs() * chosen / factor
    losses = -batch.advantages * batch.log_ratio.exp() + penalty
    return TokenLosses(losses, {"clipped": chosen.new_zeros(())}, weighted=True)


def clip_cov(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO losses times the probability that the random selection keeps the token.

    A correction's weights and mask have no effect, and the covariance uses the advantages after the
    reduction.
    """
    losses, beyond = ppo(batch.log_ratio.exp(), batch.advantages, settings)
    scaled = replace(batch, advantages=batch.advantages * _advantage_factor(batch, settings))
    stay = selected.expected_to_stay(selected.covariances(scaled), beyond, settings)
    return TokenLosses(losses * stay, {"clipped": 1.0 - stay}, weighted=True)


def importance_weighted(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -A ratio without any bound; a correction's weights and mask have no effect."""
    ratio = batch.log_ratio.exp()
    return TokenLosses(-batch.advantages * ratio, {"importance_ratio": ratio}, weighted=True)


def logged(batch: LossBatch, losses: TokenLosses, settings: LossSettings) -> dict[str, float]:
    """Return what SkyRL logs of a loss: means over all tokens, including rejected ones."""
    count = max(len(batch.kept), 1)
    if "importance_ratio" in losses.logged:
        ratio = losses.logged["importance_ratio"].detach()
        return {"importance_ratio": float(ratio.sum() / count)}
    numbers = {"clip_ratio": float(losses.logged["clipped"].double().sum() / count)}
    if "ratio" not in losses.logged:
        return numbers
    ratio, bounded = losses.logged["ratio"].detach(), losses.logged["bounded"].detach()
    numbers["cispo/ratio_mean"] = float(ratio.sum() / count)
    numbers["cispo/ratio_clamped_mean"] = float(bounded.sum() / count)
    if len(ratio):
        numbers["cispo/ratio_max"] = float(ratio.max())
        numbers["cispo/ratio_min"] = float(ratio.min())
    return numbers


def _own(loss: PolicyLoss, **changes: object) -> PolicyLoss:
    return replace(loss, source=SKYRL_FILE, **changes)


VANILLA = _own(clipped.VANILLA, function=vanilla, settings=PPO_SETTINGS)
GSPO = _own(clipped.GSPO, function=gspo)
SAPO = _own(clipped.SAPO, function=sapo)
CISPO = _own(clipped.CISPO, function=cispo, settings=WIDE_CLIP)
DPPO_TV = _own(divergence.DPPO_TV, function=dppo_tv, settings=CLIP_RANGE)
DPPO_KL = _own(divergence.DPPO_KL, function=dppo_kl, settings=CLIP_RANGE)
KL_COV = _own(
    selected.KL_COV,
    says="No clip, but a penalty on the few tokens with the largest covariance of advantage and "
    "log-prob. In SkyRL the penalty is not divided by anything, whatever loss_reduction says, and "
    "corrections have no effect.",
    formula="-A r, and + ppo_kl_coef |d|, undivided, on the largest kl_cov_ratio of (A - mean A)"
    f"(log p - mean log p), A divided as the loss is; 1 and 0.2; {SYMBOLS}",
    function=kl_cov,
)
CLIP_COV = _own(
    selected.CLIP_COV,
    says="PPO that drops a few tokens of high covariance at random: rcdiag gives the expectation "
    "over the random choice, from which the trainer's loss of a single draw differs. Its "
    "clip_ratio is the share dropped, the same in every draw. The covariance uses the advantages "
    "after loss_reduction, and in SkyRL corrections have no effect.",
    function=clip_cov,
)
IMPORTANCE_WEIGHTED = PolicyLoss(
    name="importance_weighted",
    says="The policy gradient times the ratio of current to old, without any bound; in SkyRL "
    "corrections have no effect on it.",
    formula=f"-A r; {SYMBOLS}, d not bounded",
    source=f"{SKYRL_FILE}, policy_loss_type importance_sampling",
    function=importance_weighted,
    see=("reinforce", "vanilla"),
)
AGGREGATIONS = by_name(
    replace(one, default="all")
    for one in (
        TOKEN_MEAN,
        replace(SEQ_MEAN_TOKEN_MEAN, within=counted_row_mean),
        SEQ_MEAN_TOKEN_SUM_NORM,
        PROMPT_MEAN_TOKEN_MEAN,
    )
)
UPDATE = UpdateRules(
    losses=by_name(
        (
            *(VANILLA, GSPO, SAPO, CISPO, DPPO_TV, DPPO_KL, KL_COV, CLIP_COV),
            IMPORTANCE_WEIGHTED,
            _own(ROLLOUT_IS, function=on_rollout),
            _own(CISPO_ROLLOUT, function=cispo_on_rollout),
        )
    ),
    aggregations=AGGREGATIONS,
    prefix="policy/loss_metrics/",
    sees_rejected=True,
    logged=logged,
    defaults=LossSettings(own={"clip_c": None, "kl_cov_ratio": 0.2, "ppo_kl_coef": 1.0}),
)
