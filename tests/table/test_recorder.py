"""A recorder in a training loop: its files, its limits, kills, forks, ranks and full disks."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import rcdiag
from rcdiag import RcdiagError, Recorder
from rcdiag.table.recorder import LEDGERS
from tests.table.added_rows import add

LIMIT = 300.0  # seconds: a generous limit for steps of about one second


def parts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix == ".parquet")


def left_over(folder: Path) -> list[str]:
    """Return the names of temporary files, of which a closed recorder leaves none."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".parquet")


def steps_of(source: Path) -> list[int]:
    batches = rcdiag.open_table(source).batches(["step"])
    return [step for batch in batches for step in batch.table["step"].to_pylist()]


def child(code: str, *arguments: object) -> subprocess.Popen:
    """Run Python code that can use `add`, with a recorder's folder as its first argument."""
    head = "import os, sys, time\nfrom tests.table.added_rows import Recorder, add\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen) -> None:
    """Wait until a child has ended well."""
    _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, errors


def kill(process: subprocess.Popen) -> None:
    """Wait until a child is ready, then kill it by SIGKILL."""
    assert process.stdout is not None
    ready = process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate(timeout=LIMIT)
    assert ready == "ready\n", errors


def test_a_recording_is_a_table_that_commands_read(tmp_path):
    metadata = {"policies": {"rollout": {"backend": "vllm", "dtype": "bfloat16"}}}
    with Recorder(tmp_path / "dump", metadata=metadata) as recorder:
        recorder.describe("old", backend="fsdp", temperature=1.0)
        for step in range(3):
            add(recorder, 4, step, group_id=[f"{step}-0", f"{step}-1"] * 2, reward=[1, 0, 0, 1])
    table = rcdiag.open_table(tmp_path / "dump")
    assert table.num_rows == 12
    assert table.policies == ["rollout", "old"]
    assert table.metadata["policies"] == {
        "rollout": {"backend": "vllm", "dtype": "bfloat16"},
        "old": {"backend": "fsdp", "temperature": 1.0},
    }
    assert table.metadata["recorder"]["rank"] == 0
    result = rcdiag.score(table)
    assert (result.num_sequences, result.num_tokens) == (12, 24)
    assert result.mismatch["k1_kl"].value == pytest.approx(0.25)
    assert left_over(tmp_path / "dump") == []


def test_files_sort_by_step_rank_and_number(tmp_path):
    recorders = {
        (rank, step): Recorder(tmp_path, rank=rank) for step in (100, 9) for rank in (11, 2)
    }
    for (rank, step), recorder in recorders.items():
        for _ in range(2):
            add(recorder, 1, step, engine=rank)
            recorder.flush()
        recorder.close()
    assert [name[:26] for name in parts(tmp_path)] == [
        f"step-{step:010d}.rank-{rank:05d}"
        for step in (9, 100)
        for rank in (2, 11)
        for _ in range(2)
    ]
    assert steps_of(tmp_path) == [9] * 4 + [100] * 4
    table = rcdiag.open_table(tmp_path)
    engines = [row for batch in table.batches(["engine"]) for row in batch.table[0].to_pylist()]
    assert engines == [2, 2, 11, 11] * 2


def test_rows_are_written_when_there_are_enough(tmp_path):
    with Recorder(tmp_path, flush_rows=10) as recorder:
        add(recorder, 9)
        assert (recorder.pending_rows, parts(tmp_path)) == (9, [])
        add(recorder, 3)
        assert (recorder.pending_rows, len(parts(tmp_path)), recorder.rows) == (0, 1, 12)
    assert len(parts(tmp_path)) == 1
    with Recorder(tmp_path, flush_tokens=7) as recorder:
        add(recorder, 3)
        assert recorder.pending_rows == 3
        add(recorder, 1)
        assert recorder.pending_rows == 0


def test_rows_are_written_after_a_time_limit(tmp_path):
    with Recorder(tmp_path, flush_seconds=0.05) as recorder:
        for number in (1, 2):
            add(recorder)
            deadline = time.monotonic() + LIMIT
            while recorder.pending_rows and time.monotonic() < deadline:
                time.sleep(0.01)
            assert len(parts(tmp_path)) == number


