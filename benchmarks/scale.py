"""How scoring grows with engines side by side: one and two on this machine, one and two Ray nodes.

`python benchmarks/scale.py` prints a table and stores it in `benchmarks/results/scale.json`. Some
shipped rollouts are scored with hf:float32 at two sizes, so that what does not depend on the tokens
(processes, loading, a cluster's start) and the seconds a million tokens take come apart:

    seconds = fixed + tokens / (rate x engines)

Every engine has one core, whether it stands alone or beside another, and one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The repository and not this folder, whose `statistics` would stand before Python's own.
sys.path[0] = str(ROOT)

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from benchmarks.scoring import machine  # noqa: E402

ROWS = 256  # of the shipped table
COPIES = (1, 4)  # of these rows
MODEL = ROOT / "sample_data" / "policy" / "step_8"


def table(folder: Path, copies: int) -> tuple[Path, int]:
    """Shipped rollouts so many times, and the tokens that are scored of them."""
    rows = pq.read_table(ROOT / "sample_data" / "rollouts.parquet").slice(0, ROWS)
    rows = rows.select(["prompt_ids", "response_ids", "response_mask", "temperature"])
    path = folder / f"rollouts_{copies}.parquet"
    pq.write_table(pa.concat_tables([rows] * copies), path)
    tokens = sum(
        len(rows[name].combine_chunks().flatten()) for name in ("prompt_ids", "response_ids")
    )
    return path, tokens * copies


@contextmanager
def cluster(nodes: int) -> Iterator[str]:
    """A Ray cluster of so many nodes with a core each, on this machine."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            made.add_node(num_cpus=1)
        yield f"ray:{made.address}"
    finally:
        made.shutdown()


def seconds(path: Path, arguments: list[str]) -> float:
    """The wall time of one scoring run, in a process of its own, from start to end."""
    out = path.with_name("scored.parquet")
    policies = ["--policy", "a=hf:float32", "--policy", "b=hf:float32,batch_tokens=2048"]
    command = [
        *(sys.executable, "-m", "cli.main", "score", str(path), "--model", str(MODEL), *policies),
        *("--behavior", "a", "--target", "b", "-q", "--force", "-o", str(out), *arguments),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    return time.perf_counter() - start


def measured(name: str, engines: int, arguments: list[str], tables: list[tuple[Path, int]]) -> dict:
    """Times at both sizes, and the two numbers of the model that go through them."""
    times = [seconds(path, arguments) for path, _ in tables]
    (_, few), (_, many) = tables
    rate = 2 * (many - few) / (times[1] - times[0])  # two policies
    return {
        "where": name,
        "engines": engines,
        "seconds": [round(one, 1) for one in times],
        "tokens": [2 * few, 2 * many],
        "fixed_s": round(times[0] - 2 * few / rate, 1),
        "tokens_per_s": round(rate),
        "tokens_per_s_and_engine": round(rate / engines),
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        tables = [table(Path(folder), copies) for copies in COPIES]
        for engines in (1, 2):
            devices = ["--devices", str(engines)] if engines > 1 else []
            results.append(measured("this machine", engines, devices, tables))
            print("   ".join(f"{key} {value}" for key, value in results[-1].items()), flush=True)
        for nodes in (1, 2):
            with cluster(nodes) as address:
                results.append(measured("Ray", nodes, ["--on", address], tables))
            print("   ".join(f"{key} {value}" for key, value in results[-1].items()), flush=True)
    document = {"machine": machine(), "date": time.strftime("%Y-%m-%d"), "results": results}
    out = Path(__file__).parent / "results" / "scale.json"
    out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
