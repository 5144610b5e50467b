"""miles' policy losses: PPO or GSPO, times OPSM, times IS weights; without entropy and KL terms.

They are slime's with two guards: log-ratios and advantages that are not finite become 0, and
log-ratios are clamped to +-20 before exp. Source: miles commit 31f1ca96,
miles/backends/training_utils/loss_hub/losses.py and math_utils.py.
"""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.clipped import BOUND, dual_clip, ppo
from rcdiag.losses.rules import by_name
from rcdiag.losses.settings import PPO_SETTINGS, LossSettings
from rcdiag.losses.tensor import Tensor
from rcdiag.trainers.slime import losses as slime


def _finite(values: Tensor) -> Tensor:
    return values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def ess_ratio(batch: LossBatch, log_ratio: Tensor) -> Tensor:
    """Return (sum w)^2 / (T sum w^2) of each row at its tokens, w = exp of the PPO log-ratio."""
    weights = log_ratio.detach().clamp(-BOUND, BOUND).exp()
    sums, squares = batch.row_sums(weights), batch.row_sums(weights.square())
    counts = batch.lengths.double().clamp(min=1)
    return (sums.square() / (counts * squares.clamp(min=1e-8)))[batch.rows]


def _ppo(batch: LossBatch, settings: LossSettings, log_ratio: Tensor) -> TokenLosses:
    """Return PPO losses on exp(log_ratio), 0 at rejected tokens, and what is logged."""
    log_ratio, advantages = _finite(log_ratio), _finite(batch.advantages)
    losses, beyond = ppo(log_ratio.clamp(-BOUND, BOUND).exp(), advantages, settings)
    losses, _ = dual_clip(losses, advantages, settings)
    kept = batch.kept
    logged = {
        "pg_clipfrac": beyond & kept,
        "ppo_kl": -log_ratio * kept,
        "ess_ratio": ess_ratio(batch, log_ratio),
    }
    if (delta := settings.value(slime.OPSM_DELTA)) is not None:
        dropped = slime.opsm_dropped(batch, delta)
        losses = losses * ~dropped
        logged["opsm_clipfrac"] = slime.dropped_share(batch, settings, dropped)
    if batch.weights is not None:
        logged["ois"] = log_ratio.exp()
    if batch.rollout is not None:
        logged["train_rollout_logprob_abs_diff"] = _finite((batch.old - batch.rollout).abs()) * kept
        held = (batch.old - batch.rollout).nan_to_num(nan=0.0).clamp(-BOUND, BOUND)
        logged["train_rollout_kl"] = (held.expm1() - held).clamp(max=10.0) * kept
    return TokenLosses(losses * kept, logged)


def vanilla(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO losses on the ratio of each token."""
    return _ppo(batch, settings, batch.log_ratio)


def gspo(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO losses on exp(row mean of log_ratio); the gradient goes through the mean."""
    return _ppo(batch, settings, slime.row_log_ratio(batch))


_FILE = "miles commit 31f1ca96, miles/backends/training_utils/loss_hub/losses.py"
_READ = (*PPO_SETTINGS, slime.OPSM_DELTA)
VANILLA = replace(slime.VANILLA, function=vanilla, source=_FILE, settings=_READ)
GSPO = replace(slime.GSPO, function=gspo, source=_FILE, settings=_READ)
# Aggregations and denominators are slime's: rejection does not change the counts.
UPDATE = replace(slime.UPDATE, losses=by_name((VANILLA, GSPO)))
