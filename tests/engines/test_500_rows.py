"""External engines give the numbers of rcdiag's own engine, even if they are killed.

500 rows of the sample data by the command line: a real `vllm serve`, a program, and the Python of
another environment, each killed by signal 9 in the middle. How far they are from the engine here is
held against how far that one is from itself in other batches (vLLM in float32 on a CPU: not at
all), or against the rounding of float32.

    python -m pytest -m weekly -s tests/engines/test_500_rows.py
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rcdiag.engines.command.supervisor import descendants
from tests.engines.test_other_versions import environment_with
from tests.engines.test_served_vllm import CHECKPOINT, VllmServer, column, server, write_rows

__all__ = ["server"]
pytestmark = [
    pytest.mark.engine,
    pytest.mark.weekly,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

LIMIT = 1800.0  # seconds until a run has reached the state that a test needs
# The command line with parts of about eighty rows, so that a kill hits unfinished work.
IN_PARTS = (
    "import cli.main, rcdiag.engines.scoring as run; "
    "run.TOKENS_PER_PART = run.MOST_TOKENS_PER_PART = 16384; cli.main.main()"
)
# Nats: float32 numbers from 8 to 16, as logits are, are 9.5e-7 apart.
ROUNDING = 1e-6
# A trainer's own program: row by row, logits of the whole vocabulary.
PROGRAM = """
import os, sys, time
import pyarrow as pa, pyarrow.parquet as pq, torch
from transformers import AutoModelForCausalLM

folder, source, target = sys.argv[-3:]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

@torch.inference_mode()
def log_probs(row):
    prompt, ids = row["prompt_ids"], row["prompt_ids"] + row["response_ids"]
    logits = model(torch.tensor([ids])).logits[0, len(prompt) - 1 : -1]
    chosen = torch.tensor(row["response_ids"])[:, None]
    return (logits / row["temperature"]).log_softmax(-1).gather(1, chosen)[:, 0].tolist()

while True:
    rows = pq.read_table(source).to_pylist()
    columns = {"row": [r["row"] for r in rows], "log_probs": [log_probs(r) for r in rows]}
    pq.write_table(pa.table(columns), target + ".tmp")
    os.replace(target + ".tmp", target)
    while os.path.exists(target):
        time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    return write_rows(tmp_path_factory.mktemp("table") / "table.parquet", 500)


def start(table: Path, out: Path, policies: dict[str, str], last: str) -> subprocess.Popen[str]:
    """Score policies with the sample's checkpoint; `last` is the target."""
    first = next(iter(policies))
    named = [part for name, what in policies.items() for part in ("--policy", f"{name}={what}")]
    pair = ["--behavior", "rollout" if last == first else first, "--target", last]
    return subprocess.Popen(
        [
            *(sys.executable, "-c", IN_PARTS, "score", str(table), "--model", str(CHECKPOINT)),
            *(*named, *pair, "-o", str(out)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def ends_well(run: subprocess.Popen[str]) -> str:
    said = run.communicate(timeout=LIMIT)[1]
    assert run.returncode == 0, said
    return said


def until_the_middle(run: subprocess.Popen[str], out: Path, parts: int = 2) -> None:
    """Wait until some parts are on disk and others are not."""
    end = time.monotonic() + LIMIT
    while len(list(out.with_name(out.name + ".parts").glob("*-*/0*.parquet"))) < parts:
        assert run.poll() is None, run.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.02)
    assert not out.exists()


def kill_engine(run: subprocess.Popen[str], words: str) -> None:
    """Kill the processes of a run whose command line contains some words."""
    killed = 0
    for process in descendants(run.pid):
        with contextlib.suppress(OSError):
            if words in Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode():
                os.kill(process, signal.SIGKILL)
                killed += 1
    assert killed


def check(table: Path, out: Path, here: str, again: str) -> None:
    """Compare the external engine with the own one, and the own one with other batches."""
    own = out.with_name("own.parquet")
    ends_well(start(table, own, {"here": here, "again": again}, "again"))
    there, first, second = (
        column(path, f"{name}_log_probs").astype(np.float64)
        for path, name in ((out, "there"), (own, "here"), (own, "again"))
    )
    rms = {
        name: float(np.sqrt(np.mean((values - first) ** 2)))
        for name, values in (("there", there), ("again", second))
    }
    most = float(np.abs(there - first).max()), float(np.abs(second - first).max())
    print(  # noqa: T201
        f"\n{len(first):,} tokens, {here}: there rms {rms['there']:.2g}, largest {most[0]:.2g}; "
        f"own noise rms {rms['again']:.2g}, largest {most[1]:.2g}"
    )
    assert rms["there"] < max(3 * rms["again"], ROUNDING)


def test_a_server_that_is_killed_in_the_middle(server: VllmServer, table: Path, tmp_path: Path):
    out = tmp_path / "out.parquet"
    policies = {"there": f"server:float32,url={server.address},concurrency=4,patience=1200"}
    run = start(table, out, policies, "there")
    until_the_middle(run, out)
    server.kill()
    server.start()
    ends_well(run)
    check(table, out, "vllm:float32", "vllm:float32,max_num_seqs=5")


def test_a_program_and_its_run_that_are_killed_in_the_middle(table: Path, tmp_path: Path):
    """The program first: its run ends with an error. Then the run, and the program with it."""
    (tmp_path / "score.py").write_text(PROGRAM)
    out = tmp_path / "out.parquet"
    command = f'command,stays=true,run="{sys.executable} {tmp_path}/score.py {{model}}"'
    kills: list[Callable[[subprocess.Popen[str]], None]] = [
        lambda run: kill_engine(run, f"{tmp_path}/score.py {CHECKPOINT} "),
        lambda run: run.kill(),
    ]
    for parts, kill in zip((2, 4), kills, strict=True):
        run = start(table, out, {"there": command}, "there")
        until_the_middle(run, out, parts)
        kill(run)
        run.communicate(timeout=LIMIT)
        assert run.returncode != 0
    ends_well(start(table, out, {"there": command}, "there"))
    check(table, out, "hf:float32", "hf:float32,batch_tokens=1")


def test_an_engine_of_another_environment_that_is_killed_in_the_middle(table: Path, tmp_path: Path):
    python = environment_with(tmp_path / "venv", "numpy==1.26.4")
    out = tmp_path / "out.parquet"
    run = start(table, out, {"there": f"hf:float32,python={python}"}, "there")
    until_the_middle(run, out)
    kill_engine(run, f"{python} -m rcdiag.engines.worker")
    assert "another is started" in ends_well(run)
    check(table, out, "hf:float32", "hf:float32,batch_tokens=1")
