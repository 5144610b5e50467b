"""Which losses a trainer has, and how it aggregates and logs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from msgspec import Struct, field

from rcdiag.errors import RcdiagError, did_you_mean
from rcdiag.losses import LOSSES, SHIPPED
from rcdiag.losses.aggregation import Aggregation
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.policy_loss import PolicyLoss
from rcdiag.losses.settings import LossSettings

Named = TypeVar("Named", PolicyLoss, Aggregation)


def by_name(these: Iterable[Named]) -> dict[str, Named]:
    """Return losses or aggregations by their names."""
    return {one.name: one for one in these}


class UpdateRules(Struct, frozen=True, kw_only=True):
    """How one trainer makes the loss of an update, and what it logs of it."""

    losses: Mapping[str, PolicyLoss]
    aggregations: Mapping[str, Aggregation]
    # Losses that are always aggregated in one way, whatever is configured.
    fixed: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""  # of the keys under which it logs
    zeros: tuple[str, ...] = ()  # keys that are logged as 0 where a loss has no such number
    # Rejected tokens reach the loss function, and its metrics are aggregated as the loss is.
    sees_rejected: bool = False
    # Reduces the token values of a loss to the metrics that the trainer logs, by key without
    # prefix. None: masked means over tokens, or with `sees_rejected` aggregated as the loss is.
    logged: Callable[[LossBatch, TokenLosses, LossSettings], dict[str, float]] | None = None
    defaults: LossSettings = field(default_factory=LossSettings)

    @property
    def offered(self) -> dict[str, PolicyLoss]:
        """Return the trainer's own losses, and those that a plugin registered."""
        registered = {name: loss for name, loss in LOSSES.items() if name not in SHIPPED}
        return {**self.losses, **registered}

    def loss(self, name: str, whose: str = "this trainer") -> PolicyLoss:
        """Return a loss by its name; `whose` names the trainer in the error if it has none."""
        offered = self.offered
        if name not in offered:
            raise RcdiagError(
                f"loss {name}: {whose} does not have it",
                f"{did_you_mean(name, offered)}one of {', '.join(offered)}",
            )
        return offered[name]

    def loss_of_type(self, loss_type: str) -> str:
        """Name of the loss that a correction of bypass mode asks for."""
        names = {loss.loss_type: name for name, loss in self.offered.items()}
        if loss_type not in names:
            raise RcdiagError(
                f"loss {loss_type}: this trainer does not have it", f"one of {', '.join(names)}"
            )
        return names[loss_type]

    def aggregation(self, loss: str, settings: LossSettings) -> Aggregation:
        """Return the aggregation that is set, or the one that this loss always has."""
        name = self.fixed.get(loss, settings.aggregation)
        if name not in self.aggregations:
            names = ", ".join(self.aggregations)
            raise RcdiagError(
                f"aggregation {name}: this trainer does not have it",
                f"{did_you_mean(name, self.aggregations)}one of {names}",
            )
        return self.aggregations[name]
