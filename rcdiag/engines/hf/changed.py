"""Apply a `Change` of `rcdiag.engines.changes` to a loaded model for the time of a `with` block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rcdiag.engines.changes import (
    Change,
    Moved,
    NormEpsilon,
    PositionScale,
    Quantised,
    RotaryBase,
    Shards,
    SwappedExperts,
)
from rcdiag.engines.checkpoint import weight_files
from rcdiag.errors import RcdiagError

FLOAT8_MAX = 448.0  # the largest value of float8 e4m3


@contextlib.contextmanager
def changed(model: Any, change: Change | None) -> Iterator[None]:
    """Apply a change to the model for the `with` block, and undo it at the end."""
    if isinstance(change, (RotaryBase, PositionScale)):
        with _rotary(model, change):
            yield
    elif isinstance(change, NormEpsilon):
        with _epsilon(model, change.epsilon):
            yield
    elif isinstance(change, (Quantised, Moved, Shards, SwappedExperts)):
        with _weights(model, _edited(model, change)):
            yield
    else:
        yield  # the forward pass itself applies windows, caches and precision


@contextlib.contextmanager
def _rotary(model: Any, change: RotaryBase | PositionScale) -> Iterator[None]:
    """Change the frequencies of the rotary embedding."""
    modules = [module for module in model.modules() if hasattr(module, "inv_freq")]
    kept = [module.inv_freq for module in modules]
    for module, frequencies in zip(modules, kept, strict=True):
        if isinstance(change, PositionScale):
            module.inv_freq = frequencies * change.factor
        else:
            share = torch.arange(len(frequencies), device=frequencies.device) / len(frequencies)
            module.inv_freq = frequencies * change.factor ** (-share)
    try:
        yield
    finally:
        for module, frequencies in zip(modules, kept, strict=True):
            module.inv_freq = frequencies


@contextlib.contextmanager
def _epsilon(model: Any, epsilon: float) -> Iterator[None]:
    """Set the epsilon of every normalisation layer."""
    kept = [
        (module, name, getattr(module, name))
        for module in model.modules()
        for name in ("variance_epsilon", "eps")
        if isinstance(getattr(module, name, None), float)
    ]
    for module, name, _ in kept:
        setattr(module, name, epsilon)
    try:
        yield
    finally:
        for module, name, before in kept:
            setattr(module, name, before)


@contextlib.contextmanager
def _weights(model: Any, edited: Mapping[str, Tensor]) -> Iterator[None]:
    """Replace the values of the parameters in `edited`."""
    parameters = dict(model.named_parameters())
    kept = {name: parameters[name].data for name in edited}
    for name, value in edited.items():
        parameters[name].data = value
    try:
        yield
    finally:
        for name, value in kept.items():
            parameters[name].data = value


def _edited(model: Any, change: Quantised | Moved | Shards | SwappedExperts) -> dict[str, Tensor]:
    """Return the parameters that a change of weights affects, with their changed values."""
    parameters = {name: value.data for name, value in model.named_parameters()}
    if isinstance(change, Quantised):
        return {
            name: _quantised(value, change)
            for name, value in parameters.items()
            # the matrices of linear layers inside the decoder
            if value.ndim >= 2 and ".layers." in name
            if change.attention or not is_attention(name)
        }
    if isinstance(change, Moved):
        others = stored_weights(change.folder)
        if change.part == "head":
            return {}  # `moved_head` handles it, also where head and embedding are tied
        return {
            name: value + change.fraction * (others[name].to(value) - value)
            for name, value in parameters.items()
            if name in others and in_part(name, change.part)
        }
    if isinstance(change, Shards):
        return {name: _sharded(parameters[name], change) for name in change.tensors}
    edited = {
        name: value.clone()
        for name, value in parameters.items()
        if f".layers.{change.layer}." in name and ".experts." in name
    }
    one, other = change.one, change.other
    for value in edited.values():  # experts are indices of the first axis
        value[[one, other]] = value[[other, one]]
    return edited


def moved_head(weight: Tensor, change: Change | None, name: str) -> Tensor:
    """Return the head's weight under `Moved(part="head")`; unchanged under other changes."""
    if not (isinstance(change, Moved) and change.part == "head"):
        return weight
    others = stored_weights(change.folder)
    found = others.get("lm_head.weight", others.get(name))
    return weight if found is None else weight + change.fraction * (found.to(weight) - weight)


def is_attention(name: str) -> bool:
    """Tell whether a parameter belongs to attention."""
    return ".self_attn." in name or ".attention." in name


def in_part(name: str, part: str) -> bool:
    """Tell whether a parameter belongs to the part of a model that `Moved` names."""
    if part == "attention":
        return is_attention(name)
    if part == "mlp":
        return ".mlp." in name
    if part == "embedding":
        return "embed_tokens" in name or "lm_head" in name
    if part == "norms":
        return "norm" in name
    if part.startswith("layers."):
        wanted = part.removeprefix("layers.").split("+")
        return any(f".layers.{layer}." in name for layer in wanted)
    return part == "all"


def _sharded(value: Tensor, change: Shards) -> Tensor:
    """Copy one rank's part of a tensor over another rank's, or exchange the two."""
    made = value.clone()
    width = value.shape[change.axis] // change.ranks
    at = made.narrow(change.axis, change.at * width, width)
    of = made.narrow(change.axis, change.of * width, width)
    first, second = at.clone(), of.clone()
    at.copy_(second)
    if change.exchanged:
        of.copy_(first)
    return made


def _quantised(value: Tensor, change: Quantised) -> Tensor:
    """Round a weight to a coarser format; scales are per tensor, row, or group within a row."""
    if change.per == "tensor":
        parts = value.reshape(1, -1)
    elif change.per == "group" and value.shape[-1] % change.group == 0:
        parts = value.reshape(-1, change.group)
    else:
        parts = value.reshape(-1, value.shape[-1])
    most = parts.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12)
    if change.form == "fp8":
        scale = most / FLOAT8_MAX
        made = float8(parts / scale) * scale
    else:
        levels = 127.0 if change.form == "int8" else 7.0
        scale = most / levels
        made = (parts / scale).round() * scale
    return made.reshape(value.shape).to(value.dtype)


def float8(values: Tensor) -> Tensor:
    """Round values to float8 e4m3, saturated at its largest value."""
    held = values.clamp(-FLOAT8_MAX, FLOAT8_MAX).to(torch.float8_e4m3fn)
    return held.to(values.dtype)


@cache
def stored_weights(folder: Path) -> Mapping[str, Tensor]:
    """Read the tensors of a checkpoint's safetensors files, in float32."""
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        if path.suffix == ".safetensors":
            tensors |= {name: value.float() for name, value in load_file(path).items()}
    if not tensors:
        raise RcdiagError(
            f"checkpoint {folder}: no safetensors files", hint="save it with save_pretrained"
        )
    return tensors
