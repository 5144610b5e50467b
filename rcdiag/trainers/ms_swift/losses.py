"""ms-swift's policy losses: PPO, CISPO and SAPO as TRL has them, rejected sequences out of them.

Source: ms-swift 4.6.0, swift/rlhf_trainers/grpo_trainer.py, `_compute_loss_and_metrics`.
"""

from __future__ import annotations

from dataclasses import replace

from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.policy_loss import PolicyLoss
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import LossSettings
from rcdiag.trainers.trl import losses as trl

IMPORTANCE_SAMPLING_LEVEL = replace(
    trl.IMPORTANCE_SAMPLING_LEVEL,
    says="Level of the ratio of current to old: token; sequence for the geometric mean over the "
    "sequence (GSPO); sequence_token for the same with a gradient by the token's own log-prob "
    "alone. It is not the level of IS weights.",
    choices=("token", "sequence", "sequence_token"),
    example="rcdiag replay rollouts.parquet --trainer ms-swift "
    "--loss-setting importance_sampling_level=sequence_token",
)
_FILE = "ms-swift 4.6.0, swift/rlhf_trainers/grpo_trainer.py, _compute_loss_and_metrics"


def _own(loss: PolicyLoss) -> PolicyLoss:
    settings = (*(each for each in loss.settings if each.name != "importance_sampling_level"),)
    return replace(loss, source=_FILE, settings=(*settings, IMPORTANCE_SAMPLING_LEVEL))


def logged(batch: LossBatch, losses: TokenLosses, settings: LossSettings) -> dict[str, float]:
    """Return what ms-swift logs of a loss: shares of kept tokens at every level.

    Its smallest and largest shares are over processes, not over sequences as in TRL.
    """
    by_token = settings.changed(importance_sampling_level="token")
    shares = trl.clip_shares(batch, losses, by_token, batch.kept)
    extremes = {"clip_ratio/low_min": "low", "clip_ratio/high_max": "high"}
    return shares | {
        key: shares[f"clip_ratio/{name}_mean"]
        for key, name in extremes.items()
        if name in losses.logged
    }


# By loss_type: grpo (the default) is seq-mean-token-mean; dapo and cispo token-mean over all
# tokens, bnpo over kept ones.
UPDATE = UpdateRules(
    losses=by_name(_own(loss) for loss in (trl.VANILLA, trl.CISPO, trl.SAPO)),
    aggregations={
        name: trl.AGGREGATIONS[name]
        for name in ("seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm")
    },
    fixed={"cispo": "token-mean", "sapo": "seq-mean-token-mean"},
    sees_rejected=True,
    logged=logged,
    defaults=LossSettings(aggregation="seq-mean-token-mean", scale_factor=512.0),
)
