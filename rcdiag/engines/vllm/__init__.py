"""vLLM as an engine: prefill scores come through a pooler, decode scores by forcing tokens."""

from __future__ import annotations

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

    return VllmEngine(spec, max_length, *VLLM.split(spec.options))


def _own_place(about: Mapping[str, Any]) -> LadderRung | None:
    options = about.get("options") or {}
    if options.get("path") == "decode" and is_low_precision(about):
        return LadderRung.ENGINE_DECODE
    if options.get("quantization"):
        return LadderRung.ENGINE_QUANTIZED
    eager = options.get("enforce_eager") is True and is_low_precision(about)
    return LadderRung.ENGINE_LOW_EAGER if eager else None


def _check(spec: PolicySpec) -> None:
    """Refuse options under which vLLM's log-probs are wrong or cannot be read."""
    for key in ("enable_prefix_caching", "speculative_config"):
        if spec.options.get(key):
            raise RcdiagError(
                f"policy `{spec.name}`: {key}={spec.options[key]}: log-probs scored with it are "
                "wrong (vllm #42019, #53488)",
                hint=f"leave {key} out",
            )
    for key in ("pipeline_parallel_size", "data_parallel_size"):
        if spec.options.get(key, 1) != 1:
            raise RcdiagError(
                f"policy `{spec.name}`: {key}={spec.options[key]}: rcdiag reads scores from one "
                "stage of one engine",
                hint="tensor_parallel_size= spreads a model over GPUs, and "
                f"{setting('devices', 'N')} starts engines side by side",
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


def _gpus(options: Mapping[str, Any]) -> int:
    """Return the number of GPUs that vLLM divides one model over."""
    return int(options.get("tensor_parallel_size", 1))


def _rows_per_part(options: Mapping[str, Any]) -> int:
    """Return the sequences of a part: in decoding, vLLM's largest default batch on a GPU."""
    return 1024 if options.get("path") == "decode" else 1


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
    gpus=_gpus,
    check=_check,
    rows_per_part=_rows_per_part,
    own_place=_own_place,
)
