"""OpenRLHF's policy losses: PPO and GSPO, with dual clip if it is set.

log_ratio = current - old, in nats. Source: openrlhf 0.11.2, openrlhf/models/loss.py, `PolicyLoss`
and `aggregate_loss`; 0.11.0 has the same.
"""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.losses import clipped
from rcdiag.losses.aggregation import SEQ_MEAN_TOKEN_MEAN, TOKEN_MEAN
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.clipped import bounded_log_ratio, dual_clip, ppo
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import PPO_SETTINGS, LossSettings
from rcdiag.losses.tensor import Tensor


def vanilla(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO losses on each token's ratio, with its log clamped to +-20."""
    return _ppo(batch, bounded_log_ratio(batch).exp(), settings)


def gspo(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO losses on exp(row mean of log_ratio); the gradient goes through the mean.

    With a correction, log_ratio is current - rollout, and there are no weights.
    """
    log_ratio = batch.log_ratio
    if batch.weights is not None and batch.rollout is not None:
        log_ratio = batch.current - batch.rollout
    ratio = batch.row_means(log_ratio)[batch.rows].exp()
    return replace(_ppo(batch, ratio, settings), weighted=True)


def _ppo(batch: LossBatch, ratio: Tensor, settings: LossSettings) -> TokenLosses:
    losses, beyond = ppo(ratio, batch.advantages, settings)
    losses, _ = dual_clip(losses, batch.advantages, settings)
    return TokenLosses(losses, {"ppo_clip_ratio": beyond, "ppo_kl": -batch.log_ratio})


def token_means(batch: LossBatch, losses: TokenLosses, settings: LossSettings) -> dict[str, float]:
    """Return the means of a loss's numbers over all tokens."""
    return {name: float(values.detach().double().mean()) for name, values in losses.logged.items()}


_FILE = "openrlhf 0.11.2, openrlhf/models/loss.py, PolicyLoss"
UPDATE = UpdateRules(
    losses=by_name(
        (
            replace(clipped.VANILLA, function=vanilla, source=_FILE, settings=PPO_SETTINGS),
            replace(clipped.GSPO, function=gspo, source=_FILE, settings=PPO_SETTINGS),
        )
    ),
    # --actor.loss_agg_mode; counts are those of the whole step, without empty rows.
    aggregations=by_name((replace(TOKEN_MEAN, default="all"), SEQ_MEAN_TOKEN_MEAN)),
    fixed={"gspo": "seq-mean-token-mean"},
    logged=token_means,
    defaults=LossSettings(own={"clip_c": None}),
)
