"""vLLM as an engine: prefill scores come through a pooler, decode scores by forcing tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rcdiag.engines.backend import Backend, LadderRung, Option, OtherBatches, is_low_precision
from rcdiag.engines.kept_sets import SUPPORT
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError, setting

if TYPE_CHECKING:
    from pathlib import Path

    from rcdiag.engines.vllm.engine import VllmEngine


def _load(spec: PolicySpec, max_length: int, log: Path) -> VllmEngine:
    from rcdiag.engines.vllm.engine import VllmEngine

    return VllmEngine(spec, max_length, VLLM.passed_on(spec.options))


def _own_place(about: Mapping[str, Any]) -> LadderRung | None:
    options = about.get("options") or {}
    if options.get("path") == "decode" and is_low_precision(about):
        return LadderRung.ENGINE_DECODE
    if options.get("quantization"):
        return LadderRung.ENGINE_QUANTIZED
    eager = options.get("enforce_eager") is True and is_low_precision(about)
    return LadderRung.ENGINE_LOW_EAGER if eager else None


_PATH = "leave it out: path=prefill or path=decode chooses how tokens are scored"
# Engine options that rcdiag sets itself, each with what to write instead.
_SET_BY_RCDIAG = {
    "dtype": "write it after the colon: vllm:float32",
    "runner": _PATH,
    "convert": _PATH,
    "pooler_config": _PATH,
    "logits_processors": _PATH,
    "async_scheduling": _PATH,
    "enable_lora": "adapter=FOLDER adds an adapter",
}
# Engine options with which log-probs of stored tokens are wrong, each with its source.
_WRONG_SCORES = {
    "enable_prefix_caching": "vllm #42019",
    "speculative_config": "vllm #53488",
    "spec_method": "vllm #53488",
    "spec_model": "vllm #53488",
    "spec_tokens": "vllm #53488",
    # "fast prefill gives incorrect logits for prompt tokens"
    "kv_sharing_fast_prefill": "vllm/config/vllm.py",
}
# Engine options that divide the work over stages, engines or nodes, other than tensor parallelism.
_NOT_ONE_ENGINE = re.compile(
    r"(pipeline|data|prefill_context|decode_context)_parallel_\w+|nnodes|node_rank"
)


def _check(spec: PolicySpec) -> None:
    """Refuse options under which scores would be wrong, unreadable or other than they are named."""
    for key, value in spec.options.items():
        who = f"policy `{spec.name}`: {key}={value}: "
        if key in _SET_BY_RCDIAG:
            raise RcdiagError(f"{who}rcdiag sets {key} itself", hint=_SET_BY_RCDIAG[key])
        if key in _WRONG_SCORES and value:
            raise RcdiagError(
                f"{who}log-probs scored with it are wrong ({_WRONG_SCORES[key]})",
                hint=f"leave {key} out",
            )
        if key == "hf_token" and isinstance(value, str):
            raise RcdiagError(
                f"policy `{spec.name}`: hf_token is a secret that the table would keep",
                hint="leave it out, and put the token into the environment: export HF_TOKEN=...",
            )
        # A size of 1, which is vLLM's default, divides nothing.
        alone = key.endswith(("_size", "nnodes")) and type(value) is int and value == 1
        if _NOT_ONE_ENGINE.fullmatch(key) and not alone:
            raise RcdiagError(
                f"{who}rcdiag reads scores from one stage of one engine",
                hint="leave it out: tensor_parallel_size= spreads a model over GPUs, and "
                f"{setting('devices', 'N')} starts engines side by side",
            )
    gpus = spec.options.get("tensor_parallel_size", 1)
    if isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 1:
        raise RcdiagError(
            f"policy `{spec.name}`: tensor_parallel_size={gpus}: wanted a number of GPUs",
            hint="for example tensor_parallel_size=2",
        )
    overrides = spec.options.get("hf_overrides", {})
    if not isinstance(overrides, Mapping):
        raise RcdiagError(
            f"policy `{spec.name}`: hf_overrides={overrides}: wanted an object",
            hint='for example hf_overrides={"a":1}',
        )
    if "head_dtype" in overrides:
        raise RcdiagError(
            f"policy `{spec.name}`: rcdiag sets head_dtype in hf_overrides itself",
            hint="lm_head=float32 gives the head a dtype of its own",
        )


VLLM = Backend(
    name="vllm",
    says="vLLM, its CUDA build (compiled, as samplers run it) or its CPU build (eager), prefix "
    "caching and speculative decoding off. Every other option goes to vLLM's own engine "
    "arguments, for example quantization=fp8.",
    role="engine",
    dtypes=("bfloat16", "float16", "float32", "auto"),
    default_dtype="bfloat16",
    default_policy="rollout",
    load=_load,
    options={
        "path": Option(
            says="score all tokens at once, or one at a time as in sampling",
            takes=("prefill", "decode"),
            shown="{}",
        ),
    },
    refuses={
        SUPPORT: "vLLM scores the whole distribution only",
        "experts": "recorded experts cannot be given to vLLM's routers",
        "record_experts": "the experts that vLLM's routers choose are not read",
    },
    passes_options_on=True,
    packages={"torch": "2.8", "vllm": "0.20"},
    other_batches=OtherBatches(option="max_num_seqs", size=5, smaller=3),
    gpus=lambda options: int(options.get("tensor_parallel_size", 1)),
    check=_check,
    # In decoding, vLLM's largest default batch on a GPU.
    rows_per_part=lambda options: 1024 if options.get("path") == "decode" else 1,
    own_place=_own_place,
)
