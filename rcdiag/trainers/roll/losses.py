"""ROLL's policy losses and aggregations.

Under token-mean the loss is summed without the mask: tokens rejected by a filter keep their
gradient. Sources: ROLL commit 8eb27cc2, roll/pipeline/rlvr/actor_worker.py and actor_pg_worker.py,
and `agg_loss` in roll/utils/functionals.py.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from rcdiag.errors import RcdiagError
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
from rcdiag.losses.settings import (
    CLIP_HIGH,
    CLIP_LOW,
    PPO_SETTINGS,
    Denominator,
    LossSettings,
)
from rcdiag.losses.tensor import Tensor
from rcdiag.trainers.settings_table import read_loss_settings

_OWN = read_loss_settings("rcdiag.trainers.roll")
TIS_LOWER, TIS_UPPER = _OWN["tis_lower_bound"], _OWN["tis_upper_bound"]
TOPR_POSITIVE, TOPR_NEGATIVE = _OWN["topr_positive_weight"], _OWN["topr_negative_weight"]
CISPO_LOW, CISPO_HIGH = _OWN["cispo_epsilon_low"], _OWN["cispo_epsilon_high"]
UNIFIED_MASK, KIMI15_TAU = _OWN["cispo_use_unified_mask"], _OWN["kimi15_tau"]


def _ppo(batch: LossBatch, settings: LossSettings, log_ratio: Tensor) -> TokenLosses:
    ratio = log_ratio.exp()
    losses, beyond = ppo(ratio, batch.advantages, settings)
    losses, _ = dual_clip(losses, batch.advantages, settings)
    low, high = 1.0 - settings.value(CLIP_LOW), 1.0 + settings.value(CLIP_HIGH)
    sides = {"ppo_ratio_low": (ratio < low).double(), "ppo_ratio_high": (ratio > high).double()}
    return TokenLosses(losses, {"ratio": ratio, "clipfrac": beyond, **sides})


def vanilla(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO losses on the ratio of each token: importance_sampling token."""
    return _ppo(batch, settings, batch.log_ratio)


