"""slime's policy losses: PPO, GSPO or CISPO, times OPSM, times IS weights; no entropy, no KL term.

Unlike in verl, rejected tokens stay in GSPO's means and in all denominators.
log_ratio = current - old, in nats. Source: slime commit 624b824a8, `policy_loss_function` in
slime/backends/megatron_utils/loss.py and slime/utils/ppo_utils.py.
"""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.losses import clipped
from rcdiag.losses.aggregation import SEQ_MEAN_TOKEN_MEAN, TOKEN_MEAN, Count, counted_row_mean
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.clipped import clip_ratio, dual_clip, ppo
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import CLIP_RANGE, PPO_SETTINGS, LossSettings
from rcdiag.losses.tensor import Tensor
from rcdiag.trainers.settings_table import read_loss_settings

_SETTINGS = read_loss_settings("rcdiag.trainers.slime")
OPSM_DELTA, USE_ROLLOUT_LOGPROBS = _SETTINGS["opsm_delta"], _SETTINGS["use_rollout_logprobs"]
OWN = (OPSM_DELTA, USE_ROLLOUT_LOGPROBS)


def row_log_ratio(batch: LossBatch) -> Tensor:
    """Return at each token the row mean of log_ratio, over all tokens including rejected ones."""
    return batch.row_means(batch.log_ratio)[batch.rows]


def _ppo(batch: LossBatch, settings: LossSettings, log_ratio: Tensor) -> TokenLosses:
    """Return PPO losses on exp(log_ratio), unclamped; dual clip only if `clip_c` is given."""
    losses, beyond = ppo(log_ratio.exp(), batch.advantages, settings)
    losses, _ = dual_clip(losses, batch.advantages, settings)
    return _finished(batch, settings, log_ratio, losses, beyond)


def vanilla(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO losses on the ratio of each token."""
    return _ppo(batch, settings, batch.log_ratio)


def gspo(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO losses on exp(row mean of log_ratio); the gradient goes through the mean."""
    return _ppo(batch, settings, row_log_ratio(batch))


def cispo(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -stop_gradient(clip(ratio)) A current."""
    ratio = batch.log_ratio.exp()
    bounded = clip_ratio(ratio, settings)
    losses = -bounded.detach() * batch.advantages * batch.current
    return _finished(batch, settings, batch.log_ratio, losses, bounded != ratio)


def opsm_dropped(batch: LossBatch, delta: float) -> Tensor:
    """Flag tokens with A < 0 in rows whose mean -log_ratio is above `delta` nats, [tokens]."""
    return (batch.advantages < 0) & (-row_log_ratio(batch).detach() > delta)


def dropped_share(batch: LossBatch, settings: LossSettings, dropped: Tensor) -> Tensor:
    """Return token values whose aggregate is slime's sum of each row's dropped share.

    slime sums shares of rows even with --calculate-per-token-loss, and divides by tokens. It also
    counts masked tokens, which a batch here does not contain; its shares can exceed 1.
    """
    if settings.aggregation == "token-mean":
        return dropped / batch.lengths.double()[batch.rows]
    return dropped


def _finished(
    batch: LossBatch, settings: LossSettings, log_ratio: Tensor, losses: Tensor, beyond: Tensor
) -> TokenLosses:
    """Apply OPSM and set rejected tokens to 0; the logged `ois` includes rejected tokens."""
    logged: dict[str, Tensor] = {}
    kept = batch.kept
    if (delta := settings.value(OPSM_DELTA)) is not None:
        dropped = opsm_dropped(batch, delta)
        losses = losses * ~dropped
        logged["opsm_clipfrac"] = dropped_share(batch, settings, dropped)
    if batch.weights is not None:
        logged["ois"] = log_ratio.exp()
    if batch.rollout is not None:
        compared = batch.current if settings.value(USE_ROLLOUT_LOGPROBS) else batch.old
        logged["train_rollout_logprob_abs_diff"] = (compared - batch.rollout).abs() * kept
    logged |= {"pg_clipfrac": beyond & kept, "ppo_kl": -log_ratio * kept}
    # A product, as in slime: a NaN loss stays NaN at a rejected token.
    return TokenLosses(losses * kept, logged)


_FILE = "slime commit 624b824a8, slime/backends/megatron_utils/loss.py"
# --advantage-estimator chooses the loss; all other estimators use vanilla.
VANILLA = replace(clipped.VANILLA, function=vanilla, source=_FILE, settings=(*PPO_SETTINGS, *OWN))
GSPO = replace(clipped.GSPO, function=gspo, source=_FILE, settings=(*PPO_SETTINGS, *OWN))
CISPO = replace(clipped.CISPO, function=cispo, source=_FILE, settings=(*CLIP_RANGE, *OWN))


# With all tokens counted, a row without a token counts as one.
TOKENS = Count(
    "tokens", TOKEN_MEAN.count.kept, lambda batch: float(batch.lengths.clamp(min=1).sum())
)
# `rollout_mask_sums` is assumed for one sample per rollout. token-mean: --calculate-per-token-loss.
UPDATE = UpdateRules(
    losses=by_name((VANILLA, GSPO, CISPO)),
    aggregations=by_name(
        (
            replace(SEQ_MEAN_TOKEN_MEAN, within=counted_row_mean, default="all"),
            replace(TOKEN_MEAN, count=TOKENS, default="all"),
        )
    ),
    sees_rejected=True,
    defaults=LossSettings(aggregation="seq-mean-token-mean", own={"clip_c": None}),
)
