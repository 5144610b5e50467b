"""Scoring speed and memory of rcdiag's engines, compared with baselines in one run.

`python benchmarks/scoring.py` (or `make bench`) prints a table and stores it in
`benchmarks/results/scoring.json`. Every variant runs in its own process, on the same rows;
after a warm-up it is timed ROUNDS times and the best counts (the machine may be shared).
Extra memory is the peak resident set while scoring (GPU: allocated memory), warm-up
included, minus the resident set with the model loaded. Rows are drawn at random from
all shipped rollouts, like the shuffled batches of a trainer. (In table order the 8
samples of a prompt are adjacent, so the baseline would waste less on padding.)

- hf: baseline is padded batches of 16 in the drawn order with a full float32 log-softmax
- vllm: baseline is LLM.generate(prompt_logprobs=0)
Both run on the shipped policy (vocabulary 1 k) with the shipped rollouts, and on a random 0.1 B
model with a vocabulary of 32 k and rows of the same lengths.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

# Import from the repository root: `statistics.py` in this folder would hide the standard module.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np  # noqa: E402

from benchmarks import RESULTS, store  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 2
# Models and the number of shipped rows they score: a few seconds of work each.
MODELS = {"policy": 768, "random-0.1B": 32}
VARIANTS = {
    "hf float32": ("plain hf float32", "rcdiag hf float32"),
    "hf bfloat16": ("plain hf bfloat16", "rcdiag hf bfloat16"),
    "vllm float32": ("plain vllm float32", "rcdiag vllm float32"),
    "vllm bfloat16": ("plain vllm bfloat16", "rcdiag vllm bfloat16"),
}


def rows(model: str, vocabulary: int):
    """Return shipped rows as trajectories; for the random model random ids of equal lengths."""
    from rcdiag.table.opening import open_table
    from rcdiag.table.stream import decode, read_chunks
    from rcdiag.table.trajectories import Ragged, Trajectories

    dump = open_table(ROOT / "sample_data" / "rollouts.parquet")
    found = decode(next(read_chunks(dump, [(0, dump.num_rows)])))
    assert found.prompt_ids is not None
    random = np.random.default_rng(0)
    chosen = random.permutation(dump.num_rows)[: MODELS[model]]

    def drawn(ids: Ragged) -> Ragged:
        values = np.concatenate([ids.row(row) for row in chosen])
        if model != "policy":
            values = random.integers(2, vocabulary, len(values), dtype=np.int32)
        return Ragged(values, np.concatenate([[0], np.cumsum(ids.lengths[chosen])]))

    responses = drawn(found.response_ids)
    return Trajectories(
        first_row=0,
        response_ids=responses,
        mask=np.ones(len(responses.values), dtype=np.bool_),
        prompt_ids=drawn(found.prompt_ids),
    )


def make_random_model(folder: Path) -> None:
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=32_768,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        head_dim=64,
        intermediate_size=2_048,
        max_position_embeddings=2_048,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    policy = ROOT / "sample_data" / "policy" / "step_8"
    AutoTokenizer.from_pretrained(policy).save_pretrained(folder)


def sequences(trajectories) -> tuple[list[list[int]], list[int]]:
    from rcdiag.engines.padded_batches import whole_sequences

    tokens, starts = whole_sequences(trajectories)
    return [row.tolist() for row in tokens], starts.tolist()


def plain_hf(folder: Path, dtype: str, trajectories) -> Callable[[], np.ndarray]:
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = getattr(torch, dtype)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=kind).to(device).eval()
    tokens, starts = sequences(trajectories)

    @torch.inference_mode()
    def run() -> np.ndarray:
        found = []
        for first in range(0, len(tokens), 16):
            batch = tokens[first : first + 16]
            width = max(map(len, batch))
            ids = torch.tensor([row + [0] * (width - len(row)) for row in batch], device=device)
            mask = torch.tensor(
                [[1] * len(row) + [0] * (width - len(row)) for row in batch], device=device
            )
            logits = model(input_ids=ids, attention_mask=mask).logits.float()
            laws = torch.log_softmax(logits[:, :-1], dim=-1)
            values = laws.gather(2, ids[:, 1:, None])[..., 0].cpu()
            for index, row in enumerate(batch):
                found.append(values[index, starts[first + index] - 1 : len(row) - 1])
        return torch.cat(found).numpy()

    return run


def plain_vllm(folder: Path, dtype: str, trajectories) -> Callable[[], np.ndarray]:
    os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0")
    from vllm import LLM, SamplingParams

    tokens, starts = sequences(trajectories)
    engine = LLM(
        str(folder),
        dtype=dtype,
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=max(map(len, tokens)) + 1,
        skip_tokenizer_init=True,
    )
    params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
    prompts = [{"prompt_token_ids": row} for row in tokens]

    def run() -> np.ndarray:
        outputs = engine.generate(prompts, params, use_tqdm=False)
        return np.array(
            [
                entry[token].logprob
                for output, row, start in zip(outputs, tokens, starts, strict=True)
                for entry, token in zip(output.prompt_logprobs[start:], row[start:], strict=True)
            ]
        )

    return run


def rcdiag(backend: str, folder: Path, dtype: str, trajectories) -> Callable[[], np.ndarray]:
    from rcdiag.engines import BACKENDS
    from rcdiag.engines.notation import parse_policy

    # The baselines ignore the temperature, so everything is scored at 1.
    longest = int((trajectories.prompt_ids.lengths + trajectories.response_ids.lengths).max())
    policy = parse_policy(f"p={backend}:{dtype}", str(folder))
    engine = BACKENDS[backend].load(policy, longest, folder / "engine.log")
    return lambda: engine.score(trajectories, lambda tokens: None).log_probs


def measure(model: str, variant: str, folder: Path) -> dict:
    """Run one variant in this process; returns tokens per second, extra memory and log-probs."""
    import torch

    who, backend, dtype = variant.split()
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    trajectories = rows(model, vocabulary)
    if who == "rcdiag":
        run = rcdiag(backend, folder, dtype, trajectories)
    else:
        run = (plain_hf if backend == "hf" else plain_vllm)(folder, dtype, trajectories)
    before = reset_peak()
    run()  # warm-up: just-in-time compilation and caches
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        log_probs = run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    tokens = int(trajectories.prompt_ids.lengths.sum() + trajectories.response_ids.lengths.sum())
    np.save(os.environ["RCDIAG_BENCH_OUT"], log_probs)
    peak_rate = matmul_rate(dtype)
    useful = 2.0 * parameters(folder) * tokens / min(seconds)
    return {
        "matmul_share": useful / peak_rate,
        "seconds": min(seconds),
        "tokens": tokens,
        "extra_mb": (peak() - before) / 2**20,
    }


def matmul_rate(dtype: str) -> float:
    """Return the floating-point operations per second of a large matmul, an upper bound."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = 8192 if device == "cuda" else 2048
    a = torch.randn(size, size, dtype=getattr(torch, dtype), device=device)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        torch.mm(a, a)
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best


