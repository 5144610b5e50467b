"""Put the scoring model in place of the architecture under score, in every process of an engine.

A vLLM plugin (entry point `vllm.general_plugins`), because tensor-parallel workers are processes
that vLLM starts itself. Without the environment variable it does nothing.
"""

from __future__ import annotations

import os

ARCHITECTURE = "RCDIAG_SCORED_ARCHITECTURE"


def register() -> None:
    """Register the scoring model under the name of the architecture that is scored.

    The name stays, because vLLM looks up model-specific settings by it.
    """
    architecture = os.environ.get(ARCHITECTURE)
    if architecture is None:
        return
    from vllm import ModelRegistry

    from rcdiag.engines.vllm.prefill import scoring_class

    model_class = ModelRegistry.models[architecture].load_model_cls()
    if not getattr(model_class, "is_pooling_model", False):
        ModelRegistry.register_model(architecture, scoring_class(model_class))
