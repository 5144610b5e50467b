"""A real `vllm serve` on loopback gives the scores of vLLM in this process, killed or not."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rcdiag
from rcdiag.engines.notation import parse_policy
from rcdiag.engines.server.engine import ServerEngine
from rcdiag.results import ScoreResult
from rcdiag.table.opening import open_table
from rcdiag.table.stream import decode, read_chunks

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]

SAMPLE = Path(__file__).parents[2] / "sample_data"
CHECKPOINT = SAMPLE / "policy" / "step_8"
ROWS, CONTEXT = 60, 256


class VllmServer:
    """vLLM's OpenAI server of the sample policy in float32, with the same port at each start.

    It runs in its own process group, because its engine is a child process.
    """

    def __init__(self, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log, self.process = log, None
        self.address = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        settings = {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        options = [
            *("--model", CHECKPOINT, "--dtype", "float32", "--enforce-eager"),
            *("--max-model-len", CONTEXT, "--host", "127.0.0.1", "--port", self.port),
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *map(str, options)],
                env={**os.environ, **settings},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait until the server answers."""
        while True:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            try:
                urllib.request.urlopen(f"{self.address}/health", timeout=5).close()
            except OSError:
                time.sleep(0.5)
            else:
                return

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[VllmServer]:
    server = VllmServer(tmp_path_factory.mktemp("vllm") / "server.log")
    server.start()
    try:
        server.wait()
        yield server
    finally:
        server.kill()


def write_rows(path: Path, count: int) -> Path:
    """Write the first rows of the sample that fit, with the required columns only."""
    rows = pq.read_table(
        SAMPLE / "rollouts.parquet", columns=["prompt_ids", "response_ids", "rollout_log_probs"]
    ).to_pylist()
    short = [row for row in rows if len(row["prompt_ids"]) + len(row["response_ids"]) < CONTEXT]
    schema = pq.read_schema(SAMPLE / "rollouts.parquet")
    fields = [schema.field(name) for name in short[0]]
    pq.write_table(pa.Table.from_pylist(short[:count], pa.schema(fields)), path)
    assert pq.read_metadata(path).num_rows == count
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    return write_rows(tmp_path_factory.mktemp("table") / "table.parquet", ROWS)


def column(path: Path, name: str) -> np.ndarray:
    return pq.read_table(path)[name].combine_chunks().flatten().to_numpy()


@pytest.fixture(scope="module")
def scored(server, table, tmp_path_factory) -> tuple[ScoreResult, Path]:
    """The table scored by the server and by vLLM in its own process."""
    out = tmp_path_factory.mktemp("scored") / "scored.parquet"
    policies = {"served": f"server:float32,url={server.address}", "here": "vllm:float32"}
    result = rcdiag.score(
        table, model=CHECKPOINT, policies=policies, behavior="served", target="here", output=out
    )
    return result, out


def test_served_and_in_this_process_vllm_score_alike(scored):
    result, out = scored
    served, here = (column(out, f"{name}_log_probs") for name in ("served", "here"))
    np.testing.assert_allclose(served, here, atol=1e-5)
    assert result.mismatch["k2_kl"].value < 1e-10  # whoever sampled


def test_a_run_survives_a_restart_of_the_server(server, table, scored):
    rows = decode(next(read_chunks(open_table(table), [(0, ROWS)])))
    spec = parse_policy(f"x=server,url={server.address},concurrency=8")

    def restart() -> None:
        server.kill()
        server.start()

    done, killer = 0, threading.Thread(target=restart)

    def progress(tokens: int) -> None:
        nonlocal done
        done += 1
        if done == ROWS // 3:
            killer.start()

    again = ServerEngine(spec).score(rows, progress).log_probs
    killer.join()
    assert done == ROWS
    np.testing.assert_allclose(again, column(scored[1], "served_log_probs"), atol=1e-5)
