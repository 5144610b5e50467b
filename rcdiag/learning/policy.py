"""Load a policy for training, with or without low-rank adapters, and save it to a folder."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rcdiag.engines.checkpoint import check_checkpoint, weight_files
from rcdiag.engines.hf.model import (
    body_and_head,
    check_head,
    choose_device,
    dtype_named,
    load_model,
)
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError, first_line
from rcdiag.extras import saying_what_to_install
from rcdiag.files import name_beside, not_writable
from rcdiag.learning.micro_batches import MicroBatch
from rcdiag.learning.training_settings import LoraSettings

DTYPES = ("float32", "bfloat16")
ADAPTER = "default"  # peft's name for a model's only adapter


class TrainablePolicy(Struct, frozen=True):
    """A model in the parts that gradients need; without dropout, key-value cache and TF32."""

    spec: PolicySpec
    folder: Path
    model: Any
    body: Any
    to_logits: Callable[[Tensor], Tensor]
    device: torch.device

    @property
    def head(self) -> Any:
        return self.model.get_output_embeddings()

    @property
    def vocab_size(self) -> int:
        return int(self.head.weight.shape[0])

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the trained parameters by name, shared ones once."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def precision(self) -> contextlib.AbstractContextManager[None]:
        """Return the context of a forward pass: autocast if the policy has it."""
        autocast = self.spec.options.get("autocast")
        if autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=dtype_named("autocast", autocast))

    def states(self, batch: MicroBatch) -> Tensor:
        """Return the decoder's last hidden state before each unmasked token, [tokens, width]."""
        with self.precision():
            hidden = self.body(input_ids=batch.ids, use_cache=False).last_hidden_state
        states: Tensor = hidden[batch.row, batch.place]
        return states


def load_policy(
    spec: PolicySpec, lora: LoraSettings | None, checkpointing: bool
) -> TrainablePolicy:
    """Load the model of a `hf` policy, and set which of its parameters are trained.

    These are all, or those of a new adapter (`lora`), or those of the policy's own adapter.
    """
    _check_spec(spec, lora)
    device = choose_device(spec.options.get("device"))
    folder = check_checkpoint(spec.model)
    model = load_model(spec, folder.as_posix(), device)
    if lora is not None:
        model = add_adapter(model, lora)
    elif spec.options.get("adapter"):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("lora_" in name)  # of the adapter alone
    body, to_logits = body_and_head(model, None)
    policy = TrainablePolicy(spec, folder, model, body, to_logits, device)
    with policy.precision():
        check_head(spec, model, body, to_logits)
    if not isinstance(policy.head, nn.Linear):
        raise RcdiagError(
            f"model {spec.model}: the head of architecture `{model.config.model_type}` is no "
            "linear layer, so rcdiag does not know its gradient",
            hint="replay without a model, and report the architecture",
        )
    if checkpointing:
        _checkpoint_layers(policy)
    return policy


def _check_spec(spec: PolicySpec, lora: LoraSettings | None) -> None:
    if spec.backend != "hf" or spec.dtype not in DTYPES:
        raise RcdiagError(
            f"policy `{spec.name}`: {spec.backend}:{spec.dtype} cannot be trained",
            hint="hf:float32, hf:bfloat16 or hf:float32,autocast=bfloat16",
        )
    if spec.options.get("autocast", "bfloat16") != "bfloat16":
        raise RcdiagError(
            f"policy `{spec.name}`: autocast={spec.options['autocast']} would need loss scaling",
            hint="autocast=bfloat16",
        )
    for option in ("lm_head", "compile", "python"):
        if spec.options.get(option):
            raise RcdiagError(
                f"policy `{spec.name}`: {option}= is for scoring only", hint="leave it out"
            )
    if lora is not None and spec.options.get("adapter"):
        raise RcdiagError(
            f"policy `{spec.name}`: it already has an adapter, which would be trained",
            hint="leave out either the LoRA settings or adapter=",
        )


def _checkpoint_layers(policy: TrainablePolicy) -> None:
    """Keep only the input of each decoder layer, and run the layer again in the backward pass.

    transformers' own switch works in training mode only, which also turns dropout on.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [m for m in policy.body.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        raise RcdiagError(
            f"model {policy.spec.model}: its layers are not marked for gradient checkpointing",
            hint="leave checkpointing off, and take smaller micro-batches",
        )
    for layer in layers:
        layer.forward = functools.partial(
            checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False
        )


def add_adapter(model: Any, settings: LoraSettings) -> Any:
    """Add a new adapter, the only part that is trained; at first it changes no output."""
    with saying_what_to_install("LoRA: "):
        from peft import LoraConfig, get_peft_model
    targets = settings.targets
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )
    devices = [p.device for p in model.parameters() if p.device.type == "cuda"][:1]
    with torch.random.fork_rng(devices):
        torch.manual_seed(settings.seed)
        try:
            return get_peft_model(model, config).get_base_model()
        except ValueError as error:
            raise RcdiagError(f"LoRA: {first_line(error)}", "name layers of this model") from error


def save_adapter(model: Any, folder: Path) -> None:
    """Write configuration and weights of the adapter as peft's `save_pretrained` does."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    state = get_peft_model_state_dict(model, adapter_name=ADAPTER)
    # peft stores names with the prefix of its wrapper, from which `model` was taken out.
    named = {f"base_model.model.{k}": v.contiguous().cpu() for k, v in state.items()}
    save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    model.peft_config[ADAPTER].save_pretrained(folder)


def save_policy(policy: TrainablePolicy, folder: Path) -> None:
    """Write the trained adapter, or the whole model and the other files of its folder.

    The folder appears only once it is complete.
    """
    check_free(folder)
    temporary = name_beside(folder)
    try:
        temporary.mkdir(parents=True)
        if any("lora_" in name for name in policy.parameters):
            save_adapter(policy.model, temporary)
        else:
            policy.model.save_pretrained(temporary)
            # Tokenizer, templates and code: all files but weights.
            left_out = {path.name for path in weight_files(policy.folder)}
            for path in policy.folder.iterdir():
                weights = path.name in left_out or path.name.endswith(".index.json")
                if path.is_file() and not weights and not (temporary / path.name).exists():
                    shutil.copyfile(path, temporary / path.name)
        os.replace(temporary, folder)
    except OSError as error:
        raise not_writable(folder, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_free(folder: Path) -> None:
    """Refuse a folder that exists, so that no checkpoint is overwritten."""
    if folder.exists():
        raise RcdiagError(f"{folder}: already there", hint="give a folder that does not exist")
