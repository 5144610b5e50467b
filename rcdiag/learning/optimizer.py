"""Optimizer steps as trainers take them, which can be undone exactly."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor, nn

from rcdiag.learning.gradient import Gradient
from rcdiag.learning.training_settings import OptimizerSettings


class Snapshot(Struct, frozen=True):
    """A copy of weights and optimizer state, on the CPU."""

    masters: Mapping[str, Tensor]
    state: dict[str, Any] | None
    settings: OptimizerSettings | None


class Stepper:
    """Float32 weights with their optimizer, and the model's weights in its own precision.

    bfloat16 models keep float32 master weights, as FSDP's mixed precision and Megatron's optimizer
    do, since most steps are too small to change a bfloat16 number.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self.parameters = parameters
        self.masters: dict[str, Tensor] = {
            name: p if p.dtype == torch.float32 else p.detach().float().requires_grad_()
            for name, p in parameters.items()
        }
        self.settings: OptimizerSettings | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        self.loaded = self.snapshot()

    def apply(self, gradient: Gradient, settings: OptimizerSettings) -> float:
        """Take one step against the gradient of a loss; return the norm of the weights' change.

        The change is that of the float32 weights. A gradient whose norm is not finite takes no
        step, as in verl's `DataParallelPPOActor._optimizer_step` (verl/workers/actor/dp_actor.py).
        """
        self._prepare(settings)
        assert self.optimizer is not None
        for name, master in self.masters.items():
            master.grad = gradient.values[name].clone()
        limit = math.inf if settings.max_grad_norm is None else settings.max_grad_norm
        norm = nn.utils.clip_grad_norm_(self.masters.values(), limit)
        before = {name: master.detach().clone() for name, master in self.masters.items()}
        with torch.no_grad():
            if torch.isfinite(norm):
                self.optimizer.step()
            for master in self.masters.values():
                master.grad = None
            self._store()
            return _distance(before, self.masters)

    def _prepare(self, settings: OptimizerSettings) -> None:
        """Create the optimizer at the first step; later steps may change only its learning rate."""
        if self.optimizer is None or self.settings is None:
            self.optimizer = make_optimizer(self.masters, settings)
        elif replace(settings, learning_rate=0.0) != replace(self.settings, learning_rate=0.0):
            raise ValueError("other optimizer settings in mid-course: restore() first")
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate
        self.settings = settings

    def snapshot(self) -> Snapshot:
        state = None if self.optimizer is None else _to_cpu(self.optimizer.state_dict())
        masters = {name: _to_cpu(master.detach()) for name, master in self.masters.items()}
        return Snapshot(masters, state, self.settings)

    @torch.no_grad()
    def load(self, snapshot: Snapshot) -> None:
        """Restore weights and optimizer exactly."""
        for name, master in self.masters.items():
            master.copy_(snapshot.masters[name])
        self._store()
        self.optimizer, self.settings = None, snapshot.settings
        if snapshot.settings is not None and snapshot.state is not None:
            self.optimizer = make_optimizer(self.masters, snapshot.settings)
            self.optimizer.load_state_dict(copy.deepcopy(snapshot.state))

    def _store(self) -> None:
        for name, parameter in self.parameters.items():
            if self.masters[name] is not parameter:
                parameter.copy_(self.masters[name])


def make_optimizer(
    masters: Mapping[str, Tensor], settings: OptimizerSettings
) -> torch.optim.Optimizer:
    """Return the torch optimizer of float32 weights; ValueError for an unknown name."""
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.name == "sgd":
        return torch.optim.SGD(
            masters.values(), lr=rate, momentum=settings.momentum, weight_decay=decay
        )
    if settings.name == "adamw":
        return torch.optim.AdamW(
            masters.values(), lr=rate, betas=settings.betas, eps=settings.eps, weight_decay=decay
        )
    raise ValueError(f"optimizer `{settings.name}`: sgd or adamw")


def _distance(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> float:
    """Return the Euclidean norm of after - before, in float64."""
    squares = [float((after[k].double() - v.double()).square().sum()) for k, v in before.items()]
    return math.sqrt(sum(squares))


def _to_cpu(value: Any) -> Any:
    """Copy nested plain data with its tensors on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _to_cpu(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_to_cpu(item) for item in value]
    return value
