"""Load a transformers model as a trainer would hold it, and split it into body and head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
)

from rcdiag.engines.gpus import refuse_idle_gpus
from rcdiag.engines.hf.attention import REPEATED, attention_of
from rcdiag.engines.matmul import cpu_name
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError
from rcdiag.extras import saying_what_to_install

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# Tokens in one forward, padding included. A GPU wants many, to be busy: the MLP of a 7B model then
# holds 3 x 2.5 GB in float32 (width 18,944; half in bfloat16). A CPU is as quick with few, which
# stay in its caches and leave a heap in fewer pieces (measured: 50 to 95 MB beside a small model
# where 2,048 tokens took 120 to 185).
BATCH_TOKENS = {"cpu": 768, "cuda": 32_768}


def choose_device(device: str | None) -> torch.device:
    """Return the device that is asked for, or the GPU where there is one."""
    have_gpu = torch.cuda.is_available()
    if device is None and not have_gpu:
        refuse_idle_gpus()
    name = device or ("cuda" if have_gpu else "cpu")
    if name.split(":")[0] not in BATCH_TOKENS:
        raise RcdiagError(f"device={device}: not known", hint="device=cpu or device=cuda")
    if name.startswith("cuda") and not have_gpu:
        raise RcdiagError(f"device={device}: no CUDA GPU here", hint="leave device= out")
    return torch.device(name)


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu_name()


def dtype_named(option: str, name: str) -> torch.dtype:
    if name not in DTYPES:
        raise RcdiagError(f"{option}={name}: no such dtype", hint=f"one of {', '.join(DTYPES)}")
    return DTYPES[name]


def load_model(spec: PolicySpec, folder: str, device: torch.device) -> Any:
    """Load a checkpoint on its device, in its dtype, with its attention and adapter."""
    products = DTYPES[spec.options.get("autocast", spec.dtype)]
    attention = attention_of(spec.options.get("attention"), products, device)
    if attention.startswith("flash_attention") and (
        device.type != "cuda" or products == torch.float32
    ):
        raise RcdiagError(
            f"policy `{spec.name}`: attention={attention} needs a GPU and half precision; this is "
            f"{spec.dtype} on {device.type}",
            hint="attention=sdpa or attention=eager",
        )
    transformers.utils.logging.disable_progress_bar()  # rcdiag has its own
    remote = bool(spec.options.get("trust_remote_code", False))
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=remote)
        model = _auto_class(config).from_pretrained(
            folder,
            dtype=DTYPES[spec.dtype],
            # A model without sdpa (attention sinks, say) is refused; it would take any other name.
            attn_implementation="sdpa" if attention == REPEATED else attention,
            # Straight to the device: through host memory, engines side by side need N times it.
            device_map={"": device},
            trust_remote_code=remote,
        )
        if attention == REPEATED:
            model.set_attn_implementation(REPEATED)
    except (ImportError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise RcdiagError(
            f"policy `{spec.name}`: transformers cannot load {spec.model}: {reason}",
            hint="check the folder, the dtype and attention=",
        ) from error
    if adapter := spec.options.get("adapter"):
        model = _with_adapter(model, adapter)
    return model.to(device).eval()


def _auto_class(config: Any) -> Any:
    """Return what loads a checkpoint; one of images and text (Qwen3-VL) may have no causal class.

    It scores rows of text alone all the same.
    """
    causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and not causal:
        return transformers.AutoModelForImageTextToText
    return transformers.AutoModelForCausalLM


def _with_adapter(model: Any, adapter: str) -> Any:
    with saying_what_to_install(f"adapter={adapter}: "):
        from peft import PeftModel
    try:
        # Not merged: a trainer adds the low-rank product to each layer's output.
        return PeftModel.from_pretrained(model, adapter).get_base_model()
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise RcdiagError(f"adapter={adapter}: {reason}", hint="give a PEFT LoRA folder") from error


def context_of(model: Any) -> int | None:
    """Return the number of positions that a model knows; None without one in its configuration."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def body_and_head(model: Any, head_dtype: str | None) -> tuple[Any, Callable[[Tensor], Tensor]]:
    """Split a model into its decoder and the function from hidden states to logits.

    `head_dtype` is the dtype of the last product, None the head's own.
    """
    head = model.get_output_embeddings()
    config = model.config.get_text_config()
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma
    scale = getattr(config, "logit_scale", None) or 1.0  # Cohere
    scale /= getattr(config, "logits_scaling", None) or 1.0  # Granite
    if head_dtype is not None:
        wide = dtype_named("lm_head", head_dtype)
        weight = head.weight.detach().to(wide)
        bias = head.bias.detach().to(wide) if getattr(head, "bias", None) is not None else None

    def to_logits(hidden: Tensor) -> Tensor:
        if head_dtype is None:
            logits: Tensor = head(hidden)
        else:
            with torch.autocast(hidden.device.type, enabled=False):
                logits = torch.nn.functional.linear(hidden.to(wide), weight, bias)
        if scale != 1.0:
            logits = logits * scale
        return logits if cap is None else cap * torch.tanh(logits / cap)

    return model.base_model, to_logits


def head_is_known(
    model: Any, body: Any, to_logits: Callable[[Tensor], Tensor], *, exact: bool
) -> bool:
    """Tell whether body and head together give the logits of the model's own forward.

    `exact`: all in float32. A float32 head on a body in low precision differs from the model's own
    by the rounding that it is there to avoid.
    """
    size = model.get_output_embeddings().weight.shape[0]
    ids = torch.arange(8, device=model.device)[None] % size
    ours = to_logits(body(input_ids=ids, use_cache=False).last_hidden_state[0]).float()
    own = model(input_ids=ids, use_cache=False).logits[0].float()
    rounding = 1e-4 if exact else 3e-2
    return torch.allclose(ours, own, rtol=rounding, atol=rounding * float(own.abs().max()))
