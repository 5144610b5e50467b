"""The environment variables, engine arguments and adapter that a vLLM engine starts with."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from rcdiag.engines.checkpoint import check_checkpoint, read_config, text_config
from rcdiag.engines.matmul import kernel_environment
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError, did_you_mean


def set_environment(folder: Path, max_length: int, path: str, dtype: str) -> dict[str, str]:
    """Set the variables that vLLM reads at import; return those that affect its numbers.

    Variables that are already set keep their values; one that contradicts the policy is refused.
    """
    given = kernel_environment()  # before vLLM adds variables of its own, which differ by process
    defaults = {
        "VLLM_CPU_KVCACHE_SPACE": str(_cache_gib(folder, max_length)),
        # Otherwise vLLM's CPU build leaves one thread to torch's own operations.
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
        # With the engine in this process, tensors are returned without serialisation.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # `drain` is sent to tensor-parallel workers, which are child processes.
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    return given | _set_needed(path, dtype)


def _cache_gib(folder: Path, max_length: int) -> int:
    """Return the size of a KV cache for eight of the longest sequences, GiB.

    The default of vLLM's CPU build is half of the memory.
    """
    config = text_config(folder)
    heads = config.get("num_attention_heads", 1)
    width = config.get("head_dim") or config.get("hidden_size", 1) // heads
    per_token: int = (
        8 * config.get("num_hidden_layers", 1) * config.get("num_key_value_heads", heads) * width
    )
    return max(1, math.ceil(8 * max_length * per_token / 2**30))


def _set_needed(path: str, dtype: str) -> dict[str, str]:
    """Set the variables without which the policy's log-probs are not what its name says."""
    needed: dict[str, tuple[str, str]] = {}
    if path == "decode":
        why = "path=decode forces tokens through vLLM's first model runner"
        needed["VLLM_USE_V2_MODEL_RUNNER"] = ("0", why)
    if dtype == "float32":
        why = "vllm:float32 would multiply in TF32"
        needed["TRITON_F32_DEFAULT"] = ("ieee", why)  # tl.dot of Triton's attention
        needed["VLLM_FLOAT32_MATMUL_PRECISION"] = ("highest", why)
    for name, (value, why) in needed.items():
        if (found := os.environ.setdefault(name, value)) != value:
            raise RcdiagError(
                f"{name}={found} is set, and {why}", hint=f"unset it, or set it to {value}"
            )
    return {name: value for name, (value, _) in needed.items()}


def engine_options(
    spec: PolicySpec, path: str, max_length: int, passed_on: Mapping[str, Any]
) -> dict[str, Any]:
    """Return vLLM's engine arguments: rcdiag's own, and the user's options that are passed on."""
    import torch

    folder = check_checkpoint(spec.model)
    config = read_config(folder)
    sees_images = any(f"{what}_config" in config for what in ("vision", "audio"))
    have_gpu = torch.cuda.is_available()
    _check_installation(spec, sees_images, have_gpu)
    if path == "prefill":
        _check_dtype(spec, config)
    options: dict[str, Any] = {
        "dtype": spec.dtype,
        "seed": 0,
        # Samplers run compiled, with CUDA graphs; on a CPU compiling takes longer than scoring.
        "enforce_eager": not have_gpu,
        "enable_prefix_caching": False,
        "max_model_len": max(max_length, 2),
        # From vLLM 0.30 on, no image-text model starts without its tokenizer.
        "skip_tokenizer_init": not sees_images,
        "disable_log_stats": True,
        "enable_lora": "adapter" in spec.options,
    }
    if sees_images:  # all rows are text
        options["language_model_only"] = True
    if "adapter" in spec.options:
        options["max_lora_rank"] = _lora_rank(Path(spec.options["adapter"]))
    if have_gpu:
        free, total = torch.cuda.mem_get_info()
        options["gpu_memory_utilization"] = round(min(0.85, 0.9 * free / total), 3)
    if path == "decode":
        # The processor counts the tokens generated so far; asynchronous steps would run ahead.
        options["async_scheduling"] = False
    passed_on = _known(passed_on)
    overrides = dict(passed_on.pop("hf_overrides", {}))
    if "lm_head" in spec.options:
        overrides["head_dtype"] = spec.options["lm_head"]
    elif not _states_head(folder, passed_on, overrides):
        # vLLM gives pooling models a float32 head; use the dtype that the model has when sampling.
        overrides["head_dtype"] = "model"
    return options | passed_on | {"hf_overrides": overrides}


def _states_head(folder: Path, passed_on: Mapping[str, Any], overrides: dict[str, Any]) -> bool:
    """Tell whether the checkpoint's own configuration gives the head a dtype, for sampling too.

    vLLM's configuration classes may do so without a `head_dtype` in config.json (HYV4Config).
    """
    from vllm.transformers_utils.config import get_config

    config = get_config(
        passed_on.get("hf_config_path") or folder,
        trust_remote_code=bool(passed_on.get("trust_remote_code")),
        config_format=passed_on.get("config_format", "auto"),
        hf_overrides_kw=overrides,
    )
    return getattr(config, "head_dtype", None) is not None


