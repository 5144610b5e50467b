"""The losses that a trainer has, and how it aggregates and logs them."""

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
    """Return losses or aggregations as a mapping by name."""
    return {one.name: one for one in these}


class UpdateRules(Struct, frozen=True, kw_only=True):
    """A trainer's losses and aggregations, and the metrics that it logs of an update."""

    losses: Mapping[str, PolicyLoss]
    aggregations: Mapping[str, Aggregation]
    # Loss -> the aggregation that it always has, whatever is configured.
    fixed: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""  # of the keys of logged metrics
    zeros: tuple[str, ...] = ()  # keys that are logged as 0 by losses without such a metric
    # Rejected tokens reach the loss function, and its metrics are aggregated like the loss.
    sees_rejected: bool = False
    # Computes the trainer's metrics from a loss's token values, by key without prefix. None: masked
    # means over tokens, or with `sees_rejected` the aggregation of the loss.
    logged: Callable[[LossBatch, TokenLosses, LossSettings], dict[str, float]] | None = None
    defaults: LossSettings = field(default_factory=LossSettings)

    @property
    def offered(self) -> dict[str, PolicyLoss]:
        """Return the trainer's own losses, and those registered by plugins."""
        registered = {name: loss for name, loss in LOSSES.items() if name not in SHIPPED}
        return {**self.losses, **registered}

    def loss(self, name: str, whose: str = "this trainer") -> PolicyLoss:
        """Return a loss by its name; `whose` is the trainer in the error message."""
        offered = self.offered
        if name not in offered:
            raise RcdiagError(
                f"loss {name}: {whose} does not have it",
                f"{did_you_mean(name, offered)}one of {', '.join(offered)}",
            )
        return offered[name]

    def loss_of_type(self, loss_type: str) -> str:
        """Return the name of the loss with the `loss_type` of a bypass-mode correction."""
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
