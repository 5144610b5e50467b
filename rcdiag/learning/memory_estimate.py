"""Estimate the memory of a training run before loading the model, and name settings that fit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import nn

from rcdiag.engines.checkpoint import resolve_model
from rcdiag.engines.hf import head as scoring_head
from rcdiag.engines.hf.model import choose_device
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError
from rcdiag.learning.policy import add_adapter
from rcdiag.learning.training_settings import MICRO_BATCH_TOKENS, LoraSettings
from rcdiag.table import free_memory as of_machine
from rcdiag.table.trajectories import Trajectories


class ModelSize(Struct, frozen=True, kw_only=True):
    """The sizes of a model that determine the memory of training."""

    parameters: int
    trained: int
    layers: int
    hidden: int
    heads: int
    products: int  # values of inputs and outputs of one layer's linear maps, per token
    norms: int  # values that one layer's normalisations keep, per token


def model_size(spec: PolicySpec, lora: LoraSettings | None) -> ModelSize:
    """Measure a model that is built on torch's meta device, without memory or weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    trust = bool(spec.options.get("trust_remote_code", False))
    stored = AutoConfig.from_pretrained(resolve_model(spec.model), trust_remote_code=trust)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(stored, trust_remote_code=trust)
    config = model.config.get_text_config()
    linears = [m for m in model.base_model.modules() if isinstance(m, nn.Linear)]
    if lora is None and spec.options.get("adapter"):
        from peft import PeftConfig

        adapter: Any = PeftConfig.from_pretrained(spec.options["adapter"])
        targets = adapter.target_modules
        targets = targets if isinstance(targets, str) else tuple(targets)
        lora = LoraSettings(rank=adapter.r, targets=targets)
    if lora is not None:
        model = add_adapter(model, lora)
    return ModelSize(
        parameters=sum(p.numel() for p in model.parameters()),
        trained=sum(p.numel() for p in model.parameters() if p.requires_grad),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        products=sum(m.in_features + m.out_features for m in linears) // config.num_hidden_layers,
        # For the norms before attention and MLP: the float32 copy, its scaled form, the result.
        norms=2 * 3 * config.hidden_size,
    )


STATE_BYTES = {"sgd": 4, "adamw": 8}  # per trained parameter: momentum; two moments


class TrainingPlan(Struct, frozen=True, kw_only=True):
    """Everything about a training run that its memory depends on."""

    spec: PolicySpec
    presets: int  # gradients held at once
    copies: int = 0  # copies of trained weights kept on the CPU, in a replay over several steps
    optimizer: str = "adamw"
    lora: LoraSettings | None = None
    checkpointing: bool = False
    batch_tokens: int | None = None

    @property
    def device(self) -> torch.device:
        return choose_device(self.spec.options.get("device"))


