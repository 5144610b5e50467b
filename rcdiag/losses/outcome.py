"""What a loss function hands on, before weights and aggregation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from rcdiag.losses.batch import LossBatch
from rcdiag.losses.settings import LossSettings


@dataclass(frozen=True, slots=True, eq=False)
class TokenLosses:
    """Losses [tokens], or [rows] with `by_row`; `logged` are token values that metrics average."""

    values: Tensor
    logged: dict[str, Tensor]
    by_row: bool = False


PolicyLoss = Callable[[LossBatch, LossSettings], TokenLosses]
