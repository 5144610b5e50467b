"""AReaL's policy losses: PPO with dual clip and SAPO, on ratios of tokens or sequences; CISPO.

Rejection does not change the denominator.

log_ratio = current - old, in nats, unclamped. Sources: areal 1.0.4 and AReaL commit cbff54d6
(2026-08-22), areal/utils/functional/functional.py, `ppo_actor_loss_fn`, `sapo_loss_fn` and, in the
later one, `cispo_loss_fn`.
"""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.losses import clipped
from rcdiag.losses.aggregation import TOKEN_MEAN
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.clipped import TAU_NEG, TAU_POS, clip_ratio, ppo
from rcdiag.losses.on_rollout import WIDE_CLIP
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import CLIP_C, PPO_SETTINGS, LossSettings, above_one
from rcdiag.losses.tensor import Tensor
from rcdiag.trainers.loss_choice import LossChoice, number, value
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.trl.losses import IMPORTANCE_SAMPLING_LEVEL, by_sequence


def _ppo(
    batch: LossBatch, settings: LossSettings, ratio: Tensor, advantages: Tensor
) -> TokenLosses:
    """Return PPO losses at kept tokens; with `clip_c`, at most sign(A) A clip_c (dual clip)."""
    losses, _ = ppo(ratio, advantages, settings)
    free, held = -advantages * ratio, -advantages * clip_ratio(ratio, settings)
    logged = {"importance_weight": ratio, "approx_kl": batch.log_ratio, "clip_ratio": free < held}
    dual = batch.kept.new_zeros(batch.kept.shape)
    if (bound := settings.value(CLIP_C)) is not None:
        ceiling = advantages.sign() * above_one(bound) * advantages
        dual = ceiling < losses
        losses = losses.minimum(ceiling)
    logged["dual_clip_ratio"] = dual
    return TokenLosses(losses.where(batch.kept, losses.new_zeros(())), logged)


def _levelled(batch: LossBatch, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """Return the ratio and advantage of each token, or of its sequence's kept tokens."""
    if not by_sequence(settings):
        return batch.log_ratio.exp(), batch.advantages
    ratio, advantages = (
        batch.kept_row_means(values)[batch.rows] for values in (batch.log_ratio, batch.advantages)
    )
    none = batch.current.new_zeros(())
    return ratio.exp().where(batch.kept, none), advantages.where(batch.kept, none)


def vanilla(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO on the ratio of a token or of its sequence (GSPO), 0 at rejected tokens.

    Logged ratios of tokens and clip flags include rejected tokens.
    """
    ratio, advantages = _levelled(batch, settings)
    return _ppo(batch, settings, ratio, advantages)


def vanilla_of_1_0(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return the same losses; here the logged numbers are 0 at rejected tokens."""
    ratio, advantages = _levelled(batch, settings)
    losses = _ppo(batch, settings, ratio.where(batch.kept, ratio.new_zeros(())), advantages)
    marks = ("clip_ratio", "dual_clip_ratio")
    logged = {name: losses.logged[name].where(batch.kept, False) for name in marks}
    return replace(losses, logged={**losses.logged, **logged})


def cispo(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -stop_gradient(clip(ratio)) A current, 0 at rejected tokens."""
    ratio = batch.log_ratio.exp().detach()
    bounded = clip_ratio(ratio, settings, WIDE_CLIP)
    losses = -bounded * batch.advantages * batch.current
    clipped_ones = (ratio != bounded).where(batch.kept, False)
    logged = {"importance_weight": ratio, "approx_kl": batch.log_ratio, "clip_ratio": clipped_ones}
    logged["dual_clip_ratio"] = batch.kept.new_zeros(batch.kept.shape)
    return TokenLosses(losses.where(batch.kept, losses.new_zeros(())), logged)


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
    """Return mean and extremes of a loss's numbers over all tokens; rejected ones count as 0."""
    if not len(batch.kept):
        return {}
    weights = 1.0 if batch.weights is None else batch.weights
    numbers = {}
    for name, column in {**losses.logged, "actor_loss": losses.values * weights}.items():
        values = column.detach().double()
        numbers[f"{name}/avg"] = float(values.mean())
        numbers[f"{name}/min"] = float(values.min())
        numbers[f"{name}/max"] = float(values.max())
    return numbers


def loss_before_cispo(document: Document, choice: LossChoice) -> LossChoice:
    """Refuse a switch that does not exist in AReaL 1.0.4."""
    if not value(document, CISPO_SWITCH):
        return choice
    why = f"{CISPO_SWITCH}: areal-1.0 does not have this loss, areal-20260822 does"
    return replace(choice, refused=why)


def loss_with_cispo(document: Document, choice: LossChoice) -> LossChoice:
    """Choose cispo if its switch is on; its bounds are those of PPO's clip."""
    if not value(document, CISPO_SWITCH):
        return choice
    high = number(document, "actor.eps_clip_higher")
    level = value(document, "actor.importance_sampling_level", "token")
    if value(document, "actor.use_sapo_loss"):
        stops = "use_cispo_loss together with use_sapo_loss"
    elif high is None or high <= 0:
        stops = "use_cispo_loss without an eps_clip_higher above 0"
    elif level != "token":
        stops = f"use_cispo_loss with importance_sampling_level: {level}"
    else:
        low = number(document, "actor.eps_clip")
        return replace(
            choice, loss="cispo", own={"clip_low": 0.2 if low is None else low, "clip_high": high}
        )
    return replace(choice, refused=f"AReaL commit cbff54d6 of 2026-08-22 stops on {stops}")


CISPO_SWITCH = "actor.use_cispo_loss"
_FILE = "areal 1.0.4, areal/utils/functional/functional.py"
_NEWER = "AReaL commit cbff54d6, areal/utils/functional/functional.py"
VANILLA_OF_1_0 = replace(
    clipped.VANILLA,
    function=vanilla_of_1_0,
    source=f"{_FILE}, ppo_actor_loss_fn",
    settings=(*PPO_SETTINGS, IMPORTANCE_SAMPLING_LEVEL),
)
VANILLA = replace(VANILLA_OF_1_0, function=vanilla, source=f"{_NEWER}, ppo_actor_loss_fn")
SAPO = replace(
    clipped.SAPO,
    function=sapo,
    source=f"{_FILE}, sapo_loss_fn",
    settings=(TAU_POS, TAU_NEG, IMPORTANCE_SAMPLING_LEVEL),
)
CISPO = replace(
    clipped.CISPO,
    function=cispo,
    source=f"{_NEWER}, cispo_loss_fn; arXiv 2506.13585",
    settings=WIDE_CLIP,
)
UPDATE_OF_1_0 = UpdateRules(
    losses=by_name((VANILLA_OF_1_0, SAPO)),
    aggregations=by_name((replace(TOKEN_MEAN, default="all"),)),
    prefix="ppo_actor/update/",
    sees_rejected=True,
    logged=logged,
    defaults=LossSettings(own={"clip_c": None}),
)
UPDATE = replace(UPDATE_OF_1_0, losses=by_name((VANILLA, SAPO, CISPO)))
