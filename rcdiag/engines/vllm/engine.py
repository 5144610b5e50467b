"""Score with vLLM; the CUDA build and the CPU build share this code."""

from __future__ import annotations

import importlib.metadata
import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.engines.backend import Progress
from rcdiag.engines.checkpoint import check_checkpoint, fingerprint, read_config
from rcdiag.engines.gpus import refuse_idle_gpus
from rcdiag.engines.matmul import ROUNDED, cpu_name, product_settings, rounds
from rcdiag.engines.padded_batches import gather_scores, whole_sequences
from rcdiag.engines.spec import PolicySpec
from rcdiag.engines.vllm import plugin as vllm_plugin
from rcdiag.engines.vllm.engine_arguments import (
    engine_options,
    head_has_own_dtype,
    lora_request,
    set_environment,
)
from rcdiag.errors import RcdiagError
from rcdiag.table.trajectories import Scores, Trajectories

# Requests handed to the engine at a time: enough to fill its batches, few enough to show progress.
# At the end of a decoding group the batch is nearly empty, so a whole part is one group there.
REQUESTS_AT_ONCE = {"prefill": 512, "decode": 1 << 20}


class VllmEngine:
    """A vLLM engine in this process, without prefix caching and speculative decoding."""

    def __init__(self, spec: PolicySpec, max_length: int, passed_on: Mapping[str, Any]) -> None:
        """Start the engine; `passed_on` are the policy's options that vLLM itself reads."""
        self.spec = spec
        self.options = spec.options
        self.path = self.options.get("path", "prefill")
        self.folder = check_checkpoint(spec.model)
        self.weights = fingerprint(self.folder)
        self.score_options: dict[str, Any] = {
            "entropy": bool(self.options.get("entropy", False)),
            "top_k": int(self.options.get("top_k", 0)),
        }
        if _device_type() == "cpu":
            refuse_idle_gpus()
        self.environment = set_environment(self.folder, max_length, self.path, spec.dtype)
        self.engine_options = engine_options(spec, self.path, max_length, passed_on)
        may_round = rounds(self.options.get("matmul"), _device_type(), "bfloat16")
        os.environ[vllm_plugin.ROUNDED_LINEAR] = "1" if may_round else "0"
        self.lora = lora_request(self.options.get("adapter"))
        self.engine = _start(self.folder, self.path, self.engine_options)
        chosen = self.engine.llm_engine.vllm_config.model_config
        self.dtype = str(chosen.dtype).removeprefix("torch.")  # for `auto`, the one vLLM chose
        head = chosen.head_dtype if head_has_own_dtype() else chosen.dtype
        self.head_dtype = str(head).removeprefix("torch.")
        self.rounds = may_round and self.dtype == "bfloat16"

    def score(self, trajectories: Trajectories, progress: Progress) -> Scores:
        """Score the response tokens of rows, in groups that fill the engine's batches."""
        tokens, starts = whole_sequences(trajectories)
        rows = np.flatnonzero(trajectories.response_ids.lengths > 0)
        scores: list[NDArray[np.float32] | None] = [None] * len(tokens)
        temperature = trajectories.scoring_temperature
        run = self._prefill if self.path == "prefill" else self._decode
        count = REQUESTS_AT_ONCE[self.path]
        for some in (rows[first : first + count] for first in range(0, len(rows), count)):
            requests = [(tokens[row], int(starts[row]), float(temperature[row])) for row in some]
            for row, values in zip(some, run(requests), strict=True):
                scores[row] = values
            progress(sum(len(tokens[row]) for row in some))
        return gather_scores(trajectories, scores, **self.score_options)

    def _prefill(
        self, requests: list[tuple[NDArray[np.integer], int, float]]
    ) -> list[NDArray[np.float32] | None]:
        from vllm import PoolingParams

        params = [
            PoolingParams(
                use_activation=False,
                extra_kwargs={"first": start, "temperature": temperature, **self.score_options},
            )
            for _, start, temperature in requests
        ]
        prompts = [ids.tolist() for ids, _, _ in requests]
        outputs = self.engine.encode(
            [{"prompt_token_ids": ids} for ids in prompts],
            params,
            pooling_task="token_classify",
            use_tqdm=False,
            lora_request=self.lora,
        )
        return [
            None if output is None else output.outputs.data.float().numpy()
            for output in _by_prompt(outputs, prompts)
        ]

    def _decode(
        self, requests: list[tuple[NDArray[np.integer], int, float]]
    ) -> list[NDArray[np.float32] | None]:
        """Score by decoding; None for a row that vLLM left out or not decoded as it was forced."""
        from vllm import SamplingParams

        from rcdiag.engines.vllm.forced_decode import drain

        params = [
            SamplingParams(
                max_tokens=len(ids) - start,
                ignore_eos=True,
                detokenize=False,
                extra_args={
                    "key": key,
                    "ids": ids[start:].tolist(),
                    "temperature": temperature,
                    **self.score_options,
                },
            )
            for key, (ids, start, temperature) in enumerate(requests)
        ]
        prompts = [ids[:start].tolist() for ids, start, _ in requests]
        outputs = self.engine.generate(
            [{"prompt_token_ids": ids} for ids in prompts],
            params,
            use_tqdm=False,
            lora_request=self.lora,
        )
        forced = [
            output is not None and list(output.outputs[0].token_ids) == ids[start:].tolist()
            for output, (ids, start, _) in zip(_by_prompt(outputs, prompts), requests, strict=True)
        ]
        width = 1 + self.score_options["entropy"] + 2 * self.score_options["top_k"]
        scores = [
            np.full((len(ids) - start, width), np.nan, np.float32) for ids, start, _ in requests
        ]
        # The first token of a prompt that is computed in two steps is scored in both, and so is the
        # token at which a request is preempted: the later scores are those of the whole context.
        decoded = [np.zeros(len(ids) - start, np.bool_) for ids, start, _ in requests]
        for places, values in self.engine.collective_rpc(drain)[0]:
            for (key, position), value in zip(places, values.numpy(), strict=True):
                scores[key][position] = value
                decoded[key][position] = True
        return [
            values if was_forced and seen.all() else None
            for values, was_forced, seen in zip(scores, forced, decoded, strict=True)
        ]

    def provenance(self) -> dict[str, Any]:
        """Return weights, kernels, environment, device, versions and engine options."""
        import torch

        cuda = torch.cuda.is_available()
        vllm = importlib.metadata.packages_distributions().get("vllm", ["vllm"])[0]
        plain = (str, int, float, bool, dict, list, type(None))
        options = {
            key: value for key, value in self.engine_options.items() if isinstance(value, plain)
        }
        return {
            "weights_fingerprint": self.weights,
            "dtype": self.dtype,
            **({"lm_head": self.head_dtype} if self.head_dtype != self.dtype else {}),
            **self.engine.collective_rpc(_settings)[0],
            "environment": self.environment,
            "device": torch.cuda.get_device_name() if cuda else cpu_name(),
            "versions": {vllm: importlib.metadata.version(vllm), "torch": torch.__version__},
            "path": self.path,
            **({"matmul": ROUNDED} if self.rounds else {}),
            "engine_options": options,
        }


def _by_prompt(outputs: list[Any], prompts: list[list[int]]) -> list[Any]:
    """Return vLLM's output for each prompt, None where it has none; outputs are in their order."""
    left = deque(outputs)
    return [
        left.popleft() if left and list(left[0].prompt_token_ids or ()) == ids else None
        for ids in prompts
    ]


def _device_type() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _start(folder: Path, path: str, options: dict[str, Any]) -> Any:
    from vllm import LLM

    if path == "decode":
        vllm_plugin.register()
        from rcdiag.engines.vllm.forced_decode import ForceTokens

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


def _settings(worker: Any) -> dict[str, Any]:
    """Return a worker's attention kernels and product settings (via `collective_rpc`)."""
    layers = worker.vllm_config.compilation_config.static_forward_context.values()
    names = set()
    for layer in layers:
        if (backend := getattr(layer, "attn_backend", None)) is not None:
            # FlashAttention 2, 3 or 4, by GPU and head size.
            version = getattr(layer.impl, "vllm_flash_attn_version", None)
            names.add(f"{backend.get_name()}{version or ''}")
    return {"attention": ", ".join(sorted(names)) or "none", **product_settings()}
