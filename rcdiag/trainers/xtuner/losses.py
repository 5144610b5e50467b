"""XTuner's policy loss: PPO with dual clip as in verl, averaged over kept tokens.

Sources: InternLM/xtuner commit b934f462, xtuner/v1/rl/loss/loss_fn.py (`pg_loss_fn`), grpo_loss.py
(`GRPOLossContext`) and base_loss.py (`finalize_train_policy_metrics`).
"""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.losses import clipped
from rcdiag.losses.aggregation import TOKEN_MEAN
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import CLIP_HIGH, CLIP_LOW, LossSettings

BOUND = 20.0  # nats


def logged(batch: LossBatch, losses: TokenLosses, settings: LossSettings) -> dict[str, float]:
    """Return means and extremes of the PPO ratio over kept tokens; 0 if there are none."""
    log_ratio = batch.log_ratio.detach()
    held = log_ratio.clamp(-BOUND, BOUND)
    ratio = held.exp()
    columns = {
        "ratio_abs_dev_mean": (ratio - 1.0).abs(),
        "kl1": -log_ratio,
        "kl3": ratio - 1.0 - held,
        "clip_frac_low": (ratio < 1.0 - settings.value(CLIP_LOW)).double(),
        "clip_frac_high": (ratio > 1.0 + settings.value(CLIP_HIGH)).double(),
    }
    count = len(ratio)
    numbers = {name: float(one.sum()) / max(count, 1) for name, one in columns.items()}
    numbers["ratio_max"] = float(ratio.max()) if count else 0.0
    numbers["ratio_min"] = float(ratio.min()) if count else 0.0
    return numbers


VANILLA = replace(
    clipped.VANILLA,
    source="InternLM/xtuner commit b934f462, xtuner/v1/rl/loss/loss_fn.py, pg_loss_fn",
)
UPDATE = UpdateRules(
    losses=by_name((VANILLA,)),
    aggregations=by_name((TOKEN_MEAN,)),
    prefix="reduced_train_policy_",
    logged=logged,
)
