"""Load a policy to train it: all its weights, or low-rank adapters on them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rcdiag.engines.checkpoint import check_checkpoint
from rcdiag.engines.hf.model import (
    body_and_head,
    choose_device,
    dtype_named,
    head_is_known,
    load_model,
)
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError
from rcdiag.learning.lora import add_adapter, train_adapter
from rcdiag.learning.rows import MicroBatch
from rcdiag.learning.settings import LoraSettings

DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class Policy:
    """A model in the pieces that gradients need. Dropout off, no cache, TF32 off."""

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
        """The trained ones, each once."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def precision(self) -> contextlib.AbstractContextManager:
        autocast = self.spec.options.get("autocast")
        if autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=dtype_named("autocast", autocast))

    def states(self, batch: MicroBatch) -> Tensor:
        """[tokens, width] the state before each unmasked token."""
        with self.precision():
            hidden = self.body(input_ids=batch.ids, use_cache=False).last_hidden_state
        return hidden[batch.row, batch.place]


def load_policy(spec: PolicySpec, lora: LoraSettings | None, checkpointing: bool) -> Policy:
    """The model of a `hf` policy with its trained parameters set."""
    _check_spec(spec, lora)
    device = choose_device(spec.options.get("device"))
    folder = check_checkpoint(spec.model)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    transformers.utils.logging.disable_progress_bar()  # the caller says what goes on
    model = load_model(spec, folder.as_posix(), device)
    if lora is not None:
        model = add_adapter(model, lora)
    elif spec.options.get("adapter"):
        train_adapter(model)
    body, to_logits = body_and_head(model, None)
    policy = Policy(spec, folder, model, body, to_logits, device)
    _check_head(policy)
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
    for option in ("lm_head", "compile"):
        if spec.options.get(option):
            raise RcdiagError(
                f"policy `{spec.name}`: {option}= is for scoring only", hint="leave it out"
            )
    if lora is not None and spec.options.get("adapter"):
        raise RcdiagError(
            f"policy `{spec.name}`: it has an adapter already, which is what would be trained",
            hint="leave out the LoRA settings, or adapter=",
        )


@torch.no_grad()
def _check_head(policy: Policy) -> None:
    """Body and head put together here give the logits of the model's own forward.

    An architecture that changes its logits in a way that is not known must
    not give plausible gradients.
    """
    exact = policy.spec.dtype == "float32" and "autocast" not in policy.spec.options
    with policy.precision():
        known = head_is_known(policy.model, policy.body, policy.to_logits, exact=exact)
    if not known or not isinstance(policy.head, nn.Linear):
        raise RcdiagError(
            f"model {policy.spec.model}: architecture `{policy.model.config.model_type}` makes its "
            "logits in a way that rcdiag does not know",
            hint="replay without a model, and report the architecture",
        )


def _checkpoint_layers(policy: Policy) -> None:
    """Keep only the input of each decoder layer, and run the layer again in the backward.

    Not by transformers' own switch, which works in training mode only, where dropout is on.
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
