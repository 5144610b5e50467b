"""A training loop that records, in a process of its own: `python -m tests.kill.recording FOLDER`.

It continues after the last step in the folder, as a resumed run does, and prints on
stdout the steps whose rows are on disk.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import rcdiag

STEPS, ROWS = 40, 8


def rows_of(step: int) -> dict[str, object]:
    """The rows that a step records, the same each time."""
    draw = np.random.default_rng(step)
    rollout = [-draw.exponential(1.0, 12).astype(np.float32) for _ in range(ROWS)]
    return {
        "response_ids": [draw.integers(0, 90, 12).tolist() for _ in range(ROWS)],
        "rollout_log_probs": [row.tolist() for row in rollout],
        "old_log_probs": [np.minimum(row + np.float32(1e-3), 0).tolist() for row in rollout],
        "step": [step] * ROWS,
    }


def steps_on_disk(folder: Path) -> list[int]:
    """Return the step of every row on disk, ascending; every file is read in whole."""
    steps: list[int] = []
    for path in folder.glob("*.parquet"):
        steps += pq.read_table(path, page_checksum_verification=True)["step"].to_pylist()
    return sorted(steps)


def main() -> None:
    folder = Path(sys.argv[1])
    done = steps_on_disk(folder) if folder.exists() else []
    with rcdiag.Recorder(folder, flush_rows=ROWS) as recorder:
        for step in range(max(done, default=-1) + 1, STEPS):
            recorder.add(**rows_of(step))
            print(step, flush=True)


if __name__ == "__main__":
    main()
