"""Settings of training as plain data, without importing torch."""

from __future__ import annotations

from msgspec import Struct

# Tokens of one micro-batch with padding. More than for a forward pass alone, since each micro-batch
# takes one backward pass for each family of presets.
MICRO_BATCH_TOKENS = {"cpu": 2_048, "cuda": 32_768}


class LoraSettings(Struct, frozen=True, kw_only=True):
    """Low-rank adapters that are trained instead of the weights; `targets` as in peft."""

    rank: int = 16
    alpha: float = 32.0
    targets: str | tuple[str, ...] = "all-linear"  # every linear layer but the head
    seed: int = 0  # of the factor that is initialised at random


class OptimizerSettings(Struct, frozen=True, kw_only=True):
    """Settings of torch.optim, and the gradient norm above which the gradient is scaled down."""

    name: str  # sgd or adamw
    learning_rate: float
    momentum: float = 0.0  # sgd
    betas: tuple[float, float] = (0.9, 0.999)  # adamw
    eps: float = 1e-8  # adamw
    weight_decay: float = 0.0
    max_grad_norm: float | None = None


class SketchSettings(Struct, frozen=True, kw_only=True):
    """Settings of the random projection of per-sequence gradients.

    Each parameter has `probes` entries, which are assigned to the `dims` entries of the sketch in
    turn, so that parameters share entries unless dims >= probes x parameters.
    """

    probes: int = 16
    dims: int = 4096
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.probes <= self.dims:
            raise ValueError(f"probes {self.probes}: not within 1 and dims ({self.dims})")
