"""ROLL's policy losses and aggregations.

Under token-mean the loss is summed without the mask: tokens that a filter rejected keep their pull.
Sources: ROLL commit 8eb27cc2, roll/pipeline/rlvr/actor_worker.py and actor_pg_worker.py, and
`agg_loss` in roll/utils/functionals.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rcdiag.losses import clipped, linear
from rcdiag.losses.aggregation import (
    NOTHING,
    SEQ_MEAN_TOKEN_MEAN,
    SEQ_MEAN_TOKEN_SUM,
    SEQ_MEAN_TOKEN_SUM_NORM,
    SEQUENCES,
    TOKEN_MEAN,
    Count,
)
from rcdiag.losses.batch import EPSILON, LossBatch, TokenLosses
from rcdiag.losses.clipped import dual_clip, ppo
from rcdiag.losses.policy_loss import SYMBOLS, PolicyLoss
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import CLIP_C, CLIP_RANGE, Denominator, LossSettings, above_one

if TYPE_CHECKING:
    from torch import Tensor

CISPO_EPSILON = 0.1
KIMI15_TAU = 0.1


def _logged(batch: LossBatch) -> dict[str, Tensor]:
    """Return the distances of current and old policy that every loss logs."""
    d = batch.log_ratio
    return {"policykl": d * batch.kept, "approxkl": 0.5 * d.square() * batch.kept}


def _ppo(batch: LossBatch, settings: LossSettings, log_ratio: Tensor) -> TokenLosses:
    losses, beyond = ppo(log_ratio.exp(), batch.advantages, settings)
    if (bound := settings.value(CLIP_C)) is not None:
        losses, _ = dual_clip(losses, batch.advantages, above_one(bound))
    return TokenLosses(losses, {"clipfrac": beyond, **_logged(batch)})


def vanilla(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """PPO on the ratio of each token: importance_sampling token."""
    return _ppo(batch, settings, batch.log_ratio)


def gspo(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """PPO on exp(mean log_ratio of the row's kept tokens): importance_sampling seq."""
    sums = batch.row_sums(batch.log_ratio.where(batch.kept, 0.0))
    means = sums / (batch.kept_counts + EPSILON)
    return _ppo(batch, settings, means[batch.rows])


def _weighted(batch: LossBatch, weights: Tensor) -> TokenLosses:
    """Return -stop_gradient(weights) A current."""
    return TokenLosses(-weights.detach() * batch.advantages * batch.current, _logged(batch))


def tis(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return policy gradient times the PPO ratio within [0, 1]."""
    return _weighted(batch, batch.log_ratio.exp().clamp(0.0, 1.0))


def cispo(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return policy gradient times the PPO ratio within [0.9, 1.1]."""
    return _weighted(batch, batch.log_ratio.exp().clamp(1 - CISPO_EPSILON, 1 + CISPO_EPSILON))


def gpg(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -A current: pg_variant vanilla."""
    return TokenLosses(-batch.advantages * batch.current, _logged(batch))


def kimi15(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -A current + tau / 2 log_ratio^2, tau 0.1."""
    pull = 0.5 * KIMI15_TAU * batch.log_ratio.square()
    return TokenLosses(pull - batch.advantages * batch.current, _logged(batch))


_PPO = "ROLL commit 8eb27cc2, roll/pipeline/rlvr/actor_worker.py"
_VARIANTS = "ROLL commit 8eb27cc2, roll/pipeline/rlvr/actor_pg_worker.py"
VANILLA = replace(clipped.VANILLA, function=vanilla, source=_PPO, settings=(*CLIP_RANGE, CLIP_C))
GSPO = replace(clipped.GSPO, function=gspo, source=_PPO, settings=(*CLIP_RANGE, CLIP_C))
CISPO = replace(clipped.CISPO, function=cispo, source=_VARIANTS, settings=())
GPG = replace(linear.GPG, function=gpg, source=_VARIANTS)
TIS = PolicyLoss(
    name="tis",
    says="Policy gradient times the PPO ratio within [0, 1]; it says nothing of the mismatch.",
    formula=f"-sg(clip(r, 0, 1)) A log p_current, sg a constant of the gradient; {SYMBOLS}",
    source=_VARIANTS,
    function=tis,
    see=("cispo",),
)
KIMI15 = PolicyLoss(
    name="kimi15",
    says="Policy gradient with a quadratic pull back to the old policy.",
    formula=f"-A log p_current + 0.05 d^2; {SYMBOLS}",
    source=f"arXiv 2501.12599; {_VARIANTS}",
    function=kimi15,
    see=("dro",),
)


def row_sum(batch: LossBatch, which: Denominator) -> Tensor:
    """Return 1 at tokens that are not rejected."""
    return batch.kept.double()


def row_mean(batch: LossBatch, which: Denominator) -> Tensor:
    """Return 1 / (T + 1e-8) at the row's T tokens that are not rejected, 0 at others."""
    return batch.kept / (batch.kept_counts + EPSILON)[batch.rows]


# `global_valid_samples`: rows with a token, counted before the filters.
ROWS = Count("sequences", SEQUENCES.kept, lambda batch: float((batch.lengths > 0).sum()))
UPDATE = UpdateRules(
    losses=by_name((VANILLA, GSPO, GPG, TIS, CISPO, KIMI15)),
    aggregations={
        "seq-mean-token-mean": replace(
            SEQ_MEAN_TOKEN_MEAN, within=row_mean, count=ROWS, default="all", epsilon=EPSILON
        ),
        # Without the mask: rejected tokens are in the sum.
        "token-mean": replace(TOKEN_MEAN, default="all"),
        "seq-mean-token-sum": replace(
            SEQ_MEAN_TOKEN_SUM, within=row_sum, count=ROWS, default="all", epsilon=EPSILON
        ),
        "seq-mean-token-sum-norm": replace(
            SEQ_MEAN_TOKEN_SUM_NORM, within=row_sum, count=NOTHING, horizon="width"
        ),
    },
    prefix="actor/",
    sees_rejected=True,
    defaults=LossSettings(aggregation="seq-mean-token-mean", own={"clip_c": None}),
)
