"""Tiny models, tables and an independent reference for tests that load engines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from tests.cli.conftest import Ran

VOCABULARY = 320
CONTEXT = 256
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 128,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.2,
}
CONFIGS = {
    "qwen3": lambda: Qwen3Config(**SIZES, tie_word_embeddings=True),
    "llama": lambda: LlamaConfig(**SIZES, tie_word_embeddings=False),
    "gemma2": lambda: Gemma2Config(**SIZES, final_logit_softcapping=5.0, sliding_window=64),
}


def make_model(folder: Path, kind: str) -> Path:
    """Save a random float32 model of an architecture, with tokenizer."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(CONFIGS[kind]()).save_pretrained(folder)
    words = {str(index): index for index in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="1").save_pretrained(folder)
    return folder


def make_table(path: Path, *, rows: int = 40, seed: int = 0) -> Path:
    """Write rows of all lengths: one-token prompts and responses, empty, full context."""
    random = np.random.default_rng(seed)
    prompts = random.integers(1, 40, rows)
    responses = np.minimum(random.lognormal(3.5, 1.0, rows).astype(int) + 1, CONTEXT - 40)
    prompts[:3], responses[:3] = (1, 1, CONTEXT - 200), (1, 30, 200)
    responses[3] = 0
    ids = [random.integers(2, VOCABULARY, n).astype(np.int32) for n in responses]
    temperature = [None if row % 5 == 4 else [1.0, 0.7, 1.3][row % 3] for row in range(rows)]
    columns = {
        "sample_id": [f"s{row}" for row in range(rows)],
        "prompt_ids": [random.integers(2, VOCABULARY, n).astype(np.int32) for n in prompts],
        "response_ids": pa.array(ids, pa.list_(pa.int32())),
        "response_mask": pa.array(
            [(random.random(n) < 0.8).astype(np.uint8) for n in responses], pa.list_(pa.uint8())
        ),
        "temperature": pa.array(temperature, pa.float64()),
        "note": [f"kept as it is {row}" for row in range(rows)],
    }
    pq.write_table(pa.table(columns), path, row_group_size=max(rows // 3, 1))
    return path


def reference(model_folder: Path, table: Path, adapter: Path | None = None) -> dict[str, list]:
    """Compute log-probs, entropies and top-3 of each response token, row by row.

    Uses the model's own forward in float32, then log-softmax of logits / temperature in float64.
    """
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapter).merge_and_unload()
    result: dict[str, list] = {"log_probs": [], "entropy": [], "top": []}
    for row in pq.read_table(table).to_pylist():
        prompt, response = row["prompt_ids"], row["response_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + response])).logits[0].double()
        logits = logits[len(prompt) - 1 : len(prompt) + len(response) - 1]
        laws = torch.log_softmax(logits / (row["temperature"] or 1.0), dim=-1)
        targets = torch.tensor(response, dtype=torch.long)
        result["log_probs"].append(laws.gather(1, targets[:, None])[:, 0].numpy())
        result["entropy"].append(-(laws.exp() * laws).sum(-1).numpy())
        result["top"].append(laws.topk(3, dim=-1))
    return result


def scored(path: Path, column: str) -> np.ndarray:
    """Return all values of a list column of a written table."""
    return pq.read_table(path)[column].combine_chunks().flatten().to_numpy(zero_copy_only=False)


def rcdiag_alone(*arguments: object, cwd: Path | None = None) -> Ran:
    """Run the command line in its own process."""
    command = [sys.executable, "-m", "cli.main", *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)
    return Ran(run.returncode, run.stdout, run.stderr)
