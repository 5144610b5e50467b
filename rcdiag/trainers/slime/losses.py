"""slime's policy loss: PPO, GSPO or CISPO, times OPSM, times IS weights. Entropy and KL terms not.

Unlike verl's it sees rejected tokens: they stay in GSPO's means and in all denominators.
log_ratio = current - old, in nats. Formulas: slime 624b824a8, `megatron_utils/loss.py` and
`ppo_utils.py`, as in reference/frameworks.md 1.4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rcdiag.errors import RcdiagError
from rcdiag.losses.batch import LossBatch, PolicyLoss, TokenLosses
from rcdiag.losses.clipped import clip_ratio, dual_clip, ppo
from rcdiag.losses.settings import LossSettings, SlimeSettings, above_one


def row_log_ratio(batch: LossBatch) -> Tensor:
    """Row mean of log_ratio over all tokens, rejected ones too, at each token [tokens]."""
    means = batch.row_sums(batch.log_ratio) / batch.lengths.clamp(min=1)
    return means[batch.rows]


def _ppo(batch: LossBatch, settings: LossSettings, log_ratio: Tensor) -> TokenLosses:
    """PPO on exp(log_ratio), unclamped; dual clip only where `clip_c` is given."""
    losses, clipped = ppo(log_ratio.exp(), batch.advantages, settings)
    if settings.clip_c is not None:
        losses, _ = dual_clip(losses, batch.advantages, above_one(settings.clip_c))
    return _finished(batch, settings, log_ratio, losses, clipped)


def vanilla(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """PPO on the ratio of each token."""
    return _ppo(batch, settings, batch.log_ratio)


def gspo(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """PPO on exp(row mean of log_ratio); the gradient goes through the mean."""
    return _ppo(batch, settings, row_log_ratio(batch))


def cispo(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """-stop_gradient(clip(ratio)) A current."""
    ratio = batch.log_ratio.exp()
    clipped = clip_ratio(ratio, settings)
    losses = -clipped.detach() * batch.advantages * batch.current
    return _finished(batch, settings, batch.log_ratio, losses, clipped != ratio)


def opsm_dropped(batch: LossBatch, delta: float) -> Tensor:
    """Tokens with A < 0 in rows whose mean of -log_ratio is above `delta` nats, [tokens]."""
    return (batch.advantages < 0) & (-row_log_ratio(batch).detach() > delta)


def _dropped_share(batch: LossBatch, settings: LossSettings, dropped: Tensor) -> Tensor:
    """Token values whose aggregate is the logged sum of each row's share of dropped tokens.

    slime adds up shares of rows under --calculate-per-token-loss too, and divides by tokens. It
    also counts masked tokens, which a batch here does not hold; its shares can pass 1.
    """
    if settings.aggregation == "token-mean":
        return dropped / batch.lengths.to(torch.float64)[batch.rows]
    return dropped


def tis_weights(ratio: Tensor, low: float, high: float, outside: str) -> Tensor:
    """The ratio old / rollout clamped into [low, high], or `zero` outside (IcePop), [tokens]."""
    if outside == "zero":
        return torch.where((ratio >= low) & (ratio <= high), ratio, 0.0)
    return ratio.clamp(low, high)


def _tis(batch: LossBatch, options: SlimeSettings, high: float) -> tuple[Tensor, dict[str, Tensor]]:
    """Weights of --use-tis and what it logs; ratio = old / rollout."""
    if batch.weights is not None or batch.rollout is None:
        raise RcdiagError(
            "tis_high: slime's own TIS makes its weights from the rollout's log-probs",
            "give these, and no other weights",
        )
    ratio = (batch.old - batch.rollout).exp()
    weights = tis_weights(ratio, options.tis_low, high, options.tis_outside)
    logged = {"tis": ratio, "tis_clipfrac": weights != ratio, "tis_abs": (ratio - 1.0).abs()}
    return weights, logged


def _finished(
    batch: LossBatch, settings: LossSettings, log_ratio: Tensor, losses: Tensor, clipped: Tensor
) -> TokenLosses:
    """OPSM and TIS applied, rejected tokens at 0; `ois` and `tis` are logged of these too."""
    options, logged = settings.slime, {}
    kept = batch.kept
    if options.opsm_delta is not None:
        dropped = opsm_dropped(batch, options.opsm_delta)
        losses, logged["opsm_clipfrac"] = (
            losses * ~dropped,
            _dropped_share(batch, settings, dropped),
        )
    if options.tis_high is not None:
        weights, of_tis = _tis(batch, options, options.tis_high)
        losses, logged = losses * weights, logged | of_tis
    if options.tis_high is not None or batch.weights is not None:
        logged["ois"] = log_ratio.exp()
    if batch.rollout is not None:
        compared = batch.current if options.bypass else batch.old
        logged["train_rollout_logprob_abs_diff"] = (compared - batch.rollout).abs() * kept
    logged |= {"pg_clipfrac": clipped & kept, "ppo_kl": -log_ratio * kept}
    # A product, as slime has it: rejection does not shield from a loss that is no number.
    return TokenLosses(losses * kept, logged)


# By --advantage-estimator; `vanilla` are all others.
POLICY_LOSSES: dict[str, PolicyLoss] = {"vanilla": vanilla, "gspo": gspo, "cispo": cispo}