def parameters(folder: Path) -> int:
    """Count the weights in matrix products per token: all, the tied embedding once, as the head."""
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as tensors:
        names = tensors.keys()
        return sum(int(np.prod(tensors.get_slice(name).get_shape())) for name in names)


def reset_peak() -> int:
    """Reset the recorded peak; returns the current resident set in bytes."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def peak() -> int:
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else status("VmHWM")


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def in_own_process(model: str, variant: str, folder: Path, out: Path) -> dict:
    command = [sys.executable, __file__, "--one", model, variant, str(folder)]
    environment = {**os.environ, "RCDIAG_BENCH_OUT": str(out)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        sys.exit(f"{variant} on {model} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main(out: Path) -> None:
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        random_model = Path(scratch) / "random"
        make_random_model(random_model)
        folders = {"policy": ROOT / "sample_data/policy/step_8", "random-0.1B": random_model}
        for model, folder in folders.items():
            for name, (plain, ours) in VARIANTS.items():
                found = [
                    in_own_process(model, variant, folder, Path(scratch) / f"{who}.npy")
                    for who, variant in (("plain", plain), ("ours", ours))
                ]
                a, b = (np.load(Path(scratch) / f"{who}.npy") for who in ("plain", "ours"))
                entry = {
                    "model": model,
                    "engine": name,
                    "plain_tokens_per_s": round(found[0]["tokens"] / found[0]["seconds"]),
                    "rcdiag_tokens_per_s": round(found[1]["tokens"] / found[1]["seconds"]),
                    "speed_up": round(found[0]["seconds"] / found[1]["seconds"], 2),
                    "rcdiag_matmul_share": round(found[1]["matmul_share"], 3),
                    "plain_extra_mb": round(found[0]["extra_mb"], 1),
                    "rcdiag_extra_mb": round(found[1]["extra_mb"], 1),
                    "largest_difference": float(np.abs(a - b).max()),
                }
                results.append(entry)
                print(
                    f"{model:12} {name:14} plain {entry['plain_tokens_per_s']:>8,} tok/s "
                    f"{entry['plain_extra_mb']:>8,.0f} MB   rcdiag "
                    f"{entry['rcdiag_tokens_per_s']:>8,} tok/s {entry['rcdiag_extra_mb']:>7,.0f} MB"
                    f"   x{entry['speed_up']:<5} of matmul peak {entry['rcdiag_matmul_share']:.0%}"
                    f"   differ {entry['largest_difference']:.1e}",
                    flush=True,
                )
    out.parent.mkdir(exist_ok=True)
    store(out, {"results": results})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=3, metavar=("MODEL", "VARIANT", "FOLDER"))
    parser.add_argument("--out", type=Path, default=RESULTS / "scoring.json")
    arguments = parser.parse_args()
    if arguments.one:
        model, variant, folder = arguments.one
        print(json.dumps(measure(model, variant, Path(folder))))
    else:
        main(arguments.out)
