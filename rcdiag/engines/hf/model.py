"""Load a transformers model in a trainer's precision, and split it into decoder and head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
)

from rcdiag.engines.checkpoint import read_config
from rcdiag.engines.gpus import refuse_idle_gpus
from rcdiag.engines.hf.attention import REPEATED, attention_of
from rcdiag.engines.hf.layers import device_map, shares
from rcdiag.engines.matmul import cpu_name
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError, first_line
from rcdiag.extras import saying_what_to_install

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# Quantised checkpoints that transformers can dequantise to `dtype` (`dequantize` in its configs).
DEQUANTISED = ("fp8", "mxfp4")
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)

# Tokens in one forward, padding included. A GPU needs many to be busy: the MLP of a 7B model then
# holds 3 x 2.5 GB in float32 (width 18,944; half in bfloat16). A CPU is as fast with few, which fit
# into its caches and fragment the heap less (measured beside a small model: 50 to 95 MB, where
# 2,048 tokens took 120 to 185 MB).
BATCH_TOKENS = {"cpu": 768, "cuda": 32_768}


def choose_device(device: str | None) -> torch.device:
    """Return the requested device; without a request, the GPU if there is one, else the CPU."""
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


def gpu_devices(spec: PolicySpec, count: int) -> list[torch.device]:
    """Return the first `count` GPUs that are visible to this process; refuse if there are fewer."""
    if torch.cuda.device_count() < count:
        raise RcdiagError(
            f"policy `{spec.name}`: gpus={count}, and torch sees {torch.cuda.device_count()} GPUs",
            hint="take fewer, or a machine with more",
        )
    return [torch.device("cuda", number) for number in range(count)]


def dtype_named(option: str, name: str) -> torch.dtype:
    if name not in DTYPES:
        raise RcdiagError(f"{option}={name}: no such dtype", hint=f"one of {', '.join(DTYPES)}")
    return DTYPES[name]


def load_model(spec: PolicySpec, folder: str, device: torch.device) -> Any:
    """Load a checkpoint onto its device with the dtype, attention and adapter of a policy.

    TF32 is switched off for this process: float32 products would otherwise have its precision.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
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
    transformers.utils.logging.disable_progress_bar()  # callers show their own
    remote = bool(spec.options.get("trust_remote_code", False))
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=remote)
        _dequantise(config)
        model = _auto_class(config).from_pretrained(
            folder,
            config=config,
            dtype=DTYPES[spec.dtype],
            # Load as sdpa, so that a model without it (one with attention sinks) is refused.
            attn_implementation="sdpa" if attention == REPEATED else attention,
            # Load straight to the device: via host memory, N engines would need N copies there.
            device_map=_placement(spec, config, device),
            trust_remote_code=remote,
        )
        if attention == REPEATED:
            model.set_attn_implementation(REPEATED)
    except (ImportError, ValueError, OSError) as error:
        raise RcdiagError(
            f"policy `{spec.name}`: transformers cannot load {spec.model}: {first_line(error)}",
            hint="check the folder, the dtype and attention=",
        ) from error
    _check_dtypes(spec, model)
    if adapter := spec.options.get("adapter"):
        model = _with_adapter(model, adapter)
    return (model if spec.options.get("gpus", 1) > 1 else model.to(device)).eval()


def _placement(spec: PolicySpec, config: Any, device: torch.device) -> dict[str, Any]:
    """Return the `device_map` of a model: one device, or decoder layers over several GPUs."""
    gpus = int(spec.options.get("gpus", 1))
    if gpus == 1:
        return {"": device}
    with torch.device("meta"):
        skeleton = _auto_class(config).from_config(
            config, trust_remote_code=bool(spec.options.get("trust_remote_code", False))
        )
    return device_map(skeleton, [one.layers for one in shares(spec)], gpu_devices(spec, gpus))


def _dequantise(config: Any) -> None:
    """Make transformers dequantise weights of 8 or 4 bits at loading, on every device.

    On a GPU with float8 products transformers would otherwise multiply in float8 whatever the dtype
    (`quantizer_finegrained_fp8.py`), and round activations, too.
    """
    quantization = getattr(config, "quantization_config", None)
    if isinstance(quantization, dict) and quantization.get("quant_method") in DEQUANTISED:
        quantization["dequantize"] = True


def quantization_of(folder: Path, dtype: str) -> str | None:
    """Say how a checkpoint is quantised and what its weights are loaded as; None if it is not."""
    quantization = read_config(folder).get("quantization_config")
    if not isinstance(quantization, dict):
        return None
    method = str(quantization.get("quant_method"))
    return f"{method}, dequantised to {dtype}" if method in DEQUANTISED else method


def _check_dtypes(spec: PolicySpec, model: Any) -> None:
    """Refuse a model with float8 weights after loading, since its products would be in float8."""
    kept = {str(weight.dtype) for weight in model.parameters() if weight.dtype in FLOAT8}
    if kept:
        raise RcdiagError(
            f"policy `{spec.name}`: transformers {transformers.__version__} holds weights of "
            f"{spec.model} as {', '.join(sorted(kept))}, not as {spec.dtype}",
            hint="install a later transformers, which makes them wide at loading, or score it "
            "with vllm",
        )


def _auto_class(config: Any) -> Any:
    """Return the auto class of a checkpoint; some image-text models have no causal LM class.

    Such a model (Qwen3-VL) still scores rows that consist of text alone.
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
        raise RcdiagError(
            f"adapter={adapter}: {first_line(error)}", hint="give a PEFT LoRA folder"
        ) from error


def context_of(model: Any) -> int | None:
    """Return the model's maximum number of positions; None if its configuration has none."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def body_and_head(model: Any, head_dtype: str | None) -> tuple[Any, Callable[[Tensor], Tensor]]:
    """Split a model into its decoder and the function from hidden states to logits.

    `head_dtype` is the dtype of the output projection; None keeps the head's own.
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
                logits = torch.nn.functional.linear(hidden.to(weight), weight, bias)
        if scale != 1.0:
            logits = logits * scale
        return logits if cap is None else cap * torch.tanh(logits / cap)

    return model.base_model, to_logits


@torch.no_grad()
def check_head(
    spec: PolicySpec, model: Any, body: Any, to_logits: Callable[[Tensor], Tensor]
) -> None:
    """Refuse a model whose own forward gives other logits than decoder and head do together.

    Some architectures scale or cap logits in their forward. An unknown one would give wrong
    log-probs that look plausible.
    """
    size = model.get_output_embeddings().weight.shape[0]
    ids = torch.arange(8, device=model.device)[None] % size
    ours = to_logits(body(input_ids=ids, use_cache=False).last_hidden_state[0]).float()
    own = model(input_ids=ids, use_cache=False).logits[0].float().to(ours.device)
    # A float32 head on a low-precision decoder differs by low-precision rounding.
    exact = spec.dtype == "float32" and spec.options.get("autocast") is None
    rounding = 1e-4 if exact else 3e-2
    if not torch.allclose(ours, own, rtol=rounding, atol=rounding * float(own.abs().max())):
        raise RcdiagError(
            f"model {spec.model}: its forward changes the logits of architecture "
            f"`{model.config.model_type}` in a way that rcdiag does not know",
            hint="score it with vllm, or leave the model out, and report the architecture",
        )
