"""The one entry: loss, metrics and exact gradient of a batch under a trainer's loss."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rcdiag.losses.aggregation import OF_ROWS, Aggregation
from rcdiag.losses.batch import EPSILON, LossBatch, TokenLosses
from rcdiag.losses.clipped import geometric_row_weights
from rcdiag.losses.settings import LossSettings
from rcdiag.trainers.generations import Generation, find_aggregation, find_generation, find_loss


@dataclass(frozen=True, slots=True)
class Divided:
    """What the loss is a mean over, and how many of them it counts."""

    which: str  # kept, all, constant
    unit: str  # tokens, sequences, nothing
    used: float
    kept: float
    all: float


@dataclass(frozen=True, slots=True, eq=False)
class LossResult:
    """What the trainer would have computed on the batch."""

    loss: float  # as the trainer logs it: NaN or 0 where it is not defined
    metrics: dict[str, float]  # under the trainer's own keys
    coefficients: NDArray[np.float64]  # d loss / d current, of each token of the batch
    divided: Divided
    undefined: str | None = None  # why there is no loss; then all coefficients are 0


def evaluate(batch: LossBatch, loss: str, settings: LossSettings, trainer: str) -> LossResult:
    """`loss` by the trainer's name; its own settings are `default_settings(trainer)`."""
    policy_loss, generation = find_loss(trainer, loss), find_generation(trainer)
    current = batch.current.detach().to(torch.float64).requires_grad_()
    batch = replace(batch, current=current)
    seen = batch if generation.sees_rejected else batch.only_kept()
    found = policy_loss(seen, settings)
    how = OF_ROWS if found.by_row else find_aggregation(trainer, loss, settings)
    total = _total(how, batch, seen, _weighted(found, seen), settings)
    metrics = _metrics(generation, how, batch, found, settings)
    if generation.sees_rejected:
        metrics["pg_loss"] = total.item()
    reason = _undefined(how, batch, settings)
    return LossResult(
        loss=total.item(),
        metrics={generation.prefix + name: value for name, value in metrics.items()},
        coefficients=np.zeros(len(current)) if reason else _gradient(total, current),
        divided=_divided(how, batch, settings),
        undefined=reason,
    )


def _weighted(found: TokenLosses, seen: LossBatch) -> Tensor:
    """IS weights multiply losses that are already clipped; of rows, their geometric mean does."""
    if seen.weights is None:
        return found.values
    weights = seen.weights
    return found.values * (geometric_row_weights(seen, weights) if found.by_row else weights)


def _total(
    how: Aggregation, batch: LossBatch, seen: LossBatch, losses: Tensor, settings: LossSettings
) -> Tensor:
    """Sum of within x loss / divisor; NaN where the divisor is 0, as in the trainer."""
    divisor = how.divisor(batch, settings)
    summed = (how.within(seen, how.denominator(settings)) * losses).sum()
    spoiled = how.empty_rows_spoil and _empty_rows_counted(how, batch, settings)
    return summed / divisor if divisor and not spoiled else torch.tensor(math.nan)


def _empty_rows_counted(how: Aggregation, batch: LossBatch, settings: LossSettings) -> bool:
    return how.denominator(settings) != "kept" and bool((batch.kept_counts == 0).any())


def _undefined(how: Aggregation, batch: LossBatch, settings: LossSettings) -> str | None:
    if not how.counted(batch, settings) or not how.divisor(batch, settings):
        return "nothing is kept, so the mean has nothing in it"
    if how.empty_rows_spoil and _empty_rows_counted(how, batch, settings):
        return "a row has no kept token, and this generation takes its mean too, which is 0/0"
    return None


def _divided(how: Aggregation, batch: LossBatch, settings: LossSettings) -> Divided:
    return Divided(
        which=how.denominator(settings),
        unit=how.count.unit,
        used=how.counted(batch, settings),
        kept=how.count.kept(batch),
        all=how.count.all(batch),
    )


def _gradient(total: Tensor, current: Tensor) -> NDArray[np.float64]:
    (found,) = torch.autograd.grad(total, current)
    return found.numpy()


def _metrics(
    generation: Generation,
    how: Aggregation,
    batch: LossBatch,
    found: TokenLosses,
    settings: LossSettings,
) -> dict[str, float]:
    logged = {name: values.detach().to(torch.float64) for name, values in found.logged.items()}
    if generation.sees_rejected:
        return _aggregated(how, batch, logged, settings)
    return dict.fromkeys(generation.zeros, 0.0) | _token_means(logged)


def _token_means(logged: dict[str, Tensor]) -> dict[str, float]:
    """Masked means of verl: sum / (kept tokens + 1e-8)."""
    return {name: (each.sum() / (len(each) + EPSILON)).item() for name, each in logged.items()}


def _aggregated(
    how: Aggregation, batch: LossBatch, logged: dict[str, Tensor], settings: LossSettings
) -> dict[str, float]:
    """Metrics of slime are reduced as its loss is, always with its own denominators."""
    own = replace(settings, denominator=None)
    return {name: _total(how, batch, batch, each, own).item() for name, each in logged.items()}
