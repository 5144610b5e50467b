"""ms-swift's policy losses: PPO, CISPO and SAPO as TRL has them, FIPO and REAL.

Rejected sequences are out of them.

Source: ms-swift 4.6.0, swift/rlhf_trainers/grpo_trainer.py, `_compute_loss_and_metrics`.
"""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.losses.aggregation import PROMPT_MEAN_TOKEN_SUM
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.policy_loss import PolicyLoss
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import LossSettings
from rcdiag.trainers.ms_swift.fipo import FIPO
from rcdiag.trainers.ms_swift.real import REAL
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
    of_fipo = {
        "fipo/future_kl_mean": "future_kl",
        "fipo/influence_weight_mean": "influence_weight",
        "fipo/safety_keep_ratio": "safety_keep",
    }
    clipped = {name: flags for name, flags in losses.logged.items() if name not in of_fipo.values()}
    shares = trl.clip_shares(batch, replace(losses, logged=clipped), by_token, batch.kept)
    count = batch.kept.double().sum().clamp(min=1.0)
    shares |= {
        key: float((losses.logged[name] * batch.kept).sum() / count)
        for key, name in of_fipo.items()
        if name in losses.logged
    }
    extremes = {"clip_ratio/low_min": "low", "clip_ratio/high_max": "high"}
    return shares | {
        key: shares[f"clip_ratio/{name}_mean"]
        for key, name in extremes.items()
        if name in losses.logged
    }


# By loss_type: grpo (the default) is seq-mean-token-mean; dapo, cispo and fipo token-mean over all
# tokens, bnpo over kept ones.
UPDATE = UpdateRules(
    losses=by_name((*map(_own, (trl.VANILLA, trl.CISPO, trl.SAPO, FIPO)), REAL)),
    aggregations={
        **{
            name: trl.AGGREGATIONS[name]
            for name in ("seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm")
        },
        PROMPT_MEAN_TOKEN_SUM.name: replace(PROMPT_MEAN_TOKEN_SUM, default="all"),
    },
    fixed={
        "cispo": "token-mean",
        "sapo": "seq-mean-token-mean",
        "fipo": "token-mean",
        "real": PROMPT_MEAN_TOKEN_SUM.name,
    },
    sees_rejected=True,
    logged=logged,
    defaults=LossSettings(aggregation="seq-mean-token-mean", scale_factor=512.0),
)
