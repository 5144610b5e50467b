"""A plugin that adds the scoring model to vLLM and, on some CPUs, replaces its matrix products.

It is a vLLM plugin (entry point `vllm.general_plugins`), because vLLM starts tensor-parallel
workers as processes of its own. Without the two environment variables it does nothing.
"""

from __future__ import annotations

import os
from typing import Any

ARCHITECTURE = "RCDIAG_SCORED_ARCHITECTURE"
ROUNDED_LINEAR = "RCDIAG_ROUNDED_LINEAR"  # "1": linear layers multiply in float32 and round


def register() -> None:
    """Apply the changes that the two environment variables ask for."""
    if os.environ.get(ROUNDED_LINEAR) == "1":
        _round_linear_layers()
    if (architecture := os.environ.get(ARCHITECTURE)) is not None:
        _register_scorer(architecture)


def _round_linear_layers() -> None:
    """Make vLLM's unquantised bfloat16 linear layers on a CPU multiply in float32 and round.

    Their weights are kept in float32, so that decoding does not cast them in every step.
    """
    import torch
    from vllm.model_executor.layers import utils

    from rcdiag.engines.matmul import rounded_linear

    native = utils.dispatch_cpu_unquantized_gemm
    if getattr(native, "rounds", False):
        return

    def dispatch(layer: Any, remove_weight: bool) -> None:
        weight = layer.weight
        if weight.is_meta or weight.ndim != 2 or weight.dtype != torch.bfloat16:
            native(layer, remove_weight)
            return
        wide = weight.detach().float()
        layer.cpu_linear = lambda x, weight, bias: rounded_linear(x, wide, bias)
        if remove_weight:
            layer.weight = torch.nn.Parameter(weight.new_empty(0), requires_grad=False)

    dispatch.rounds = True  # type: ignore[attr-defined]
    utils.dispatch_cpu_unquantized_gemm = dispatch


def _register_scorer(architecture: str) -> None:
    """Register the scoring model under the name of the architecture that it replaces.

    The name must stay, because vLLM looks up model-specific settings by it.
    """
    from vllm import ModelRegistry

    from rcdiag.engines.vllm.prefill import scoring_class

    model_class = ModelRegistry.models[architecture].load_model_cls()
    if not getattr(model_class, "is_pooling_model", False):
        ModelRegistry.register_model(architecture, scoring_class(model_class))
