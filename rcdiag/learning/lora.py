"""Low-rank adapters by peft: put them on, train them, write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rcdiag.errors import RcdiagError
from rcdiag.learning.settings import LoraSettings

ADAPTER = "default"  # peft's name for the only one


def add_adapter(model: Any, settings: LoraSettings) -> Any:
    """The model with a new adapter, which alone is trained; it starts as no change at all."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise RcdiagError(
            "LoRA needs the peft package", hint='pip install "rcdiag[lora]"'
        ) from error
    targets = settings.targets
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )
    devices = [p.device for p in model.parameters() if p.device.type == "cuda"][:1]
    with torch.random.fork_rng(devices):
        torch.manual_seed(settings.seed)
        try:
            return get_peft_model(model, config).get_base_model()
        except ValueError as error:
            reason = str(error).splitlines()[0]
            raise RcdiagError(f"LoRA: {reason}", hint="name layers of this model") from error


def train_adapter(model: Any) -> None:
    """Set the loaded adapter's parameters, and no others, to be trained."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)


def save_adapter(model: Any, folder: Path) -> None:
    """Write the adapter as peft's own `save_pretrained` would: configuration and weights."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    state = get_peft_model_state_dict(model, adapter_name=ADAPTER)
    # peft's names are those of its wrapper, which is not kept here.
    named = {f"base_model.model.{k}": v.contiguous().cpu() for k, v in state.items()}
    save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    model.peft_config[ADAPTER].save_pretrained(folder)
