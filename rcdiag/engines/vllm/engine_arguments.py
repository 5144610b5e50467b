"""A vLLM engine is started with this environment, these options and this adapter."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rcdiag.engines.checkpoint import text_config
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError, did_you_mean


def set_environment(folder: Path, max_length: int, path: str) -> None:
    """Set the environment that vLLM reads when it is imported; variables that are set stay."""
    config = text_config(folder)
    heads = config.get("num_attention_heads", 1)
    width = config.get("head_dim") or config.get("hidden_size", 1) // heads
    per_token = (
        8 * config.get("num_hidden_layers", 1) * config.get("num_key_value_heads", heads) * width
    )
    # Room for eight of the longest sequences; the CPU build's own default is half the memory.
    gib = max(1, math.ceil(8 * max_length * per_token / 2**30))
    defaults = {
        "VLLM_CPU_KVCACHE_SPACE": str(gib),
        # vLLM's CPU build leaves one thread to torch's own operations otherwise.
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
        # Engine and rcdiag share a process: tensors come back without being serialised.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # `drain` travels to tensor-parallel workers, which are our own children.
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if path == "decode":
        # The second model runner has another interface for logits processors.
        defaults["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def engine_options(
    spec: PolicySpec, path: str, max_length: int, passed_on: Mapping[str, Any]
) -> dict[str, Any]:
    """Return vLLM's engine arguments: rcdiag's own, and those that a user passes on to vLLM."""
    import torch

    _check_device(spec, torch.cuda.is_available())
    options: dict[str, Any] = {
        "dtype": spec.dtype,
        "seed": 0,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "max_model_len": max(max_length, 2),
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
        # vLLM gives pooling models a float32 head; a sampler has the model's own.
        "hf_overrides": {"head_dtype": spec.options.get("lm_head", "model")},
        "enable_lora": "adapter" in spec.options,
    }
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        options["gpu_memory_utilization"] = round(min(0.85, 0.9 * free / total), 3)
    if path == "decode":
        # The processor counts the tokens done so far; asynchronous steps would run ahead of it.
        options["async_scheduling"] = False
    return options | _known(passed_on)


def _check_device(spec: PolicySpec, have_gpu: bool) -> None:
    """Refuse options on which vLLM's CPU build fails deep inside a kernel."""
    quantization = str(spec.options.get("quantization", ""))
    if not have_gpu and "fp8" in quantization:
        raise RcdiagError(
            f"policy `{spec.name}`: quantization={quantization} needs a GPU; there is none here",
            hint="run it on a GPU machine; on a CPU kv_cache_dtype=fp8 or a lower dtype work",
        )


def _known(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options that vLLM has and that leave its log-probs right, or refuse them."""
    from vllm import EngineArgs

    names = {field.name for field in dataclasses.fields(EngineArgs)}
    for key in options:
        if key not in names:
            hint = f"{did_you_mean(key, sorted(names))}see vllm.EngineArgs"
            raise RcdiagError(f"vllm has no engine option `{key}`", hint=hint)
    for key in ("enable_prefix_caching", "speculative_config"):
        if options.get(key):
            raise RcdiagError(
                f"{key}={options[key]}: log-probs scored with it are wrong (vllm #42019, #53488)",
                hint=f"leave {key} out",
            )
    return dict(options)


def lora_request(adapter: str | None) -> Any:
    if adapter is None:
        return None
    from safetensors import safe_open
    from vllm.lora.request import LoRARequest

    weights = Path(adapter) / "adapter_model.safetensors"
    if not weights.is_file():
        raise RcdiagError(f"adapter={adapter}: no {weights.name} in it", "give a PEFT LoRA folder")
    with safe_open(weights, "pt") as tensors:
        names = tensors.keys()  # no mapping: it cannot be iterated itself
    changed = [name for name in names if "lm_head" in name or "embed_tokens" in name]
    if changed:
        raise RcdiagError(
            f"adapter={adapter} changes head or embedding ({changed[0]}), which vllm drops from "
            "log-probs (vllm #51594)",
            hint="score it with hf, or merge the adapter into the model",
        )

    return LoRARequest("adapter", 1, str(Path(adapter).resolve()))