def test_a_large_batch_becomes_row_groups_of_bounded_size(tmp_path):
    with Recorder(tmp_path, flush_tokens=10**9) as recorder:
        recorder.add(response_ids=[list(range(1000))] * 5000)
    file = pq.ParquetFile(next(tmp_path.glob("*.parquet")))
    assert file.metadata.num_row_groups == 3
    assert file.metadata.num_rows == 5000


def test_a_refused_batch_does_not_affect_others(tmp_path):
    with Recorder(tmp_path) as recorder:
        add(recorder, 2)
        with pytest.raises(RcdiagError, match="row 0 of the batch"):
            recorder.add(response_ids=[[1]], old_log_probs=[[-1.0, -1.0]])
        add(recorder, policy_version=1)
        with pytest.raises(RcdiagError, match="`policy_version` was int64 in earlier batches"):
            add(recorder, policy_version=[[1, 2]])
        recorder.add(response_ids=[])
    assert rcdiag.open_table(tmp_path).num_rows == 3


def test_batches_with_other_columns_are_one_table(tmp_path):
    with Recorder(tmp_path) as recorder:
        add(recorder, 1, 1)
        add(recorder, 1, 2, reward=0.5, advantages=[[1.0, 1.0]], response_mask=[[1, 0]], note="x")
        recorder.flush()
        add(recorder, 1, 3)
    with Recorder(tmp_path) as recorder:
        recorder.add(response_ids=[[4]], step=4, old_log_probs=[[-0.1]], rollout_log_probs=[[-0.1]])
    table = rcdiag.open_table(tmp_path)
    rows = [row for batch in table.batches() for row in batch.table.to_pylist()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["reward"] for row in rows] == [None, 0.5, None, None]
    assert [row["note"] for row in rows] == [None, "x", None, None]
    # Without a mask all tokens count as sampled; unknown advantages are NaN.
    assert [row["response_mask"] for row in rows] == [[1, 1], [1, 0], [1, 1], [1]]
    assert str([row["advantages"] for row in rows]) == "[[nan, nan], [1.0, 1.0], [nan, nan], [nan]]"
    # -0.1 needs 64 bits: the table's column is float64 for all files.
    assert rows[3]["old_log_probs"] == [-0.1]
    assert rcdiag.score(table).num_tokens == 6
    assert [batch.table.num_rows for batch in table.batches(["note"])] == [2, 1, 1]


def test_rows_that_lack_log_probs_are_counted(tmp_path):
    with Recorder(tmp_path) as recorder:
        add(recorder, 1, 1)
        recorder.add(response_ids=[[1]], step=2, rollout_log_probs=[[-1.0]])
    result = rcdiag.score(tmp_path)
    assert result.num_sequences == 1
    (finding,) = [one for one in result.findings if one.slug == "rows-not-observable"]
    assert finding.evidence["first_rows"] == {"old": [1]}


def test_inconsistent_files_of_recorders_are_named(tmp_path):
    for value in (1, [[1, 2]]):
        with Recorder(tmp_path) as recorder:
            add(recorder, 1, 0, policy_version=value)
    with pytest.raises(RcdiagError, match=r"parquet: .*`policy_version` is ") as caught:
        rcdiag.open_table(tmp_path)
    assert parts(tmp_path)[1] in caught.value.message


def test_groups_named_by_numbers_and_by_text_are_text(tmp_path):
    for value in (1, "a"):
        with Recorder(tmp_path) as recorder:
            add(recorder, 1, 0, group_id=value)
    batches = rcdiag.open_table(tmp_path).batches(["group_id"])
    assert [row for batch in batches for row in batch.table[0].to_pylist()] == ["1", "a"]


def test_other_files_still_need_the_same_columns(tmp_path):
    with Recorder(tmp_path) as recorder:
        add(recorder)
    table = pq.read_table(tmp_path / parts(tmp_path)[0]).drop(["step"])
    pq.write_table(table.replace_schema_metadata(None), tmp_path / "z.parquet")
    with pytest.raises(RcdiagError, match=r"z\.parquet: .* it has no `step`"):
        rcdiag.open_table(tmp_path)


def test_rows_added_before_an_error_are_written(tmp_path):
    def training() -> None:
        with Recorder(tmp_path) as recorder:
            add(recorder, 3)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        training()
    assert rcdiag.open_table(tmp_path).num_rows == 3


