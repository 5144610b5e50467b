"""Predefined sets of policies from sampler to trainer, each step with one difference."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rcdiag.engines import BACKENDS
from rcdiag.engines.backend import Backend, is_low_precision
from rcdiag.engines.checkpoint import check_checkpoint, fingerprint
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError, mapping_setting, setting

LADDERS: dict[str, tuple[str, ...]] = {
    # The sampler's engine in low precision, then the trainer from low to full precision.
    "precision": (
        "vllm_fp8=vllm:bfloat16,quantization=fp8",
        "vllm_bf16=vllm:bfloat16",
        "hf_bf16=hf:bfloat16",
        "hf_autocast=hf:float32,autocast=bfloat16",
        "hf_bf16_head32=hf:bfloat16,lm_head=float32",
        "hf_fp16=hf:float16",
        "hf_fp32=hf:float32",
    ),
    # Decode, prefill, prefill without compilation, and transformers in the same precision; then
    # both engines in full precision.
    "engine": (
        "vllm_bf16_decode=vllm:bfloat16,path=decode",
        "vllm_bf16=vllm:bfloat16",
        "vllm_bf16_eager=vllm:bfloat16,enforce_eager=true",
        "hf_bf16=hf:bfloat16",
        "vllm_fp32=vllm:float32",
        "hf_fp32=hf:float32",
    ),
}

# vLLM quantizes to fp8 only on GPUs, and is always eager on a CPU.
NEED_A_GPU = (
    "vllm_fp8=vllm:bfloat16,quantization=fp8",
    "vllm_bf16_eager=vllm:bfloat16,enforce_eager=true",
)


def second_run(spec: PolicySpec) -> PolicySpec:
    """Return a second run of the policy with other batches, for the noise floor."""
    batches = BACKENDS[spec.backend].other_batches
    if batches is None:
        raise RcdiagError(
            f"{setting('noise_floor')}: `{spec.name}` would be scored in the same batches again, "
            f"since {spec.backend} has no option that changes them",
            hint="give a policy of another backend as well",
        )
    has_it = spec.options.get(batches.option) == batches.size
    size = batches.smaller if has_it else batches.size
    other = {**spec.options, batches.option: size, "repeat_of": spec.name}
    return replace(spec, name=f"{spec.name}_again", options=other)


def policy_to_repeat(specs: Sequence[PolicySpec]) -> PolicySpec:
    """Return the policy whose noise matters most: the first in low precision, else the first.

    Backends that cannot change their batches are considered last.
    """
    if not specs:
        raise RcdiagError(
            f"{setting('noise_floor')}: no policy that could be scored again",
            hint="give one with "
            f"{mapping_setting('policies', {'NAME': 'BACKEND:DTYPE'}, '--policy')} and "
            f"{setting('model', 'PATH')}",
        )
    able = [spec for spec in specs if BACKENDS[spec.backend].other_batches] or specs
    return next((spec for spec in able if is_low_precision(spec.to_dict())), able[0])


def spec_of(about: dict[str, Any], model: str | None) -> PolicySpec | None:
    """Return the spec that scored a policy of the table; None if the metadata do not tell.

    `about` is the policy's entry in the file metadata, `model` the default checkpoint. A file must
    not make rcdiag download or run anything: its model is used only if it is a local folder, its
    options only if they are plain settings, and no server or program that it names is used.
    """
    if about.get("backend") in BACKENDS and BACKENDS[about["backend"]].runs_outside:
        return None
    recorded = about.get("model")
    where = recorded if Path(str(recorded)).is_dir() else model
    if about.get("backend") not in BACKENDS or "options" not in about or where is None:
        return None
    weights = about.get("weights_fingerprint")
    comparable = Path(str(where)).is_dir() and isinstance(weights, str)
    if comparable and fingerprint(check_checkpoint(str(where))) != weights:
        raise RcdiagError(
            f"{where}: these are not the weights that `{about['name']}` was scored with",
            hint=f"give its checkpoint with {setting('model')}, or score the policy again",
        )
    options = {key: value for key, value in about["options"].items() if key != "repeat_of"}
    _check_settings(about["name"], options, BACKENDS[about["backend"]])
    return PolicySpec(
        name=about["name"],
        backend=about["backend"],
        dtype=about["dtype"],
        model=str(where),
        options=options,
    )


# Options passed on to engines that only set a number or a mode, so a file may name them.
SETTINGS = {
    "block_size",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "enforce_eager",
    "gpu_memory_utilization",
    "kv_cache_dtype",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "quantization",
    "seed",
    "tensor_parallel_size",
}
WORD = re.compile(r"[A-Za-z0-9_.-]+")


def _check_settings(name: str, options: Mapping[str, Any], backend: Backend) -> None:
    """Refuse options from file metadata that could name code: a class, a package, hub kernels."""
    for key, value in options.items():
        option = backend.known_options.get(key)
        known = key in SETTINGS or (option is not None and not option.runs_code)
        if isinstance(value, str):
            harmless = bool(WORD.fullmatch(value)) or Path(value).is_dir()
        else:
            harmless = value is None or isinstance(value, (bool, int, float))
        if not (known and harmless):
            raise RcdiagError(
                f"`{name}` was scored with {key}={value}: the table says so, and options that can "
                "run code are not taken from a file",
                hint="if you trust it, name the policy yourself: "
                + mapping_setting("policies", {name: f"{backend.name},{key}={value}"}, "--policy"),
            )
