"""`rcdiag convert` on dumps of JSON lines and of tensors: tokens per second, and peak memory.

`python benchmarks/convert.py` (or `make bench`) writes dumps in the formats of open-instruct (JSON
lines), of a hook in verl (padded matrices, one torch file per step) and of slime (lists of Python
numbers, or six tensors per response, one torch file per step). It converts each in its own process,
prints a table and stores it in `benchmarks/results/convert.json`. Seconds are those of the
whole command, start-up included, with compiled modules as after `pip install`; memory is the
peak resident set. The different sizes show that memory does not grow with the dump. Tokens are
response tokens; prompts are read and written too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

# Import from the repository root: `statistics.py` in this folder would hide the standard module.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np  # noqa: E402

from benchmarks import RESULTS, store  # noqa: E402

RESPONSE, PROMPT, GROUP = 1000, 200, 8
ROWS_PER_FILE = 500
# Rows of each dump: 2, 20 and 60 million response tokens. Start-up is negligible for the largest.
SMALL, LARGE, LARGEST = 2_000, 20_000, 60_000

PROBE = """
import json, sys, time  # noqa: E402
start = time.perf_counter()
from cli.main import main  # noqa: E402
sys.argv = ["rcdiag", "convert", sys.argv[1], "-o", sys.argv[2], "-q"]
try:
    main()
except SystemExit as stopped:
    assert not stopped.code, stopped.code
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
peak = int(status["VmHWM"].split()[0]) // 1024
print(json.dumps({"seconds": time.perf_counter() - start, "peak_mb": peak}))
"""


def batch(random: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
    """Make rows of full length with log-probs of a peaked policy, all different."""
    surprisal = 10.0 ** random.uniform(-6, 1, (rows, RESPONSE))
    prompts = random.integers(0, 32_000, (rows // GROUP + 1, PROMPT)).repeat(GROUP, axis=0)
    other = surprisal * np.exp(random.normal(0, 0.01, surprisal.shape))
    return {
        "prompts": prompts[:rows],
        "responses": (32_000 * random.random((rows, RESPONSE)) ** 3).astype(np.int64),
        "rollout_log_probs": -surprisal.astype(np.float32),
        "old_log_probs": -other.astype(np.float32),
    }


def json_lines(folder: Path, step: int, values: dict[str, np.ndarray]) -> None:
    """Write a file in open-instruct's format: one line per response."""
    with (folder / f"run_rollouts_{step:06d}.jsonl").open("w") as stream:
        for row in range(len(values["responses"])):
            record = {
                "step": step,
                "sample_idx": row,
                "prompt_idx": row // GROUP,
                "prompt_tokens": values["prompts"][row].tolist(),
                "response_tokens": values["responses"][row].tolist(),
                "reward": 1.0,
                "advantage": 0.5,
                "finish_reason": "stop",
                "dataset": "math",
                "ground_truth": "42",
                "request_info": None,
                "logprobs": values["rollout_log_probs"][row].tolist(),
            }
            stream.write(json.dumps(record) + "\n")


def tensors(folder: Path, step: int, values: dict[str, np.ndarray]) -> None:
    """Write a file as a hook in verl's trainer does: padded matrices in a torch file."""
    import torch

    made = {name: torch.from_numpy(value) for name, value in values.items()}
    rows = len(values["responses"])
    made["attention_mask"] = torch.ones(rows, PROMPT + RESPONSE, dtype=torch.int64)
    made["response_mask"] = torch.ones(rows, RESPONSE, dtype=torch.int64)
    torch.save(made, folder / f"step_{step}.pt")


