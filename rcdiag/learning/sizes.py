"""The sizes of a model, from its configuration alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rcdiag.engines.checkpoint import resolve_model
from rcdiag.engines.spec import PolicySpec
from rcdiag.learning.lora import add_adapter
from rcdiag.learning.settings import LoraSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSize:
    parameters: int
    trained: int
    layers: int
    hidden: int
    heads: int
    products: int  # inputs and outputs of all products of one layer, per token
    norms: int  # numbers that the norms of one layer see, per token


def model_size(spec: PolicySpec, lora: LoraSettings | None) -> ModelSize:
    """Made on torch's meta device: no memory, no weights."""
    model = _empty_model(spec)
    config = model.config.get_text_config()
    linears = [m for m in model.base_model.modules() if isinstance(m, nn.Linear)]
    if lora is not None or spec.options.get("adapter"):
        model = add_adapter(model, lora or _adapter_settings(spec))
    return ModelSize(
        parameters=sum(p.numel() for p in model.parameters()),
        trained=sum(p.numel() for p in model.parameters() if p.requires_grad),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        products=sum(m.in_features + m.out_features for m in linears) // config.num_hidden_layers,
        # Before attention and before the MLP: the float32 copy, its scaled form, and the result.
        norms=2 * 3 * config.hidden_size,
    )


def _empty_model(spec: PolicySpec) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    trust = bool(spec.options.get("trust_remote_code", False))
    config = AutoConfig.from_pretrained(resolve_model(spec.model), trust_remote_code=trust)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=trust)


def _adapter_settings(spec: PolicySpec) -> LoraSettings:
    """Those of the adapter that the policy has."""
    from peft import PeftConfig

    found: Any = PeftConfig.from_pretrained(spec.options["adapter"])
    targets = found.target_modules
    return LoraSettings(
        rank=found.r, targets=targets if isinstance(targets, str) else tuple(targets)
    )
