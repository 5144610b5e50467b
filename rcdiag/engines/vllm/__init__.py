"""vLLM scores inside its engine: prefill through a pooler, decode by forced tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rcdiag.engines.backend import Backend, Option, OtherBatches, Place, is_low_precision
from rcdiag.engines.spec import PolicySpec

if TYPE_CHECKING:
    from rcdiag.engines.vllm.engine import VllmEngine


def _load(spec: PolicySpec, max_length: int) -> VllmEngine:
    from rcdiag.engines.vllm.engine import VllmEngine

    return VllmEngine(spec, max_length, *VLLM.split(spec.options))


def _own_place(about: Mapping[str, Any]) -> Place | None:
    decodes = (about.get("options") or {}).get("path") == "decode"
    return Place.ENGINE_DECODE if decodes and is_low_precision(about) else None


def _gpus(options: Mapping[str, Any]) -> int:
    """Return over how many GPUs vLLM spreads one model."""
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    return math.prod(int(options.get(size, 1)) for size in sizes)


VLLM = Backend(
    name="vllm",
    says="vLLM, its CUDA or its CPU build: the kernels that sampled, prefix caching and "
    "speculative decoding off. Every other option goes to vLLM's own engine arguments, for "
    "example quantization=fp8.",
    role="engine",
    dtypes=("bfloat16", "float16", "float32", "auto"),
    default_dtype="bfloat16",
    default_policy="rollout",
    load=_load,
    options={
        "path": Option(
            says="all tokens at once, or one at a time as they were sampled",
            takes=("prefill", "decode"),
            shown="{}",
        ),
    },
    passes_options_on=True,
    other_batches=OtherBatches(option="max_num_seqs", size=5, smaller=3),
    gpus=_gpus,
    own_place=_own_place,
)
