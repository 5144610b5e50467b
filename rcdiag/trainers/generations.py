"""Which losses and aggregations a trainer generation has, and how it averages its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rcdiag.errors import RcdiagError
from rcdiag.losses import aggregation
from rcdiag.losses.aggregation import Aggregation
from rcdiag.losses.batch import PolicyLoss
from rcdiag.losses.policy_losses import POLICY_LOSSES
from rcdiag.losses.settings import LossSettings
from rcdiag.trainers.slime import losses as slime

FIRST = ("vanilla", "gspo", "gpg", "clip_cov", "kl_cov", "geo_mean")
WITH_REINFORCE = (*FIRST, "reinforce")
IN_070 = (*WITH_REINFORCE, "sapo", "cispo")
IN_071 = (*IN_070, "dppo_tv", "dppo_kl")
BY_SEQUENCE = {"gspo": "seq-mean-token-mean", "sapo": "seq-mean-token-mean"}
# dp_actor of 0.6.0 logs these for every loss.
THREE = ("pg_clipfrac", "ppo_kl", "pg_clipfrac_lower")


@dataclass(frozen=True, slots=True)
class Generation:
    """What `evaluate` has to know of a trainer."""

    losses: Mapping[str, PolicyLoss]
    aggregations: Mapping[str, Aggregation]
    fixed: Mapping[str, str] = field(default_factory=lambda: BY_SEQUENCE)  # whatever is configured
    prefix: str = "actor/"
    zeros: tuple[str, ...] = ()  # logged as 0 where a loss has no such number
    # Rejected tokens reach the loss function, and its metrics are aggregated as the loss is.
    sees_rejected: bool = False
    defaults: LossSettings = field(default_factory=LossSettings)


def _losses(names: tuple[str, ...]) -> dict[str, PolicyLoss]:
    return {name: POLICY_LOSSES[name] for name in names}


GENERATIONS: dict[str, Generation] = {
    "verl-0.6.0": Generation(_losses(FIRST), aggregation.IN_060, zeros=THREE),
    "verl-20251027": Generation(_losses(FIRST), aggregation.IN_061, zeros=THREE),
    "verl-0.6.1": Generation(_losses(WITH_REINFORCE), aggregation.IN_061),
    "verl-20251203": Generation(_losses(WITH_REINFORCE), aggregation.IN_070),
    "verl-0.7.0": Generation(_losses(IN_070), aggregation.IN_070),
    "verl-0.7.1": Generation(_losses(IN_071), aggregation.IN_071),
    "verl-0.8.0": Generation(_losses(IN_071), aggregation.IN_071),
    "verl-0.9": Generation(
        POLICY_LOSSES, aggregation.AGGREGATIONS, fixed={"sapo": BY_SEQUENCE["sapo"]}
    ),
    "slime": Generation(
        slime.POLICY_LOSSES,
        aggregation.IN_SLIME,
        fixed={},
        prefix="",
        sees_rejected=True,
        defaults=LossSettings(clip_c=None, aggregation="seq-mean-token-mean"),
    ),
}


def find_generation(trainer: str) -> Generation:
    if trainer not in GENERATIONS:
        raise RcdiagError(
            f"no policy losses of {trainer} are known", f"one of {', '.join(GENERATIONS)}"
        )
    return GENERATIONS[trainer]


def default_settings(trainer: str) -> LossSettings:
    """Of the trainer itself."""
    return find_generation(trainer).defaults


def find_loss(trainer: str, loss: str) -> PolicyLoss:
    losses = find_generation(trainer).losses
    if loss not in losses:
        raise RcdiagError(f"loss {loss}: {trainer} does not have it", f"one of {', '.join(losses)}")
    return losses[loss]


def find_aggregation(trainer: str, loss: str, settings: LossSettings) -> Aggregation:
    """The configured one, or that which this loss always has."""
    generation = find_generation(trainer)
    name = generation.fixed.get(loss, settings.aggregation)
    if name not in generation.aggregations:
        known = ", ".join(generation.aggregations)
        raise RcdiagError(f"aggregation {name}: {trainer} does not have it", f"one of {known}")
    return generation.aggregations[name]
