"""Scaling: one and two engines or cores, on this machine and on a Ray cluster of one and two nodes.

`python benchmarks/scale.py` stores its results in `benchmarks/results/scale.json`. Shipped
rollouts are scored with hf:float32 at two sizes, and passes over recorded log-probs run at two
sizes, to separate the fixed costs (processes, loading, start of a cluster) from the seconds per
million tokens:

    seconds = fixed + tokens / (rate x engines)

Every engine has one core and one thread, alone or in parallel with another. The parts of
a pass are measured in processor time: computing, sending and merging their states.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).resolve().parents[1]
# Import from the repository root: `statistics.py` in this folder would hide the standard module.
sys.path[0] = str(ROOT)

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

import rcdiag  # noqa: E402
from benchmarks import RESULTS, store  # noqa: E402
from rcdiag.runners.runner import Runner  # noqa: E402

ROWS = 256  # of the shipped table
COPIES = (1, 4)  # of these rows
RECORDED_COPIES = (40, 160)  # of the shipped table, whose recorded columns a pass reads
MODEL = ROOT / "sample_data" / "policy" / "step_8"


def table(folder: Path, copies: int) -> tuple[Path, int]:
    """Repeat shipped rollouts; returns the table and its number of scored tokens."""
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
    """Run a Ray cluster of single-core nodes on this machine."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            made.add_node(num_cpus=1)
        yield f"ray:{made.address}"
    finally:
        made.shutdown()


def seconds(path: Path, arguments: list[str]) -> float:
    """Return the wall time of one scoring run in its own process."""
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
    """Return times at both sizes, and the fixed cost and rate that fit both."""
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


def recorded(folder: Path, copies: int) -> tuple[Path, int]:
    """Repeat all shipped rollouts with recorded log-probs; returns table and response tokens."""
    rows = pq.read_table(ROOT / "sample_data" / "rollouts.parquet").drop_columns(["sample_id"])
    path = folder / f"recorded_{copies}.parquet"
    pq.write_table(pa.concat_tables([rows] * copies), path, row_group_size=4096)
    return path, copies * len(rows["response_ids"].combine_chunks().flatten())


def pass_seconds(path: Path, arguments: list[str]) -> float:
    """Return the wall time of `rcdiag score` on recorded columns."""
    command = [sys.executable, "-m", "cli.main", "score", str(path), "-q", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def measured_pass(
    name: str, cores: int, arguments: list[str], tables: list[tuple[Path, int]]
) -> dict:
    """Return times of a pass at both sizes, and the fixed cost and rate that fit both."""
    times = [pass_seconds(path, arguments) for path, _ in tables]
    (_, few), (_, many) = tables
    rate = (many - few) / (times[1] - times[0])
    return {
        "where": name,
        "cores": cores,
        "seconds": [round(one, 1) for one in times],
        "tokens": [few, many],
        "fixed_s": round(times[0] - few / rate, 1),
        "tokens_per_s": round(rate),
    }


class Counted:
    """Runner that computes the parts in this process, and measures time and size of each state."""

    def __init__(self) -> None:
        self.walk_s = self.send_s = 0.0
        self.state_bytes = 0

    def workers(self, tokens: int) -> int:
        return 1

    def map(self, function: Callable[[Any], Any], parts: Iterable[Any]) -> Generator[Any]:
        from loky import cloudpickle

        for part in parts:
            start = time.process_time()
            state = function(part)
            walked = time.process_time()
            content = cloudpickle.dumps(state)
            received = cloudpickle.loads(content)
            self.walk_s += walked - start
            self.send_s += time.process_time() - walked
            self.state_bytes += len(content)
            yield received


def part_costs(path: Path, tokens: int) -> dict:
    """Return the processor time of the steps of a pass, per token and per sequence."""
    from rcdiag.usecases.passes import read_table
    from rcdiag.usecases.plans import plan_of
    from rcdiag.usecases.score import PairWalk

    opened = rcdiag.open_table(path)
    runner = Counted()
    behavior, target = opened.policies[:2]
    start = time.process_time()
    walk = PairWalk.of(opened, behavior, target, plan_of())
    # It starts no engines, and a pass asks for none.
    read_table(opened, walk, cast(Runner, runner))
    rest = time.process_time() - start - runner.walk_s - runner.send_s
    return {
        "file_bytes_per_token": round(path.stat().st_size / tokens, 2),
        "walk_ns_per_token": round(runner.walk_s / tokens * 1e9),
        "state_bytes_per_sequence": round(runner.state_bytes / opened.num_rows),
        "send_us_per_sequence": round(runner.send_s / opened.num_rows * 1e6, 1),
        "add_us_per_sequence": round(rest / opened.num_rows * 1e6, 1),
    }


def passes(folder: Path) -> dict:
    """Measure the pass over recorded columns: cost of its steps, times here and on clusters."""
    tables = [recorded(folder, copies) for copies in RECORDED_COPIES]
    print("walking the parts of one table", flush=True)
    part = part_costs(*tables[-1])
    print("   ".join(f"{key} {value}" for key, value in part.items()), flush=True)
    cores = len(os.sched_getaffinity(0))
    runs = [measured_pass("this machine", cores, [], tables)]
    for nodes in (1, 2):
        with cluster(nodes) as address:
            runs.append(measured_pass("Ray", nodes, ["--on", address], tables))
    for run in runs:
        print("   ".join(f"{key} {value}" for key, value in run.items()), flush=True)
    return {"part": part, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--show", action="store_true", help="print alone, keep the stored results")
    parser.add_argument("--passes", action="store_true", help="leave scoring out; keeps no results")
    options = parser.parse_args()
    if options.passes:
        with tempfile.TemporaryDirectory() as folder:
            passes(Path(folder))
        return
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
        measured_passes = passes(Path(folder))
    if options.show:
        return
    store(
        RESULTS / "scale.json",
        {
            "results": results,
            "passes": measured_passes,
        },
    )


if __name__ == "__main__":
    main()