class MemoryNeed(Struct, frozen=True, kw_only=True):
    """Bytes needed on the model's device for training; `copies` are on the CPU."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    copies: int

    def on(self, device: str) -> int:
        """Return the peak of the bytes on the model's device.

        The gradients of all presets are freed before copies are made.
        """
        held = self.weights + self.optimizer + self.activations
        if device == "cpu":
            return held + max(self.gradients, self.copies)
        return held + self.gradients


def memory_needed(plan: TrainingPlan, parts: Sequence[Trajectories]) -> MemoryNeed:
    """Estimate the bytes of a training run on these rows.

    Activations are right within a factor of two (tested on the sample policy).
    """
    size = model_size(plan.spec, plan.lora)
    longest = 0
    for part in parts:
        prompts = 0 if part.prompt_ids is None else part.prompt_ids.lengths
        longest = max(longest, int((prompts + part.response_ids.lengths).max(initial=0)))
    tokens = max(plan.batch_tokens or MICRO_BATCH_TOKENS[plan.device.type], longest)
    width = 4 if plan.spec.dtype == "float32" else 2
    masters = 0 if width == 4 or plan.lora else 4
    # A step keeps gradient and earlier weights in float32; a CPU also keeps the loaded weights.
    step = 12 if plan.device.type == "cpu" else 8  # bytes a parameter
    return MemoryNeed(
        # Autocast keeps a bfloat16 copy of the weights.
        weights=size.parameters * (width + (2 if "autocast" in plan.spec.options else 0)),
        # The gradients of the presets, and the one from the current backward pass.
        gradients=size.trained * (4 * plan.presets + width),
        optimizer=size.trained * (masters + STATE_BYTES[plan.optimizer] + step),
        activations=_activations(plan, size, tokens, longest),
        copies=size.trained * (4 + STATE_BYTES[plan.optimizer]) * plan.copies,
    )


def _activations(plan: TrainingPlan, size: ModelSize, tokens: int, longest: int) -> int:
    """Return the bytes that one micro-batch keeps for its backward pass and logits.

    For each token and layer: inputs and outputs of its products, and the norms' float32 copies.
    With checkpointing: the layers' inputs, and the values of one layer at a time. Eager attention
    keeps its attention weights, which with bfloat16 it also holds in float32.
    """
    low = plan.spec.dtype == "bfloat16" or "autocast" in plan.spec.options
    width = 2 if low else 4
    layer = tokens * (width * size.products + 4 * size.norms)
    if plan.spec.options.get("attention") == "eager":
        layer += tokens * longest * size.heads * (6 if low else 4)
    inputs = tokens * size.hidden * width * size.layers
    body = inputs + layer if plan.checkpointing else layer * size.layers
    return body + 5 * 4 * scoring_head.LOGITS_AT_ONCE[plan.device.type]


def free_memory(device: torch.device) -> int:
    """Return the free bytes of a GPU, or of this machine for a CPU.

    A system that does not report free memory is assumed to have enough.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = of_machine.free_memory()
    return sys.maxsize if free is None else free


def check_memory(plan: TrainingPlan, parts: Sequence[Trajectories]) -> None:
    """Refuse a training run that does not fit, and name settings with which it would."""
    free = {device.type: free_memory(device) for device in (torch.device("cpu"), plan.device)}
    need = memory_needed(plan, parts)
    if _fits(plan, need, free):
        return
    fitting = [
        f"{name} ({_gb(smaller.on(plan.device.type))})"
        for name, other in _alternatives(plan)
        if _fits(plan, smaller := memory_needed(other, parts), free)
    ]
    copies = f", {plan.copies} copies on cpu {_gb(need.copies)}" if plan.copies else ""
    raise RcdiagError(
        f"model {plan.spec.model}: training needs about {_gb(need.on(plan.device.type))} on "
        f"{plan.device.type} (weights {_gb(need.weights)}, {plan.presets} gradients "
        f"{_gb(need.gradients)}, {plan.optimizer} {_gb(need.optimizer)}, activations "
        f"{_gb(need.activations)}{copies}), and "
        + ", ".join(f"{_gb(bytes_)} are free on {kind}" for kind, bytes_ in free.items()),
        hint=f"these would fit: {'; '.join(fitting)}" if fitting else "take a larger machine",
    )


def _fits(plan: TrainingPlan, need: MemoryNeed, free: dict[str, int]) -> bool:
    return need.on(plan.device.type) <= free[plan.device.type] and need.copies <= free["cpu"]


def _alternatives(plan: TrainingPlan) -> list[tuple[str, TrainingPlan]]:
    """Return plans that need less memory, with their names.

    The changes are ordered from least to most intrusive and accumulate; LoRA alone comes last.
    """
    tokens = (plan.batch_tokens or MICRO_BATCH_TOKENS[plan.device.type]) // 4
    half = PolicySpec(**{**plan.spec.to_dict(), "dtype": "bfloat16"})
    ways: list[tuple[str, dict[str, Any]]] = [
        (f"micro-batches of {tokens:,} tokens", {"batch_tokens": tokens}),
        ("gradient checkpointing", {"checkpointing": True}),
        ("one preset at a time", {"presets": 1, "copies": min(plan.copies, 2)}),
        ("bfloat16", {"spec": half}),
        ("LoRA of rank 16", {"lora": LoraSettings()}),
    ]
    plans, names, current = [], [], plan
    for name, change in ways:
        current = replace(current, **change)
        names.append(name)
        plans.append((" + ".join(names), current))
    return [*plans, (ways[-1][0], replace(plan, lora=LoraSettings()))]


def _gb(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"