def test_a_closed_recorder_refuses_rows(tmp_path):
    recorder = Recorder(tmp_path)
    recorder.close()
    recorder.close()
    with pytest.raises(RcdiagError, match="closed"):
        add(recorder)
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_ends_without_closing_writes_its_rows(tmp_path):
    process = child("recorder = Recorder(sys.argv[1]); add(recorder, 3)", tmp_path)
    finish(process)
    assert rcdiag.open_table(tmp_path).num_rows == 3
    assert left_over(tmp_path) == []


KILLED = """
    recorder = Recorder(sys.argv[1], flush_rows=10, flush_seconds=1e6)
    add(recorder, 10, 1)
    add(recorder, 7, 2)
    print("ready", flush=True)
    time.sleep(600)
"""


def test_a_killed_process_loses_pending_rows_and_the_next_reports_them(tmp_path):
    process = child(KILLED, tmp_path)
    while not parts(tmp_path) and process.poll() is None:
        time.sleep(0.01)
    with Recorder(tmp_path) as other:
        assert other.lost_rows == 0  # its process is alive: nothing is lost
    kill(process)
    # A partial file left by a kill is not read, and is removed by the next recorder.
    (ledger,) = tmp_path.glob(LEDGERS)
    run = ledger.name.removeprefix(".").removesuffix(".rows")
    half = tmp_path / f".step-0000000002.rank-00000.{run}.000001.parquet.1.tmp"
    half.write_bytes(b"PAR1")
    assert rcdiag.open_table(tmp_path).num_rows == 10
    for _ in range(2):  # the number is kept
        with Recorder(tmp_path) as recorder:
            assert recorder.lost_rows == 7
            add(recorder, 1, 3)
    assert not half.exists()
    assert steps_of(tmp_path) == [1] * 10 + [3] * 2
    assert rcdiag.open_table(tmp_path).metadata["recorder"]["rows_lost_before"] == 0
    last = pq.read_schema(tmp_path / parts(tmp_path)[-1]).metadata[b"rcdiag"]
    assert b'"rows_lost_before": 7' in last


def test_a_kill_with_nothing_pending_loses_nothing(tmp_path):
    process = child(KILLED.replace("add(recorder, 7, 2)", ""), tmp_path)
    kill(process)
    with Recorder(tmp_path) as recorder:
        assert recorder.lost_rows == 0
    assert left_over(tmp_path) == []


def test_two_processes_write_to_one_folder_at_once(tmp_path):
    code = """
        with Recorder(sys.argv[1], flush_rows=5) as recorder:
            for step in range(40):
                add(recorder, 3, step, engine=os.environ["RANK"])
    """
    processes = []
    for rank in ("0", "1", "1"):  # also two processes with the same rank by mistake
        os.environ["RANK"] = rank
        try:
            processes.append(child(code, tmp_path))
        finally:
            del os.environ["RANK"]
    for process in processes:
        finish(process)
    assert sorted(steps_of(tmp_path)) == sorted(list(range(40)) * 9)
    assert left_over(tmp_path) == []


def test_a_restart_appends(tmp_path):
    for step in (1, 2):
        with Recorder(tmp_path) as recorder:
            add(recorder, 2, step)
    assert steps_of(tmp_path) == [1, 1, 2, 2]
    # A run that returns to an earlier step keeps the existing rows.
    with Recorder(tmp_path) as recorder:
        add(recorder, 1, 1)
    assert steps_of(tmp_path) == [1, 1, 1, 2, 2]


def test_a_forked_process_writes_only_its_own_rows(tmp_path):
    code = """
        recorder = Recorder(sys.argv[1])
        add(recorder, 2, 1)
        held = recorder._lock  # as by another thread at the time of the fork
        held.acquire()
        process = os.fork()
        if process == 0:
            add(recorder, 3, 2)
            recorder.close()
            os._exit(0)
        held.release()
        assert os.waitpid(process, 0)[1] == 0
        quiet = os.fork()
        if quiet == 0:
            sys.exit(0)  # at the end of the process, too, the parent's rows are the parent's
        assert os.waitpid(quiet, 0)[1] == 0
        add(recorder, 1, 3)
        recorder.close()
    """
    process = child(code, tmp_path)
    finish(process)
    assert sorted(steps_of(tmp_path)) == [1, 1, 2, 2, 2, 3]
    assert left_over(tmp_path) == []


