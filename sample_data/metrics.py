"""Write `metrics.jsonl`: what verl logs of a run whose temperature changed at step 25.

    python sample_data/metrics.py

Every step draws 24 rows, before step 25 from `rollouts.parquet`, from then on from
`temperature.parquet`, whose tokens were sampled at 0.7 while the log-probs of temperature 1 were
recorded. The numbers of the mismatch are computed from these rows by rcdiag, by verl's definitions.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import rcdiag

HERE = Path(__file__).parent
STEPS, BEGINS, ROWS = 48, 25, 24
COLUMNS = ["response_ids", "rollout_log_probs", "old_log_probs"]
PRESET = "decoupled_token_is"
# rcdiag's number -> the key of verl's debug metrics, which stand beside those of the correction.
DEBUG = {
    "prob_diff_mean": "training/rollout_probs_diff_mean",
    "prob_diff_max": "training/rollout_probs_diff_max",
    "prob_pearson": "training/rollout_actor_probs_pearson_corr",
}


def drawn(name: str, first: int, last: int, rng: np.random.Generator) -> pa.Table:
    """Draw the rows of the steps from `first` to `last`."""
    table = pq.read_table(HERE / name, columns=COLUMNS)
    steps = np.repeat(np.arange(first, last + 1), ROWS)
    rows = rng.integers(0, len(table), len(steps))
    return table.take(pa.array(rows)).append_column("step", pa.array(steps))


def main() -> None:
    rng = np.random.default_rng(0)
    parts = [
        drawn("rollouts.parquet", 1, BEGINS - 1, rng),
        drawn("temperature.parquet", BEGINS, STEPS, rng),
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.parquet"
        pq.write_table(pa.concat_tables(parts), path)
        result = rcdiag.score(path, trainer="verl", presets=[PRESET])
    with (HERE / "metrics.jsonl").open("w") as stream:
        for step, part in result.steps.items():
            row = {"step": int(step), **part.corrections[PRESET].metrics}
            row |= {key: part.mismatch[name].value for name, key in DEBUG.items()}
            row = {
                key: value if key == "step" else float(f"{value:.6g}") for key, value in row.items()
            }
            stream.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
