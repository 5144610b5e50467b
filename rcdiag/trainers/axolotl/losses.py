"""Policy losses of Axolotl's own GRPO trainer: TRL's, without VESPO and LUSPO.

Source: axolotl 0.21.0, axolotl/core/trainers/grpo/async_trainer.py, `_compute_loss`.
"""

from __future__ import annotations

from dataclasses import replace

from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import LossSettings
from rcdiag.trainers.trl import losses as trl


def vanilla(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return TRL's PPO losses; Axolotl logs the clip of the ratio that `delta` does not bound."""
    ratio = trl.ppo_ratio(batch, settings)
    return replace(trl.vanilla(batch, settings), logged=trl.clipped_sides(batch, ratio, settings))


def logged(batch: LossBatch, losses: TokenLosses, settings: LossSettings) -> dict[str, float]:
    """Return what Axolotl logs of a loss.

    Its smallest and largest shares are over processes, not over sequences as in TRL.
    """
    shares = trl.clip_shares(batch, losses, settings, batch.kept.new_ones(batch.kept.shape))
    extremes = {"clip_ratio/low_min": "low", "clip_ratio/high_max": "high"}
    return shares | {
        key: shares[f"clip_ratio/{name}_mean"]
        for key, name in extremes.items()
        if name in losses.logged
    }


_FILE = "axolotl 0.21.0, axolotl/core/trainers/grpo/async_trainer.py, _compute_loss"
# luspo takes a mean over the padded grid where weights are those of tokens: it is left out.
UPDATE = UpdateRules(
    losses=by_name(
        (
            replace(trl.VANILLA, function=vanilla, source=_FILE),
            replace(trl.CISPO, source=_FILE),
            replace(trl.SAPO, source=_FILE),
        )
    ),
    aggregations={
        name: trl.AGGREGATIONS[name]
        for name in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")
    },
    fixed={"cispo": "token-mean", "sapo": "seq-mean-token-mean"},
    sees_rejected=True,
    logged=logged,
    defaults=LossSettings(scale_factor=512.0),
)