def test_a_recorder_is_pickled_by_its_settings(tmp_path):
    with Recorder(tmp_path, rank=3, metadata={"trainer": "own"}, flush_rows=7) as recorder:
        add(recorder, 2)
        with pickle.loads(pickle.dumps(recorder)) as other:
            assert (other.rank, other.flush_rows, other.pending_rows) == (3, 7, 0)
            assert other.run != recorder.run
            add(other, 1)
    assert rcdiag.open_table(tmp_path).num_rows == 3
    assert rcdiag.open_table(tmp_path).metadata["trainer"] == "own"


def test_threads_may_share_a_recorder(tmp_path):
    with Recorder(tmp_path, flush_rows=7) as recorder:
        threads = [
            threading.Thread(target=lambda: [add(recorder, 2, step) for step in range(25)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert recorder.rows == 200
    assert sorted(steps_of(tmp_path)) == sorted(list(range(25)) * 8)


def test_rows_pending_on_a_full_disk_are_written_later(tmp_path):
    code = """
        import resource
        from rcdiag.errors import RcdiagError
        recorder = Recorder(sys.argv[1])
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        add(recorder, 2, 1)
        for _ in range(2):
            try:
                recorder.flush()
            except RcdiagError as error:
                assert "cannot be written" in error.message, error
                assert recorder.pending_rows == 2
            else:
                raise AssertionError("nothing was wrong")
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        add(recorder, 1, 2)
        recorder.close()
        # The error of the loop is the one that comes out, with a note on the rows.
        try:
            with Recorder(sys.argv[1]) as recorder:
                add(recorder, 4, 3)
                resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
                1 / 0
        except ZeroDivisionError as error:
            assert "4 recorded rows were not written" in error.__notes__[0]
        os._exit(0)
    """
    process = child(code, tmp_path)
    finish(process)
    assert steps_of(tmp_path) == [1, 1, 2]
    with Recorder(tmp_path) as recorder:
        assert recorder.lost_rows == 4


@pytest.mark.parametrize(
    ("loop", "errors"),
    [
        ("recorder.close()", 1),  # the error of the loop itself
        ("recorder.add(response_ids=[[1]], step=0, temperature=-1)", 2),  # another one
        ("recorder._flush_in_time()", 1),  # the timer cannot raise to the user
        ("with contextlib.suppress(RcdiagError): recorder.flush()", 0),  # it was raised
        ("with contextlib.suppress(RcdiagError): recorder.flush()\n        add(recorder, 1, 2)", 1),
    ],
)
def test_an_error_of_a_full_disk_is_raised_once(loop, errors, tmp_path):
    code = f"""
        import contextlib, resource
        from rcdiag.errors import RcdiagError
        recorder = Recorder(sys.argv[1], flush_seconds=1e6)
        add(recorder, 2, 1)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        {loop}
    """
    process = child(code, tmp_path)
    said = process.communicate(timeout=60)[1]
    assert said.count("RcdiagError:") == errors, said


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RcdiagError, match="cannot be written") as caught:
        Recorder(tmp_path / "file" / "dump")
    assert caught.value.hint


def test_metadata_that_is_not_json_is_refused(tmp_path):
    with pytest.raises(RcdiagError, match="`policies` is not JSON"):
        Recorder(tmp_path, metadata={"policies": {"old": {"dtype": object()}}})


def test_the_rank_comes_from_the_launcher(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "7")
    with Recorder(tmp_path) as recorder:
        add(recorder)
    assert "rank-00007" in parts(tmp_path)[0]


def test_importing_the_recorder_loads_no_torch():
    code = "import sys, rcdiag; rcdiag.Recorder; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


@pytest.mark.parametrize("name", ["group_id", "step", "sample_id", "prompt_ids"])
@pytest.mark.parametrize("first", [True, False])
def test_identifying_columns_are_in_all_batches_or_in_none(name, first, tmp_path):
    batch = {"response_ids": [[1], [2]], "rollout_log_probs": [[-1.0], [-2.0]]}
    told = {name: [[1], [2]] if name == "prompt_ids" else [1, 2]}
    with Recorder(tmp_path) as recorder:
        recorder.add(**batch, **(told if first else {}))
        with pytest.raises(RcdiagError, match=f"earlier batches .* `{name}`"):
            recorder.add(**batch, **({} if first else told))
        assert recorder.rows == 2
    assert rcdiag.open_table(tmp_path).num_rows == 2
