"""AReaL's policy losses: PPO with dual clip and SAPO, on ratios of tokens or of sequences.

Rejection moves no denominator.

log_ratio = current - old, in nats, unclamped. Source: areal 1.0.4,
areal/utils/functional/functional.py, `ppo_actor_loss_fn` and `sapo_loss_fn`.
"""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.losses import clipped
from rcdiag.losses.aggregation import TOKEN_MEAN
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.clipped import TAU_NEG, TAU_POS, ppo
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import CLIP_C, CLIP_RANGE, LossSettings, above_one
from rcdiag.losses.tensor import Tensor
from rcdiag.trainers.trl.losses import IMPORTANCE_SAMPLING_LEVEL, by_sequence


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


def _levelled(batch: LossBatch, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """Return ratio and advantage of each token, or those of the kept tokens of its sequence."""
    if not by_sequence(settings):
        return batch.log_ratio.exp(), batch.advantages
    none = batch.current.new_zeros(())
    ratio = _kept_means(batch, batch.log_ratio).exp().where(batch.kept, none)
    return ratio, _kept_means(batch, batch.advantages).where(batch.kept, none)


def vanilla(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO on the ratio of a token or of its sequence (GSPO), 0 at rejected tokens."""
    ratio, advantages = _levelled(batch, settings)
    return _ppo(batch, settings, ratio.where(batch.kept, ratio.new_zeros(())), advantages)


def sapo(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -A sigmoid(tau (ratio - 1)) 4 / tau; tau is tau_pos where A > 0, else tau_neg."""
    ratio, advantages = _levelled(batch, settings)
    gates = {
        name: (settings.value(tau) * (ratio - 1.0)).sigmoid() * 4.0 / settings.value(tau)
        for name, tau in (("pos", TAU_POS), ("neg", TAU_NEG))
    }
    gate = gates["pos"].where(advantages > 0, gates["neg"])
    never = batch.kept.new_zeros(batch.kept.shape)
    logged = {"importance_weight": ratio, "approx_kl": batch.log_ratio}
    logged |= {"clip_ratio": never, "dual_clip_ratio": never, "sapo_soft_gate": gate}
    logged |= {f"sapo_scaled_gate_{name}": value for name, value in gates.items()}
    losses = -gate * advantages
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
_PPO_SETTINGS = (*CLIP_RANGE, CLIP_C, IMPORTANCE_SAMPLING_LEVEL)
VANILLA = replace(
    clipped.VANILLA, function=vanilla, source=f"{_FILE}, ppo_actor_loss_fn", settings=_PPO_SETTINGS
)
SAPO = replace(
    clipped.SAPO,
    function=sapo,
    source=f"{_FILE}, sapo_loss_fn",
    settings=(TAU_POS, TAU_NEG, IMPORTANCE_SAMPLING_LEVEL),
)
UPDATE = UpdateRules(
    losses=by_name((VANILLA, SAPO)),
    aggregations={"token-mean": replace(TOKEN_MEAN, default="all")},
    prefix="ppo_actor/update/",
    sees_rejected=True,
    logged=logged,
    defaults=LossSettings(own={"clip_c": None}),
)
