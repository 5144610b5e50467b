"""The losses and reductions of an update in each generation of verl.

Sources: verl #2953 and packages verl 0.6.0 to 0.9.1, verl/trainer/ppo/core_algos.py;
`POLICY_LOSS_REGISTRY` and `agg_loss` there.
"""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.losses.aggregation import (
    NOTHING,
    SEQ_MEAN_TOKEN_MEAN,
    SEQ_MEAN_TOKEN_SUM,
    SEQ_MEAN_TOKEN_SUM_NORM,
    TOKEN_MEAN,
    TOKEN_SUM,
)
from rcdiag.losses.batch import EPSILON, LossBatch, TokenLosses
from rcdiag.losses.clipped import CISPO, GEO_MEAN, GSPO, SAPO, VANILLA
from rcdiag.losses.divergence import DPPO_KL, DPPO_TV
from rcdiag.losses.linear import DRO, GPG, REINFORCE
from rcdiag.losses.policy_loss import PolicyLoss
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.selected import CLIP_COV, KL_COV
from rcdiag.losses.settings import LossSettings


def _without_weights(loss: PolicyLoss) -> PolicyLoss:
    """Return a loss on which IS weights have no effect."""

    def unweighted(batch: LossBatch, settings: LossSettings) -> TokenLosses:
        return replace(loss(batch, settings), weighted=True)

    return replace(loss, function=unweighted)


_LOSSES_060 = (VANILLA, GSPO, GPG, CLIP_COV, KL_COV, GEO_MEAN)
_LOSSES_061 = (*_LOSSES_060, REINFORCE)
_LOSSES_070 = (*_LOSSES_061, SAPO, CISPO)
_LOSSES_071 = (*_LOSSES_070, DPPO_TV, DPPO_KL)
_LOSSES_09 = (*_LOSSES_071, DRO)


_ALWAYS = (TOKEN_MEAN, SEQ_MEAN_TOKEN_SUM, SEQ_MEAN_TOKEN_MEAN)
_REDUCTIONS_071 = by_name((*_ALWAYS, SEQ_MEAN_TOKEN_SUM_NORM))
_REDUCTIONS_09 = by_name((*_REDUCTIONS_071.values(), TOKEN_SUM))
_NORM_070 = replace(SEQ_MEAN_TOKEN_SUM_NORM, count=NOTHING)
_REDUCTIONS_070 = by_name((*_ALWAYS, _NORM_070))
# With an epsilon in the divisor, a mean over nothing is 0.
_REDUCTIONS_061 = by_name(
    (*(replace(one, epsilon=EPSILON) for one in _ALWAYS), replace(_NORM_070, horizon="width"))
)
_REDUCTIONS_060 = _REDUCTIONS_061 | by_name(
    (
        replace(SEQ_MEAN_TOKEN_SUM, default="all"),
        replace(SEQ_MEAN_TOKEN_MEAN, default="all", empty_rows_spoil=True),
    )
)
_FIXED = {"gspo": "seq-mean-token-mean", "sapo": "seq-mean-token-mean"}
# dp_actor of 0.6.0 logs these for every loss.
_THREE = ("pg_clipfrac", "ppo_kl", "pg_clipfrac_lower")

UPDATE_060 = UpdateRules(
    losses=by_name(_LOSSES_060),
    aggregations=_REDUCTIONS_060,
    fixed=_FIXED,
    prefix="actor/",
    zeros=_THREE,
)
# tis_imp_ratio_cap only weights the vanilla loss.
UPDATE_20250826 = replace(
    UPDATE_060,
    losses={**UPDATE_060.losses, **by_name(map(_without_weights, _LOSSES_060[1:]))},
)
UPDATE_20251027 = replace(UPDATE_060, aggregations=_REDUCTIONS_061)
UPDATE_061 = UpdateRules(
    losses=by_name(_LOSSES_061), aggregations=_REDUCTIONS_061, fixed=_FIXED, prefix="actor/"
)
UPDATE_20251203 = replace(UPDATE_061, aggregations=_REDUCTIONS_070)
UPDATE_070 = replace(UPDATE_20251203, losses=by_name(_LOSSES_070))
UPDATE_071 = replace(UPDATE_070, losses=by_name(_LOSSES_071), aggregations=_REDUCTIONS_071)
# 0.9.1 aggregates gspo as configured.
UPDATE_09 = UpdateRules(
    losses=by_name(_LOSSES_09),
    aggregations=_REDUCTIONS_09,
    fixed={"sapo": _FIXED["sapo"]},
    prefix="actor/",
)