def slime_lists(folder: Path, step: int, values: dict[str, np.ndarray]) -> None:
    """Write a file as slime's --save-debug-rollout-data does: lists of Python numbers."""
    import torch

    samples = [
        {
            "index": step * ROWS_PER_FILE + row,
            "group_index": (step * ROWS_PER_FILE + row) // GROUP,
            "tokens": [*values["prompts"][row].tolist(), *values["responses"][row].tolist()],
            "response_length": RESPONSE,
            "loss_mask": [1] * RESPONSE,
            "rollout_log_probs": values["rollout_log_probs"][row].tolist(),
            "reward": 1.0,
            "status": "completed",
        }
        for row in range(len(values["responses"]))
    ]
    torch.save({"rollout_id": step, "samples": samples}, folder / f"rollout_{step}.pt")


def slime_tensors(folder: Path, step: int, values: dict[str, np.ndarray]) -> None:
    """Write a file as slime's --save-debug-train-data does: tensors per response."""
    import torch

    samples = [
        {
            "tokens": torch.from_numpy(
                np.concatenate([values["prompts"][row], values["responses"][row]])
            ),
            "response_lengths": RESPONSE,
            "sample_index": step * ROWS_PER_FILE + row,
            "rollout_position": row,
            "loss_masks": torch.ones(RESPONSE, dtype=torch.int32),
            "rollout_log_probs": torch.from_numpy(values["rollout_log_probs"][row].copy()),
            "log_probs": torch.from_numpy(values["old_log_probs"][row].copy()),
            "advantages": torch.full((RESPONSE,), 0.5),
            "returns": torch.full((RESPONSE,), 0.5),
        }
        for row in range(len(values["responses"]))
    ]
    made = {"rollout_id": step, "format_version": 2, "samples": samples}
    torch.save(made | {"raw_reward": [1.0] * len(samples)}, folder / f"{step}.pt")


Write = Callable[[Path, int, dict[str, np.ndarray]], None]
FORMATS: dict[str, tuple[Write, tuple[int, ...]]] = {
    "JSON lines (open-instruct)": (json_lines, (SMALL, LARGE)),
    "tensors (a hook in verl)": (tensors, (SMALL, LARGE, LARGEST)),
    "tensors by row (slime)": (slime_tensors, (SMALL, LARGE)),
    "lists in pickles (slime)": (slime_lists, (SMALL, LARGE)),
}


def measured(source: Path, output: Path, compiled: Path) -> dict[str, float]:
    """Convert in a process of its own, with compiled modules cached in a folder."""
    command = [sys.executable, "-c", PROBE, str(source), str(output)]
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(compiled)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    ran = subprocess.run(
        command, capture_output=True, check=True, text=True, cwd=sys.path[0], env=environment
    )
    return json.loads(ran.stdout)


def main() -> None:
    results = []
    for name, (write, sizes) in FORMATS.items():
        for rows in sizes:
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch, "dump")
                folder.mkdir()
                random = np.random.default_rng(0)
                for step in range(rows // ROWS_PER_FILE):
                    write(folder, step, batch(random, ROWS_PER_FILE))
                files = sorted(folder.iterdir())
                size = sum(path.stat().st_size for path in files)
                compiled = Path(scratch, "compiled")
                measured(files[0], Path(scratch, "first.parquet"), compiled)
                ran = measured(folder, Path(scratch, "table.parquet"), compiled)
            tokens = rows * RESPONSE
            entry = {
                "format": name,
                "tokens": tokens,
                "dump_mb": round(size / 1e6),
                "seconds": round(ran["seconds"], 2),
                "mtok_per_s": round(tokens / 1e6 / ran["seconds"], 2),
                "peak_mb": ran["peak_mb"],
            }
            results.append(entry)
            print(
                f"{name:28} {tokens / 1e6:>4.0f} M tokens, {entry['dump_mb']:>5,} MB   "
                f"{entry['seconds']:>6.2f} s   {entry['mtok_per_s']:>6.2f} M tokens/s   "
                f"peak {entry['peak_mb']:,} MB",
                flush=True,
            )
    store(RESULTS / "convert.json", {"results": results})


if __name__ == "__main__":
    main()
