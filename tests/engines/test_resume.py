"""A kill at any moment costs at most one part: the same command resumes with equal results."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.engine_models import make_model, make_table

pytestmark = pytest.mark.engine
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "qwen3", "qwen3")


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    """A table with enough tokens for a dozen parts, and a recorded policy."""
    path = make_table(tmp_path_factory.mktemp("tables") / "table.parquet", rows=1300)
    rows = pq.read_table(path)
    recorded = pa.array([[-0.5] * len(row) for row in rows["response_ids"].to_pylist()])
    pq.write_table(rows.append_column("old_log_probs", recorded), path)
    return path


@pytest.fixture(
    scope="module",
    params=[("a=hf:float32",), pytest.param(("a=hf:float32", "b=hf:bfloat16"), marks=SLOW)],
    ids=["one", "two"],
)
def arguments(request, table, model) -> Callable[[Path], list[str]]:
    """Make the command line that scores one policy (two in nightly runs) to a path."""
    policies = [word for policy in request.param for word in ("--policy", policy)]
    pair = ["--behavior", "a", "--target", "old"]

    def command(out: Path) -> list[str]:
        return ["score", str(table), "--model", str(model), *policies, *pair, "-o", str(out)]

    return command


# The command line with small parts, so that a short table has many.
RCDIAG = [
    *(sys.executable, "-c"),
    "import cli.main, rcdiag.engines.scoring as run; run.TOKENS_PER_PART = 8192; cli.main.main()",
]


def rcdiag(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RCDIAG, *command], capture_output=True, text=True, check=False)


def kill_when(command: list[str], ready, limit: float = 240.0) -> None:
    """Run until `ready()`, then kill -9."""
    process = subprocess.Popen(
        [*RCDIAG, *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + limit
    while not ready() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed"


def parts(out: Path, policy: str) -> int:
    return len(list(out.with_name(out.name + ".parts").glob(f"{policy}-*/0*.parquet")))


@pytest.fixture(scope="module")
def undisturbed(arguments, tmp_path_factory) -> tuple[Path, str]:
    """Output and result document of an undisturbed run."""
    out = tmp_path_factory.mktemp("undisturbed") / "out.parquet"
    run = rcdiag(*arguments(out), "--json")
    assert run.returncode == 0, run.stderr
    return out, run.stdout


@SLOW
def test_a_run_killed_twice_ends_like_an_undisturbed_one(undisturbed, arguments, tmp_path):
    """It is killed while scoring its first policy, then while scoring its last."""
    calm, document = undisturbed
    killed = tmp_path / "killed.parquet"
    command = [*arguments(killed), "--json"]
    kill_when(command, lambda: parts(killed, "a") >= 2)
    kept = sorted(killed.with_name(killed.name + ".parts").glob("a-*/0*.parquet"))
    times = [path.stat().st_mtime_ns for path in kept]
    last = "b" if "b=hf:bfloat16" in command else "a"
    before = parts(killed, last)
    kill_when(command, lambda: parts(killed, last) > before)
    assert not killed.exists()
    assert times == [path.stat().st_mtime_ns for path in kept], "a finished part was made again"

    resumed = rcdiag(*command)
    assert resumed.returncode == 0, resumed.stderr
    assert pq.read_table(killed).equals(pq.read_table(calm))
    ours, theirs = json.loads(resumed.stdout), json.loads(document)
    assert ours["mismatch"] == theirs["mismatch"]
    assert not list(tmp_path.glob("*.parts"))
    assert not list(tmp_path.glob(".*"))


@SLOW
def test_a_run_killed_after_its_last_rename_is_recognised(undisturbed, arguments):
    """Output and parts both exist: nothing is rescored, nothing is refused."""
    out, _ = undisturbed
    written = out.stat().st_mtime_ns
    out.with_name(out.name + ".parts").mkdir()
    again = rcdiag(*arguments(out))
    assert again.returncode == 0, again.stderr
    assert out.stat().st_mtime_ns == written
    assert not out.with_name(out.name + ".parts").exists()


def test_another_command_is_not_taken_for_the_interrupted_one(table, arguments, tmp_path):
    """Parts are keyed by everything that affects the scores; other outputs are unchanged."""
    out = tmp_path / "out.parquet"
    out.write_bytes(table.read_bytes())
    out.with_name(out.name + ".parts").mkdir()
    refused = rcdiag(*arguments(out))
    assert refused.returncode == 2
    assert "already there" in refused.stderr
    assert out.read_bytes() == table.read_bytes()