def _check_dtype(spec: PolicySpec, config: Mapping[str, Any]) -> None:
    """Refuse `auto` if it gives the pooling model another dtype than a sampler.

    For a float32 checkpoint vLLM chooses float16 for pooling, by which prefill is scored here, and
    bfloat16 for generation (`_resolve_auto_dtype` in vllm/config/model.py).
    """
    inner = config.get("text_config") or {}
    names = ("dtype", "torch_dtype")  # as transformers 5 and 4 write it
    stated = next((part[name] for part in (config, inner) for name in names if part.get(name)), "")
    if spec.dtype == "auto" and stated in ("", "float32"):
        raise RcdiagError(
            f"policy `{spec.name}`: vllm:auto: {spec.model} is in {stated or 'no stated dtype'}, "
            "for which vllm chooses another dtype here than when it samples",
            hint="name the dtype that sampled: vllm:bfloat16",
        )


def _check_installation(spec: PolicySpec, sees_images: bool, have_gpu: bool) -> None:
    """Refuse what the vLLM of this machine cannot run, or would ignore."""
    from vllm import __version__

    if sees_images and importlib.util.find_spec("torchvision") is None:
        raise RcdiagError(
            f"policy `{spec.name}`: vllm imports torchvision for a model of images, which is not "
            "installed (the set-up for CPUs leaves it out)",
            hint="install the torchvision that belongs to this torch, or score rows without images "
            "with hf",
        )
    quantization = str(spec.options.get("quantization", ""))
    if not have_gpu and "fp8" in quantization:  # it would fail inside a kernel of the CPU build
        raise RcdiagError(
            f"policy `{spec.name}`: quantization={quantization} needs a GPU; there is none here",
            hint="run it on a GPU machine; on a CPU kv_cache_dtype=fp8 or a lower dtype work",
        )
    wanted = spec.options.get("lm_head", spec.dtype)
    if wanted != spec.dtype and not head_has_own_dtype():
        raise RcdiagError(
            f"policy `{spec.name}`: lm_head={wanted}: vllm {__version__} cannot give the head a "
            "dtype of its own; vllm 0.26 and later can",
            hint="install a later vllm, or score it with hf:bfloat16,lm_head=float32",
        )


def head_has_own_dtype() -> bool:
    """Tell whether this vLLM can give the head another dtype; versions before 0.26 cannot."""
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    return "head_dtype" in inspect.getsource(LogitsProcessor)


def _lora_rank(adapter: Path) -> int:
    """Return the smallest `max_lora_rank` of vLLM that fits the adapter."""
    from vllm.config.lora import MaxLoRARanks

    file = adapter / "adapter_config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        rank = max(config["r"], *(config.get("rank_pattern") or {}).values(), 1)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RcdiagError(
            f"{file}: no rank in `r` and `rank_pattern` ({error})", hint="give a PEFT LoRA folder"
        ) from error
    ranks: list[int] = [size for size in get_args(MaxLoRARanks) if size >= rank]
    if not ranks:
        raise RcdiagError(
            f"adapter={adapter}: rank {rank} is more than vllm takes",
            hint="score it with hf, or merge the adapter into the model",
        )
    return min(ranks)


def _known(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, all of which must be engine arguments of vLLM."""
    from vllm import EngineArgs

    names = {field.name for field in dataclasses.fields(EngineArgs)}
    for key in options:
        if key not in names:
            hint = f"{did_you_mean(key, sorted(names))}see vllm.EngineArgs"
            raise RcdiagError(f"vllm has no engine option `{key}`", hint=hint)
    return dict(options)


def lora_request(adapter: str | None) -> Any:
    """Return the request for an adapter, or None; refuse an adapter that changes the head."""
    if adapter is None:
        return None
    from safetensors import safe_open
    from vllm.lora.request import LoRARequest

    weights = Path(adapter) / "adapter_model.safetensors"
    if not weights.is_file():
        raise RcdiagError(f"adapter={adapter}: no {weights.name} in it", "give a PEFT LoRA folder")
    with safe_open(weights, "pt") as tensors:
        names = tensors.keys()  # safe_open's handle is not iterable itself
    changed = [name for name in names if "lm_head" in name or "embed_tokens" in name]
    if changed:
        raise RcdiagError(
            f"adapter={adapter} changes head or embedding ({changed[0]}), which vllm drops from "
            "log-probs (vllm #51594)",
            hint="score it with hf, or merge the adapter into the model",
        )

    return LoRARequest("adapter", 1, str(Path(adapter).resolve()))
