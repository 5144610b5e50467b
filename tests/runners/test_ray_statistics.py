"""Recorded columns on a real Ray cluster of two nodes: equal numbers, even after failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.runners.conftest import LIMIT, processes, wait_for
from tests.statistics.comparisons import assert_near

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
# The command line with small parts, so that a short table has many.
RCDIAG = [
    *(sys.executable, "-c"),
    "import cli.main, rcdiag.usecases.passes as passes, rcdiag.usecases.sweep.run as sweep; "
    "passes.TOKENS_OF_PART, sweep.TOKENS_OF_SETTING = 2000, 0; cli.main.main()",
]


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "table.parquet"
    rows = pq.read_table(ROOT / "sample_data" / "stale.parquet")
    pq.write_table(pa.concat_tables([rows] * 4), path, row_group_size=200)
    return path


def start(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*RCDIAG, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def document(run: subprocess.Popen[str]) -> dict[str, Any]:
    """Check that the run succeeds; returns its result without machine and time."""
    out, err = run.communicate(timeout=LIMIT)
    assert run.returncode == 0, err
    content = json.loads(out)
    del content["provenance"]
    return content


def tasks() -> list[int]:
    """Return the processes that are computing a part of the table."""
    return processes("^ray::_call$")


@pytest.fixture(scope="module")
def swept(table) -> dict[str, Any]:
    return document(start(["sweep", str(table), "--json"]))


@pytest.mark.parametrize("command", ["score", "compare", "sweep"])
def test_a_cluster_gives_the_numbers_of_one_machine(cluster, table, command):
    local = document(start([command, str(table), "--json"]))
    run = start([command, str(table), "--json", "--on", f"ray:{cluster.address}"])
    assert_near(document(run), local, command)


def test_the_part_of_a_killed_process_is_repeated(cluster, table, swept):
    run = start(["sweep", str(table), "--json", "--on", f"ray:{cluster.address}"])
    for _ in range(2):
        os.kill(wait_for(run, tasks)[0], signal.SIGKILL)
    assert_near(document(run), swept, "sweep")


def test_the_parts_of_a_lost_node_are_done_by_the_other(cluster, table, swept):
    run = start(["sweep", str(table), "--json", "--on", f"ray:{cluster.address}"])
    wait_for(run, lambda: len(tasks()) == 2)
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    assert run.poll() is None
    assert_near(document(run), swept, "sweep")


def test_an_error_in_a_part_is_reported_as_on_one_machine(cluster, tmp_path):
    rows = pq.read_table(ROOT / "sample_data" / "stale.parquet")
    lists = rows["old_log_probs"].to_pylist()
    lists[131] = lists[131][:-1]
    place = rows.schema.get_field_index("old_log_probs")
    field = rows.schema.field(place)
    short = tmp_path / "short.parquet"
    pq.write_table(rows.set_column(place, field, pa.array(lists, field.type)), short)
    run = start(["score", str(short), "--on", f"ray:{cluster.address}"])
    _, err = run.communicate(timeout=LIMIT)
    assert run.returncode == 2
    assert "row 131" in err
    assert "Traceback" not in err
