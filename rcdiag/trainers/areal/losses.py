"""AReaL's policy losses: PPO with dual clip, GSPO and SAPO; rejection moves no denominator.

log_ratio = current - old, in nats, unclamped. Source: areal 1.0.4,
areal/utils/functional/functional.py, `ppo_actor_loss_fn` and `sapo_loss_fn`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rcdiag.losses import clipped
from rcdiag.losses.aggregation import TOKEN_MEAN
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.clipped import TAU_NEG, TAU_POS, ppo
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import CLIP_C, CLIP_RANGE, LossSettings, above_one

if TYPE_CHECKING:
    from torch import Tensor


def _kept_means(batch: LossBatch, values: Tensor) -> Tensor:
    """Return the mean of `values` over the kept tokens of each row, at each token, [tokens]."""
    kept = values.where(batch.kept, values.new_zeros(()))
    return (batch.row_sums(kept) / batch.kept_counts.clamp(min=1))[batch.rows]


def _ppo(
    batch: LossBatch, settings: LossSettings, ratio: Tensor, advantages: Tensor
) -> TokenLosses:
    """Return PPO losses, and sign(A) A clip_c at most where `clip_c` is given, at kept tokens."""
    losses, _ = ppo(ratio, advantages, settings)
    free, held = -advantages * ratio, -advantages * clipped.clip_ratio(ratio, settings)
    logged = {"importance_weight": ratio, "approx_kl": batch.log_ratio, "clip_ratio": free < held}
    dual = batch.kept.new_zeros(batch.kept.shape)
    if (bound := settings.value(CLIP_C)) is not None:
        ceiling = advantages.sign() * above_one(bound) * advantages
        dual = ceiling < losses
        losses = losses.minimum(ceiling)
    logged["dual_clip_ratio"] = dual
    return TokenLosses(losses.where(batch.kept, losses.new_zeros(())), logged)


def vanilla(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO on the ratio of each token, which is 0 at rejected ones."""
    ratio = batch.log_ratio.exp()
    return _ppo(batch, settings, ratio.where(batch.kept, ratio.new_zeros(())), batch.advantages)


def gspo(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO on exp(mean log_ratio) and the mean advantage of each row's kept tokens."""
    none = batch.current.new_zeros(())
    ratio = _kept_means(batch, batch.log_ratio).exp().where(batch.kept, none)
    advantages = _kept_means(batch, batch.advantages).where(batch.kept, none)
    return _ppo(batch, settings, ratio, advantages)


def sapo(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -A sigmoid(tau (ratio - 1)) 4 / tau; tau is tau_pos where A > 0, else tau_neg."""
    ratio = batch.log_ratio.exp()
    gates = {
        name: (settings.value(tau) * (ratio - 1.0)).sigmoid() * 4.0 / settings.value(tau)
        for name, tau in (("pos", TAU_POS), ("neg", TAU_NEG))
    }
    gate = gates["pos"].where(batch.advantages > 0, gates["neg"])
    never = batch.kept.new_zeros(batch.kept.shape)
    logged = {"importance_weight": ratio, "approx_kl": batch.log_ratio}
    logged |= {"clip_ratio": never, "dual_clip_ratio": never, "sapo_soft_gate": gate}
    logged |= {f"sapo_scaled_gate_{name}": value for name, value in gates.items()}
    losses = -gate * batch.advantages
    return TokenLosses(losses.where(batch.kept, losses.new_zeros(())), logged)


def logged(batch: LossBatch, losses: TokenLosses, settings: LossSettings) -> dict[str, float]:
    """Return mean and extremes of what a loss has, over all tokens, rejected ones with 0."""
    if not len(batch.kept):
        return {}
    weights = 1.0 if batch.weights is None else batch.weights
    numbers = {}
    for name, column in {**losses.logged, "actor_loss": losses.values * weights}.items():
        values = column.detach().double()
        if name.endswith("clip_ratio"):
            values = values * batch.kept
        numbers[f"{name}/avg"] = float(values.mean())
        numbers[f"{name}/min"] = float(values.min())
        numbers[f"{name}/max"] = float(values.max())
    return numbers


_FILE = "areal 1.0.4, areal/utils/functional/functional.py"
_PPO_SETTINGS = (*CLIP_RANGE, CLIP_C)
VANILLA = replace(
    clipped.VANILLA, function=vanilla, source=f"{_FILE}, ppo_actor_loss_fn", settings=_PPO_SETTINGS
)
GSPO = replace(
    clipped.GSPO,
    function=gspo,
    source=f"{_FILE}, importance_sampling_level sequence",
    settings=_PPO_SETTINGS,
)
SAPO = replace(clipped.SAPO, function=sapo, source=f"{_FILE}, sapo_loss_fn")
UPDATE = UpdateRules(
    losses=by_name((VANILLA, GSPO, SAPO)),
    aggregations={"token-mean": replace(TOKEN_MEAN, default="all")},
    prefix="ppo_actor/update/",
    sees_rejected=True,
    logged=logged,
    defaults=LossSettings(own={"clip_c": None}),
)
