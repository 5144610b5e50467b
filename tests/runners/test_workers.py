"""Worker processes share a pass: equal numbers, the errors of one process, no orphans."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rcdiag
from rcdiag.errors import RcdiagError
from rcdiag.results import Document
from rcdiag.runners import runner as runner_module
from rcdiag.runners import runner_on
from rcdiag.runners.processes import map_in_processes
from rcdiag.statistics.metrics import METRICS
from rcdiag.usecases import passes
from rcdiag.usecases.compare.run import compare
from rcdiag.usecases.plans import plan_of
from rcdiag.usecases.score import score
from rcdiag.usecases.sweep.run import sweep
from tests.runners.conftest import LIMIT, wait_for
from tests.runners.tasks import (
    fail_in_main,
    kill_worker,
    place_of,
    threads_of_blas,
    wait_in_worker,
)
from tests.statistics.comparisons import assert_near

ROOT = Path(__file__).parents[2]
STALE = ROOT / "sample_data" / "stale.parquet"
# Limits with which workers share a short table in many parts.
SMALL = {
    "rcdiag.runners.local.WORTH_WORKERS": 0,
    "rcdiag.usecases.passes.TOKENS_OF_PART": 700,
    "rcdiag.usecases.sweep.run.TOKENS_OF_SETTING": 0,
}


@pytest.fixture
def small_parts(monkeypatch):
    for name, value in SMALL.items():
        monkeypatch.setattr(name, value)


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> rcdiag.Table:
    """Two files with irregular row groups, and a column whose encoding varies by group."""
    folder = tmp_path_factory.mktemp("dump")
    rows = pq.read_table(STALE)
    rows = rows.set_column(
        rows.schema.get_field_index("group_id"),
        "group_id",
        pa.array([str(one) for one in rows["group_id"].to_pylist()]).dictionary_encode(),
    )
    pq.write_table(rows.slice(0, 100), folder / "0.parquet", row_group_size=33)
    pq.write_table(rows.slice(100, 77), folder / "1.parquet", row_group_size=8)
    return rcdiag.open_table(folder)


def document(result: Document) -> dict[str, Any]:
    content = json.loads(result.to_json())
    del content["provenance"]
    return content


def in_order(value: Any) -> Any:
    """Return a document whose objects have their keys in the same order."""
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value)}
    return [in_order(one) for one in value] if isinstance(value, list) else value


def scored(table: rcdiag.Table, runner: Any = None) -> Document:
    return score(table, plan=plan_of(trainer="all"), runner=runner)


def swept(table: rcdiag.Table, runner: Any = None) -> Document:
    return sweep(table, thresholds=3, runner=runner)


def compared(table: rcdiag.Table, runner: Any = None) -> Document:
    return compare(table, runner=runner)


@pytest.mark.parametrize(
    ("command", "several"), [(scored, (1, 3)), (compared, (2,)), (swept, (2,))]
)
def test_any_number_of_workers_gives_the_same_numbers(table, small_parts, command, several):
    alone = in_order(document(command(table)))
    for workers in several:
        shared = document(command(table, runner_on("local", None, workers)))
        assert_near(in_order(shared), alone, f"result of {workers}")


def test_a_small_table_stays_in_this_process(table):
    runner = runner_on("local", None, 4)
    assert runner.workers(table.response_tokens) == 0
    assert runner.place(table.response_tokens) == "in this process"
    assert runner.workers(1_000_000_000) == 4
    assert runner.place(1_000_000_000) == "by 4 processes"
    assert runner_on("local", None, 1).workers(1_000_000_000) == 0


def test_definitions_of_a_script_keep_the_pass_in_its_process():
    runner = runner_on("local", None, 4)
    own = METRICS["k3_kl"].__class__(**{**fields(METRICS["k3_kl"]), "name": "own_k3"})
    with METRICS.with_added(own):
        assert runner.workers(1_000_000_000) == 0
    assert runner.workers(1_000_000_000) == 4


def fields(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


@pytest.mark.parametrize("workers", [0, -1, 1.5])
def test_invalid_numbers_of_workers_are_refused(workers):
    with pytest.raises(RcdiagError, match="workers"):
        runner_on("local", None, workers)


def test_all_cores_are_used_within_the_quota_of_a_container(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3, 4, 5, 6, 7})
    monkeypatch.setattr(runner_module, "CPU_QUOTA", tmp_path / "cpu.max")
    assert runner_module.cores_to_use() == 8
    for quota, cores in (("max 100000", 8), ("250000 100000", 3), ("5000 100000", 1)):
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
        assert runner_module.cores_to_use() == cores


@pytest.mark.parametrize("workers", [0, 2, 5])
@pytest.mark.parametrize("tokens", [1, 700, 10**9])
def test_parts_cover_all_rows_in_order_and_end_at_row_groups(table, workers, tokens):
    parts = passes.parts_of(table, tokens, workers)
    assert (parts[0][0], parts[-1][1]) == (0, table.num_rows)
    assert [end for _, end in parts[:-1]] == [first for first, _ in parts[1:]]
    ends = {group.end for group in table.row_groups()}
    if workers == 0:
        assert {end for _, end in parts} <= ends
    if tokens == 1 and workers < 3:  # there are many more row groups than workers
        assert len(parts) >= 8


def test_one_large_row_group_is_cut_for_the_workers(tmp_path):
    pq.write_table(pq.read_table(STALE), tmp_path / "one.parquet")
    table = rcdiag.open_table(tmp_path / "one.parquet")
    assert len(passes.parts_of(table, 1000, 0)) == 1
    assert len(passes.parts_of(table, 1000, 2)) == 2
    assert len(passes.parts_of(table, 1000, 3)) == 3


@pytest.mark.parametrize("first", [0, 1, 5])
def test_a_part_reads_only_its_own_rows(table, first):
    part = (first, first + 90)
    alone = pa.concat_tables([one.table for one in table.batches(None, np.arange(*part))])
    whole = pa.concat_tables([one.table for one in table.batches()])
    assert alone.to_pylist() == whole.slice(first, 90).to_pylist()


def test_another_file_under_the_same_path_is_refused(tmp_path):
    rows = pq.read_table(STALE)
    path = tmp_path / "table.parquet"
    pq.write_table(rows, path)
    table = rcdiag.open_table(path)
    walk = passes.Walk(policies=("rollout", "old"))
    marks = {path: passes._mark(path)}
    pq.write_table(rows.slice(0, 100), path)
    with pytest.raises(RcdiagError, match="is another file") as refused:
        passes._walk_part(table, marks, walk, None, False, (0, 10))
    assert "every node reads the table" in refused.value.hint
    path.unlink()
    with pytest.raises(RcdiagError, match="is missing"):
        passes._walk_part(table, marks, walk, None, False, (0, 10))


def test_unreadable_rows_give_the_same_error_with_workers(tmp_path, small_parts):
    rows = pq.read_table(STALE).slice(0, 40)
    lists = rows["old_log_probs"].to_pylist()
    lists[31] = lists[31][:-1]
    place = rows.schema.get_field_index("old_log_probs")
    field = rows.schema.field(place)
    rows = rows.set_column(place, field, pa.array(lists, field.type))
    pq.write_table(rows, tmp_path / "short.parquet", row_group_size=10)
    table = rcdiag.open_table(tmp_path / "short.parquet")
    said = []
    for runner in (None, runner_on("local", None, 2)):
        with pytest.raises(rcdiag.RcdiagError, match=r"row 31.*old_log_probs") as refused:
            score(table, runner=runner)
        said.append((str(refused.value), refused.value.hint))
    assert said[0] == said[1]


def test_a_worker_killed_by_the_system_is_an_error_with_a_hint():
    with pytest.raises(RcdiagError, match="worker process was killed") as refused:
        list(map_in_processes(partial(kill_worker, os.getpid()), range(8), 3))
    assert "workers=1" in refused.value.hint or "--workers 1" in refused.value.hint


def test_workers_use_one_blas_thread():
    made = list(map_in_processes(threads_of_blas, range(4), 2))
    assert {threads for process, threads in made if process != os.getpid()} == {"1"}


@pytest.mark.parametrize("parts", [1, 40])
def test_results_are_in_order_and_this_process_does_parts_too(parts):
    made = list(map_in_processes(partial(place_of, os.getpid()), range(parts), 3))
    assert [number for number, _ in made] == list(range(parts))
    in_main = sum(main for _, main in made)
    assert in_main == 0 if parts == 1 else 0 < in_main < parts


def test_of_several_errors_that_of_the_first_part_is_raised():
    with pytest.raises(RcdiagError, match="part 0"):
        list(map_in_processes(partial(fail_in_main, os.getpid()), range(4), 2))


def test_workers_end_with_the_iterator():
    made = map_in_processes(partial(wait_in_worker, os.getpid()), [0, 1, 1, 1, 1], 2)
    worker = next(made)
    made.close()
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def command_of_many_parts(path: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a long command in its own process group."""
    rows = pq.read_table(STALE)
    pq.write_table(pa.concat_tables([rows] * 20), path, row_group_size=300)
    patch = "; ".join(
        f"import {name.rpartition('.')[0]} as module; module.{name.rpartition('.')[2]} = {value}"
        for name, value in SMALL.items()
    )
    command = f"{patch}; import cli.main; cli.main.main()"
    return subprocess.Popen(
        [sys.executable, "-c", command, "sweep", str(path), "--workers", "3", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=ROOT,
    )


def group_of(run: subprocess.Popen[str]) -> list[int]:
    """Return the started workers of a command, without loky's other processes."""
    listed = subprocess.run(
        ["pgrep", "-g", str(run.pid), "-f", "loky.backend.popen_loky"],
        capture_output=True,
        text=True,
        check=False,
    )
    return [int(line) for line in listed.stdout.split()]


@pytest.mark.parametrize(("interrupt", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_command_that_is_interrupted_or_killed_leaves_no_worker(tmp_path, interrupt, code):
    run = command_of_many_parts(tmp_path / "table.parquet")
    wait_for(run, lambda: len(group_of(run)) == 2)
    if interrupt == signal.SIGINT:
        os.killpg(run.pid, interrupt)  # as a terminal does
    else:
        os.kill(run.pid, interrupt)
    _, err = run.communicate(timeout=LIMIT)
    assert run.returncode == code
    if code == 130:
        assert err.strip().endswith("interrupted")
        assert "Traceback" not in err
    end = time.monotonic() + 30
    while group_of(run):
        assert time.monotonic() < end, "workers are left"
        time.sleep(0.05)


def test_a_script_without_a_main_guard_is_not_run_by_the_workers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import rcdiag, rcdiag.runners.local as local, rcdiag.usecases.passes as passes\n"
        "print('started')\n"
        "local.WORTH_WORKERS, passes.TOKENS_OF_PART = 0, 700\n"
        f"print(rcdiag.score({str(STALE)!r}, workers=2).num_sequences)\n"
    )
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    rows = pq.read_table(STALE, columns=["response_ids"])
    assert run.stdout.split() == ["started", str(rows.num_rows)]