def gspo(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO losses on exp(mean log_ratio of the row's kept tokens): level seq."""
    sums = batch.row_sums(batch.log_ratio.where(batch.kept, 0.0))
    means = sums / (batch.kept_counts + EPSILON)
    losses = _ppo(batch, settings, means[batch.rows])
    # The row's ratio fills its padded width, and each position is counted as clipped.
    places = (batch.padded_width / batch.lengths.double())[batch.rows]
    sides = {name: losses.logged[name] * places for name in ("ppo_ratio_low", "ppo_ratio_high")}
    return replace(losses, logged={**losses.logged, **sides})


def _weighted(batch: LossBatch, weights: Tensor) -> TokenLosses:
    """Return -stop_gradient(weights) A current."""
    return TokenLosses(-weights.detach() * batch.advantages * batch.current, {})


def tis(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return the policy gradient times the PPO ratio clipped to bounds, [0, 1] by default."""
    low, high = settings.value(TIS_LOWER), settings.value(TIS_UPPER)
    ratio = batch.log_ratio.exp().clamp(low, high)
    return replace(_weighted(batch, ratio), logged={"tis_ratio": ratio})


def cispo(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return the policy gradient times the PPO ratio clipped to [0.9, 1.1], or to set bounds."""
    low, high = 1.0 - settings.value(CISPO_LOW), 1.0 + settings.value(CISPO_HIGH)
    ratio = batch.log_ratio.exp()
    bounded = ratio.clamp(low, high)
    losses = replace(_weighted(batch, bounded), logged={"cispo_ratio": bounded})
    if not settings.value(UNIFIED_MASK):
        return losses
    beyond = (batch.advantages > 0) & (ratio > high) | (batch.advantages < 0) & (ratio < low)
    return replace(losses, values=losses.values * ~beyond)


def topr(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -A current if the reward is above 0, else this times min(PPO ratio, 1)."""
    rewards = batch.rewards
    unknown = batch.lengths > 0
    if rewards is not None:
        unknown = unknown & rewards.isnan()
    if rewards is None or bool(unknown.any()):
        raise RcdiagError(
            f"topr depends on the reward of a sequence, but {int(unknown.sum()):,} of "
            f"{int((batch.lengths > 0).sum()):,} have none",
            "fill the column `reward`",
        )
    good = (rewards > 0)[batch.rows]
    bounded = _weighted(batch, batch.log_ratio.exp().clamp(0.0, 1.0)).values
    positive = -batch.advantages * batch.current * good
    negative = bounded * ~good
    losses = settings.value(TOPR_POSITIVE) * positive + settings.value(TOPR_NEGATIVE) * negative
    return TokenLosses(losses, {"topr_positive": positive, "topr_negative": negative})


def gpg(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -A current: pg_variant vanilla."""
    return TokenLosses(-batch.advantages * batch.current, {})


def kimi15(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -A current + tau / 2 log_ratio^2, tau = kimi15_tau."""
    pull = 0.5 * settings.value(KIMI15_TAU) * batch.log_ratio.square()
    return TokenLosses(pull - batch.advantages * batch.current, {})


_PPO = "ROLL commit 8eb27cc2, roll/pipeline/rlvr/actor_worker.py"
_VARIANTS = "ROLL commit 8eb27cc2, roll/pipeline/rlvr/actor_pg_worker.py"
VANILLA = replace(clipped.VANILLA, function=vanilla, source=_PPO, settings=PPO_SETTINGS)
GSPO = replace(clipped.GSPO, function=gspo, source=_PPO, settings=PPO_SETTINGS)
CISPO = replace(
    clipped.CISPO,
    function=cispo,
    source=_VARIANTS,
    settings=(CISPO_LOW, CISPO_HIGH, UNIFIED_MASK),
)
GPG = replace(linear.GPG, function=gpg, source=_VARIANTS)
TIS = PolicyLoss(
    name="pg_tis",
    says="Policy gradient times the PPO ratio within [0, 1]; it does not correct the mismatch.",
    formula=f"-sg(clip(r, 0, 1)) A log p_current, sg a constant of the gradient; {SYMBOLS}",
    source=_VARIANTS,
    function=tis,
    settings=(TIS_LOWER, TIS_UPPER),
    see=("cispo", "TIS"),
)
TOPR = PolicyLoss(
    name="topr",
    says="Sequences with a reward above 0 have weight 1; the others the PPO ratio, 1 at most, so "
    "that those that have become unlikely no longer pull. It reads the column `reward`.",
    formula="-A log p_current where the reward is above 0, else -sg(min(r, 1)) A log p_current, sg "
    f"a constant of the gradient; {SYMBOLS}",
    source=f"arXiv 2503.14286; {_VARIANTS}",
    function=topr,
    settings=(TOPR_POSITIVE, TOPR_NEGATIVE),
    given="rewards 1 and 0",
    see=("pg_tis", "gpg"),
)
KIMI15 = PolicyLoss(
    name="kimi15",
    says="Policy gradient with a quadratic pull back to the old policy.",
    formula=f"-A log p_current + 0.05 d^2; {SYMBOLS}",
    source=f"arXiv 2501.12599; {_VARIANTS}",
    function=kimi15,
    settings=(KIMI15_TAU,),
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
AGGREGATIONS = by_name(
    (
        replace(SEQ_MEAN_TOKEN_MEAN, within=row_mean, count=ROWS, default="all", epsilon=EPSILON),
        replace(TOKEN_MEAN, default="all"),  # without the mask: the sum includes rejected tokens
        replace(SEQ_MEAN_TOKEN_SUM, within=row_sum, count=ROWS, default="all", epsilon=EPSILON),
        replace(SEQ_MEAN_TOKEN_SUM_NORM, within=row_sum, count=NOTHING, horizon="width"),
    )
)


def _aggregated(batch: LossBatch, values: Tensor, name: str) -> float:
    """Reduce values of tokens as ROLL does, by the named aggregation."""
    aggregation = AGGREGATIONS[name]
    divisor = aggregation.divisor(batch, LossSettings(aggregation=name))
    summed = (aggregation.within(batch, aggregation.default) * values.detach().double()).sum()
    return (summed / divisor).item() if divisor else math.nan


def _of_topr(batch: LossBatch, losses: TokenLosses, settings: LossSettings) -> dict[str, float]:
    """Return both parts of topr's loss, and its counts of rows with a token."""
    rewards = batch.rewards
    assert rewards is not None  # otherwise the loss has been refused
    rewards = rewards[batch.lengths > 0]
    parts = {
        name: _aggregated(batch, losses.logged[f"topr_{name}"], settings.aggregation)
        for name in ("positive", "negative")
    }
    counts = {
        "positive": (rewards > 0).sum().item(),
        "negative": (rewards <= 0).sum().item(),
    }
    weights = {
        "positive": settings.value(TOPR_POSITIVE),
        "negative": settings.value(TOPR_NEGATIVE),
    }
    numbers = {
        "topr_scores_mean": rewards.mean().item(),
        "topr_scores_std": rewards.numpy().std(ddof=1).item() if len(rewards) > 1 else math.nan,
    }
    for name, loss in parts.items():
        numbers[f"topr_{name}_samples@sum"] = float(counts[name])
        numbers[f"topr_{name}_ratio"] = counts[name] / (len(rewards) + EPSILON)
        numbers[f"topr_{name}_loss"] = loss
        numbers[f"topr_weighted_{name}_loss"] = weights[name] * loss
    return numbers


def logged(batch: LossBatch, losses: TokenLosses, settings: LossSettings) -> dict[str, float]:
    """Return what ROLL logs of a loss; its tracker removes the tag after @.

    Shares of positions of the padded grid, whose width no table has, and settings are left out.
    """
    mode, ratio = settings.aggregation, losses.logged.get("ratio", batch.log_ratio.exp())
    weights = 1.0 if batch.weights is None else batch.weights
    distance = batch.log_ratio * batch.kept
    numbers = {
        "pg_loss@sum": _aggregated(batch, losses.values * weights, mode),
        "policykl@sum": _aggregated(batch, distance, mode),
        "approxkl@sum": _aggregated(batch, 0.5 * distance.square(), mode),
        "ratio_mean@sum": _aggregated(batch, ratio, "seq-mean-token-mean"),
        # At masked and rejected positions, the maximum uses 0 and the minimum 1e10.
        "ratio_max@max": (ratio * batch.kept).max().item() if len(ratio) else 0.0,
        "ratio_min@min": ratio.where(batch.kept, 1e10).min().item() if len(ratio) else 1e10,
    }
    if "tis_ratio" in losses.logged:
        mean = _aggregated(batch, losses.logged["tis_ratio"], "seq-mean-token-mean")
        numbers["tis_clipped_ratio_mean@sum"] = mean
    if "cispo_ratio" in losses.logged:
        sums = (row_mean(batch, "all") * losses.logged["cispo_ratio"].detach()).sum()
        numbers["cispo_clipped_ratio_mean"] = sums.item() / max(len(batch.lengths), 1)
    if "topr_positive" in losses.logged:
        numbers |= _of_topr(batch, losses, settings)
    if "clipfrac" not in losses.logged:
        return numbers
    low, high = losses.logged["ppo_ratio_low"], losses.logged["ppo_ratio_high"]
    sides = {"low_": low, "high_": high, "": low + high}
    shares = {
        f"ppo_ratio_{side}clipfrac@sum": _aggregated(batch, flags, "token-mean")
        for side, flags in sides.items()
    }
    clipfrac = _aggregated(batch, losses.logged["clipfrac"], mode)
    return {**numbers, **shares, "clipfrac@sum": clipfrac}


UPDATE = UpdateRules(
    losses=by_name((VANILLA, GSPO, GPG, TIS, TOPR, CISPO, KIMI15)),
    aggregations=AGGREGATIONS,
    logged=logged,
    prefix="actor/",
    sees_rejected=True,
    defaults=LossSettings(aggregation="seq-mean-token-mean", own={"clip_c": None}),
)
