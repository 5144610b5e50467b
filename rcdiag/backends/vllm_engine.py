"""Score with vLLM: the CUDA build or the CPU build, the same code."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.metadata
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.backends import Progress, Scores, vllm_plugin
from rcdiag.backends.checkpoint import check_checkpoint, fingerprint, read_config, text_config
from rcdiag.backends.rows import gather_scores, whole_sequences
from rcdiag.backends.spec import PolicySpec
from rcdiag.errors import RcdiagError
from rcdiag.trajectories import Trajectories

PATHS = ("prefill", "decode")

# Requests handed to the engine at a time: enough to fill its batches, few enough for progress.
REQUESTS_AT_ONCE = 512


class VllmBackend:
    """One vLLM engine in this process; prefix caching and speculation off."""

    def __init__(self, spec: PolicySpec, max_length: int) -> None:
        self.spec = spec
        self.options = spec.own_options
        self.path = self.options.get("path", "prefill")
        if self.path not in PATHS:
            raise RcdiagError(f"path={self.path}: unknown", hint=f"one of {', '.join(PATHS)}")
        self.folder = check_checkpoint(spec.model)
        self.wanted: dict[str, Any] = {
            "entropy": bool(self.options.get("entropy", False)),
            "top_k": int(self.options.get("top_k", 0)),
        }
        _environment(self.folder, max_length, self.path)
        self.engine_options = _engine_options(spec, self.path, max_length)
        self.lora = _lora_request(self.options.get("adapter"))
        self.engine = _start(self.folder, self.path, self.engine_options)

    def score(self, trajectories: Trajectories, progress: Progress) -> Scores:
        tokens, starts = whole_sequences(trajectories)
        rows = np.flatnonzero(trajectories.response_ids.lengths > 0)
        scores: list[NDArray[np.float32] | None] = [None] * len(tokens)
        temperature = trajectories.scoring_temperature
        run = self._prefill if self.path == "prefill" else self._decode
        for some in _groups(rows, REQUESTS_AT_ONCE):
            requests = [(tokens[row], int(starts[row]), float(temperature[row])) for row in some]
            for row, found in zip(some, run(requests), strict=True):
                scores[row] = found
            progress(sum(len(tokens[row]) for row in some))
        return gather_scores(scores, **self.wanted)

    def _prefill(self, requests: list[tuple[NDArray, int, float]]) -> list[NDArray[np.float32]]:
        from vllm import PoolingParams

        params = [
            PoolingParams(
                use_activation=False,
                extra_kwargs={"first": start, "temperature": temperature, **self.wanted},
            )
            for _, start, temperature in requests
        ]
        outputs = self.engine.encode(
            [{"prompt_token_ids": ids.tolist()} for ids, _, _ in requests],
            params,
            pooling_task="token_classify",
            use_tqdm=False,
            lora_request=self.lora,
        )
        return [output.outputs.data.float().numpy() for output in outputs]

    def _decode(self, requests: list[tuple[NDArray, int, float]]) -> list[NDArray[np.float32]]:
        from vllm import SamplingParams

        from rcdiag.backends.vllm_decode import drain

        params = [
            SamplingParams(
                max_tokens=len(ids) - start,
                ignore_eos=True,
                detokenize=False,
                extra_args={
                    "key": key,
                    "ids": ids[start:].tolist(),
                    "temperature": temperature,
                    **self.wanted,
                },
            )
            for key, (ids, start, temperature) in enumerate(requests)
        ]
        outputs = self.engine.generate(
            [{"prompt_token_ids": ids[:start].tolist()} for ids, start, _ in requests],
            params,
            use_tqdm=False,
            lora_request=self.lora,
        )
        for output, (ids, start, _) in zip(outputs, requests, strict=True):
            if list(output.outputs[0].token_ids) != ids[start:].tolist():
                raise RuntimeError("vLLM did not decode the forced tokens")
        width = 1 + self.wanted["entropy"] + 2 * self.wanted["top_k"]
        scores = [
            np.full((len(ids) - start, width), np.nan, np.float32) for ids, start, _ in requests
        ]
        for places, values in self.engine.collective_rpc(drain)[0]:
            for (key, position), value in zip(places, values.numpy(), strict=True):
                scores[key][position] = value
        return scores

    def provenance(self) -> dict[str, Any]:
        import torch

        config = self.engine.llm_engine.vllm_config
        cuda = torch.cuda.is_available()
        return {
            "weights_fingerprint": fingerprint(self.folder),
            "attention": _attention_name(config),
            "device": torch.cuda.get_device_name() if cuda else "cpu",
            "versions": {**_vllm_version(), "torch": torch.__version__},
            "path": self.path,
            "engine_options": {k: v for k, v in self.engine_options.items() if _is_plain(v)},
        }


def _environment(folder: Path, max_length: int, path: str) -> None:
    """Settings that vLLM reads when it is imported; the user's own are kept."""
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


def _engine_options(spec: PolicySpec, path: str, max_length: int) -> dict[str, Any]:
    import torch

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
    return options | _known(spec.engine_options)


def _known(options: dict[str, Any]) -> dict[str, Any]:
    from vllm import EngineArgs

    names = {field.name for field in dataclasses.fields(EngineArgs)}
    for key in options:
        if key not in names:
            near = difflib.get_close_matches(key, sorted(names), n=1)
            guess = f"did you mean `{near[0]}`?" if near else "see vllm.EngineArgs"
            raise RcdiagError(f"vllm has no engine option `{key}`", hint=guess)
    for key in ("enable_prefix_caching", "speculative_config"):
        if options.get(key):
            raise RcdiagError(
                f"{key}={options[key]}: log-probs scored with it are wrong (vllm #42019, #53488)",
                hint=f"leave {key} out",
            )
    return options


def _start(folder: Path, path: str, options: dict[str, Any]) -> Any:
    from vllm import LLM

    if path == "decode":
        from rcdiag.backends.vllm_decode import ForceTokens

        return LLM(str(folder), logits_processors=[ForceTokens], **options)
    architectures = read_config(folder).get("architectures") or ["unknown"]
    os.environ[vllm_plugin.ARCHITECTURE] = architectures[0]
    try:
        vllm_plugin.register()
    except KeyError as error:
        raise RcdiagError(
            f"vllm has no model for architecture `{architectures[0]}`", hint="score it with hf"
        ) from error
    return LLM(str(folder), runner="pooling", **options)


def _lora_request(adapter: str | None) -> Any:
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


def _groups(rows: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


def _attention_name(config: Any) -> str:
    chosen = getattr(getattr(config, "attention_config", None), "backend", None)
    return str(getattr(chosen, "name", None) or "engine default")


def _vllm_version() -> dict[str, str]:
    installed = importlib.metadata.packages_distributions().get("vllm", ["vllm"])[0]
    return {installed: importlib.metadata.version(installed)}


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float, bool, dict, list, type(None)))
