"""The protocol of a model that a replay trains; `trainee.Trainee` satisfies it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.learning.training_settings import OptimizerSettings, SketchSettings
from rcdiag.table.trajectories import Trajectories

Array = NDArray[np.float64]
Parts = Sequence[Trajectories]


class Gradient(Protocol):
    """d loss / d parameters."""

    def norm(self) -> float: ...
    def dot(self, other: Any) -> float: ...
    def norm_by_layer(self) -> dict[str, float]: ...


class Gradients(Protocol):
    """The gradients of several vectors of coefficients."""

    @property
    def whole(self) -> Sequence[Any]: ...  # [K] Gradient
    @property
    def sketches(self) -> Array | None: ...  # [K, rows with an unmasked token, dims]
    @property
    def backwards(self) -> int: ...


class Scores(Protocol):
    """Log-probs and entropies of every unmasked token, nats."""

    @property
    def log_probs(self) -> Array: ...
    @property
    def entropy(self) -> Array | None: ...


class StepNorm(Protocol):
    """The norms of one optimizer step."""

    @property
    def step_norm(self) -> float: ...  # norm of the change of the weights


class Learner(Protocol):
    """A model that gives log-probs and gradients, and takes steps."""

    def log_probs(self, parts: Parts, *, entropy: bool = False) -> Scores: ...
    def gradients(
        self, parts: Parts, coefficients: Array, *, sketch: SketchSettings | None = None
    ) -> Gradients: ...
    def apply(self, gradient: Any, settings: OptimizerSettings) -> StepNorm: ...
    def snapshot(self) -> Any: ...
    def load_snapshot(self, snapshot: Any) -> None: ...
    def restore(self) -> None: ...
    def save(self, folder: Path) -> None: ...


class Fresh(Struct, frozen=True, kw_only=True):
    """New responses of the model in its present state, with their rewards."""

    parts: Parts
    reward: Array  # [rows]
    group: NDArray[np.uint64]  # [rows] by prompt


# Gives new responses to the batch's prompts, from how many in all (None: as many as were recorded)
# and a seed.
Sampler = Callable[[int | None, int], Fresh]
