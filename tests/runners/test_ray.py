"""A real Ray cluster of two nodes on this machine: equal scores, even after failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.engine_models import make_model, make_table
from tests.runners.conftest import LIMIT, processes, wait_for

pytestmark = pytest.mark.cluster

# The command line with small parts, so that a short table has many.
RCDIAG = [
    *(sys.executable, "-c"),
    "import cli.main, rcdiag.engines.scoring as run; run.TOKENS_PER_PART = 8192; cli.main.main()",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "qwen3", "qwen3")


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    return make_table(tmp_path_factory.mktemp("tables") / "table.parquet", rows=1300)


@pytest.fixture(scope="module")
def arguments(table, model) -> Callable[[Path], list[str]]:
    def command(out: Path) -> list[str]:
        policies = ["--policy", "a=hf:float32", "--policy", "b=hf:float32,batch_tokens=512"]
        pair = ["--behavior", "a", "--target", "b"]
        return ["score", str(table), "--model", str(model), *policies, *pair, "-o", str(out)]

    return command


@pytest.fixture(scope="module")
def local(arguments, tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """Scores of one engine on this machine, with as many threads as a node has."""
    out = tmp_path_factory.mktemp("local") / "out.parquet"
    run = start([*arguments(out), "--json"])
    document, err = run.communicate(timeout=LIMIT)
    assert run.returncode == 0, err
    return out, json.loads(document)


def start(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*RCDIAG, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def parts(out: Path) -> int:
    return len(list(out.with_name(out.name + ".parts").glob("*-*/0*.parquet")))


def workers() -> list[int]:
    """Return the processes of engines on all nodes."""
    return processes("rcdiag.engines.worker$")


def check_equal(run: subprocess.Popen[str], out: Path, local: tuple[Path, dict[str, Any]]) -> str:
    """Check that the run succeeds with the local table and numbers; returns its messages."""
    document, err = run.communicate(timeout=LIMIT)
    assert run.returncode == 0, err
    assert pq.read_table(out).equals(pq.read_table(local[0]))
    assert json.loads(document)["mismatch"] == local[1]["mismatch"]
    assert not out.with_name(out.name + ".parts").exists()
    return err


def test_a_cluster_scores_what_one_machine_scores(cluster, arguments, local, tmp_path):
    out = tmp_path / "out.parquet"
    run = start([*arguments(out), "--json", "--on", f"ray:{cluster.address}"])
    wait_for(run, lambda: len(workers()) >= 2)
    assert "2 times" in check_equal(run, out, local)


def test_the_part_of_a_dead_engine_is_repeated(cluster, arguments, local, tmp_path):
    out = tmp_path / "out.parquet"
    run = start([*arguments(out), "--json", "--on", f"ray:{cluster.address}"])
    wait_for(run, lambda: parts(out) >= 2)
    os.kill(wait_for(run, workers)[0], signal.SIGKILL)
    assert "another is started" in check_equal(run, out, local)


def test_the_part_of_a_lost_node_is_done_by_the_other(cluster, arguments, local, tmp_path):
    out = tmp_path / "out.parquet"
    run = start([*arguments(out), "--json", "--on", f"ray:{cluster.address}"])
    wait_for(run, lambda: parts(out) >= 1 and len(workers()) == 2)
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    assert run.poll() is None
    check_equal(run, out, local)


def test_a_killed_run_resumes_from_its_parts(cluster, arguments, local, tmp_path):
    out = tmp_path / "out.parquet"
    command = [*arguments(out), "--json", "--on", f"ray:{cluster.address}"]
    run = start(command)
    wait_for(run, lambda: parts(out) >= 3)
    run.kill()
    run.communicate()
    folder = out.with_name(out.name + ".parts")
    kept = {file: file.stat().st_mtime_ns for file in folder.glob("*-*/0*.parquet")}
    assert kept
    again = start(command)
    wait_for(again, lambda: parts(out) > len(kept))
    assert kept == {file: file.stat().st_mtime_ns for file in kept}, "a part was made again"
    check_equal(again, out, local)


def test_a_dry_run_lists_the_resources_of_the_cluster(cluster, arguments, tmp_path):
    run = start([*arguments(tmp_path / "out.parquet"), "--dry-run", f"--on=ray:{cluster.address}"])
    said, err = run.communicate(timeout=LIMIT)
    assert run.returncode == 0, err
    assert "2 engines on a Ray cluster of 2 nodes, each with 1 CPU" in said + err


def test_no_cluster_at_an_address_is_an_error(arguments, tmp_path):
    run = start([*arguments(tmp_path / "out.parquet"), "--on", "ray:127.0.0.1:1"])
    _, err = run.communicate(timeout=LIMIT)
    assert run.returncode == 2
    assert "error: " in err
    assert "ray status" in err
    assert "Traceback" not in err
