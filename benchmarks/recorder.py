"""Time that `Recorder.add` and `flush` take for 512 responses of 4,000 tokens, in several forms.

`python benchmarks/recorder.py` (or `make bench`) adds the same batch as padded tensors, as tensors
in bfloat16, as ragged arrays and as Python lists, prints the seconds until it is on disk, and
stores them in `benchmarks/results/recorder.json`. The best of ROUNDS counts.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Import from the repository root: `statistics.py` in this folder would hide the standard module.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np  # noqa: E402
import torch  # noqa: E402

from benchmarks import RESULTS, store  # noqa: E402
from rcdiag import Recorder  # noqa: E402

ROWS, WIDTH, ROUNDS = 512, 4_000, 5
LIMIT = 0.5  # seconds that a batch may take


def batch() -> dict[str, Any]:
    """Make a batch of padded float32 tensors in which every response has the full width."""
    torch.manual_seed(0)
    surprisal = 10.0 ** (torch.rand(ROWS, WIDTH) * 7 - 6)
    return {
        "response_ids": (32_000 * torch.rand(ROWS, WIDTH) ** 3).long(),
        "rollout_log_probs": -surprisal,
        "old_log_probs": -surprisal * torch.randn(ROWS, WIDTH).mul(0.01).exp(),
        "response_mask": torch.ones(ROWS, WIDTH, dtype=torch.long),
        "attention_mask": torch.ones(ROWS, WIDTH, dtype=torch.long),
        "prompt_ids": torch.randint(0, 32_000, (ROWS, 200)).tolist(),
        "group_id": (np.arange(ROWS) // 8).tolist(),
        "reward": torch.rand(ROWS),
        "step": 0,
    }


def in_bfloat16(given: dict[str, Any]) -> dict[str, Any]:
    return {k: v.bfloat16() if k.endswith("log_probs") else v for k, v in given.items()}


def as_arrays(given: dict[str, Any]) -> dict[str, Any]:
    """Return one array per response, without padding."""
    ragged = {
        name: list(value.numpy()) if getattr(value, "ndim", 0) == 2 else value
        for name, value in given.items()
    }
    del ragged["attention_mask"]
    return ragged


def as_lists(given: dict[str, Any]) -> dict[str, Any]:
    return {
        name: [row.tolist() for row in value] if isinstance(value[0], np.ndarray) else value
        for name, value in as_arrays(given).items()
        if name != "step"
    } | {"step": 0}


def seconds(given: dict[str, Any], folder: Path) -> tuple[float, float]:
    """Return the best wall and CPU time from `add` to the file on disk."""
    walls, times = [], []
    with Recorder(folder, flush_seconds=1e6) as recorder:
        for _ in range(ROUNDS):
            start, before = time.perf_counter(), time.process_time()
            recorder.add(**given)
            recorder.flush()
            walls.append(time.perf_counter() - start)
            times.append(time.process_time() - before)
    return min(walls), min(times)


def main() -> None:
    tensors = batch()
    forms = {
        "padded tensors, float32": tensors,
        "padded tensors, bfloat16": in_bfloat16(tensors),
        "an array for each response": as_arrays(tensors),
        "lists of Python numbers": as_lists(tensors),
    }
    results = []
    for name, given in forms.items():
        with tempfile.TemporaryDirectory() as folder:
            taken, cpu = seconds(given, Path(folder))
            size = sum(path.stat().st_size for path in Path(folder).glob("*.parquet")) / ROUNDS
        results.append(
            {
                "form": name,
                "wall_s": round(taken, 3),
                "cpu_s": round(cpu, 3),
                "mtok_per_s": round(ROWS * WIDTH / taken / 1e6, 1),
                "bytes_per_token": round(size / (ROWS * WIDTH), 2),
            }
        )
        print(f"{name:30} {taken:.3f} s, CPU {cpu:.3f} s for {ROWS} x {WIDTH} tokens", flush=True)
    store(
        RESULTS / "recorder.json",
        {
            "responses": ROWS,
            "tokens_per_response": WIDTH,
            "limit_s": LIMIT,
            "results": results,
        },
    )


if __name__ == "__main__":
    main()
