"""Kill rcdiag at random moments and run it again: `python -m tests.kill --kills 200 --seed 1`.

Each command is ended by kill -9, SIGTERM or SIGINT, one to three times, then runs to its end: what
it writes equals what an undisturbed run writes, bit for bit but for the time and the command line,
nothing that was there before is lost, and a terminated or interrupted run says so in a line. Then a
disk of 2 MB runs full under each command (where this user may mount one), and two runs write to
one output at once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.engine_models import make_model, make_table
from tests.fuzz.corpus import rows_of
from tests.kill.recording import ROWS, STEPS, steps_on_disk
from tests.table.readers.test_hostile_records import GOOD

RCDIAG = (sys.executable, "-m", "tests.kill.command")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Work:
    """A command that writes below a folder, and a function that reads its output."""

    name: str
    command: Callable[[Path], list[str]]
    written: Callable[[Path], Any]


def table_of(path: Path) -> Any:
    """Return the rows and metadata of a table without times and rates."""
    table = pq.read_table(path, page_checksum_verification=True)
    metadata = json.loads((table.schema.metadata or {}).get(b"rcdiag", b"{}"))
    for facts in metadata.get("policies", {}).values():
        facts.pop("time", None)
    metadata.pop("tokens_per_second", None)
    return table.replace_schema_metadata(None), metadata


def result_of(path: Path) -> Any:
    """Return a result document without command line and times."""
    document = json.loads(path.read_text())
    del document["provenance"]
    for facts in document.get("scoring", {}).values():
        facts.pop("time", None)
    return document


def works(folder: Path) -> list[Work]:
    """Make the inputs, and return the commands."""
    table, many, model = folder / "table.parquet", folder / "many.parquet", folder / "model"
    pq.write_table(rows_of(rows=64), table)
    make_table(many, rows=250)
    scored = pq.read_table(many)
    recorded = [[-0.5] * len(row) for row in scored["response_ids"].to_pylist()]
    pq.write_table(scored.append_column("rollout_log_probs", [recorded]), many)
    make_model(model, "qwen3")
    lines = folder / "lines.jsonl"
    lines.write_text((json.dumps(GOOD["nemo-rl"]) + "\n") * 20_000)
    result = folder / "result.json"
    subprocess.run([*RCDIAG, "score", table, "--result", result, "-q"], check=True)

    def score(out: Path) -> list[str]:
        return [*RCDIAG, "score", str(table), "--result", str(out / "r.json"), "--force", "-q"]

    def with_model(out: Path) -> list[str]:
        more = ["--model", str(model), "--policy", "old=hf:float32", "-o", str(out / "s.parquet")]
        return [*RCDIAG, "score", str(many), *more, "--result", str(out / "r.json"), "-q"]

    def convert(out: Path) -> list[str]:
        more = ["--from", "nemo-rl", "--force", "-q"]
        return [*RCDIAG, "convert", str(lines), "-o", str(out / "c.parquet"), *more]

    def report(out: Path) -> list[str]:
        return [*RCDIAG, "report", str(result), "--html", str(out / "p.html"), "--force", "-q"]

    def record(out: Path) -> list[str]:
        return [sys.executable, "-m", "tests.kill.recording", str(out / "dump")]

    return [
        Work("score", score, lambda out: result_of(out / "r.json")),
        Work(
            "score with a model",
            with_model,
            lambda out: (table_of(out / "s.parquet"), result_of(out / "r.json")),
        ),
        Work("convert", convert, lambda out: table_of(out / "c.parquet")),
        Work("report", report, lambda out: (out / "p.html").read_bytes()),
        Work("Recorder", record, lambda out: steps_on_disk(out / "dump")),
    ]


def ended(command: list[str], number: signal.Signals, after: float) -> tuple[int, str]:
    """Run a command, send it a signal after some seconds, and return exit code and stderr."""
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            _, err = process.communicate(timeout=after)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            try:
                _, err = process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                return 124, "no end within a minute of the signal"
    return process.returncode, err


def tried(work: Work, folder: Path, calm: Any, seconds: float, draw: random.Random) -> list[str]:
    """Kill a command one to three times, then let it end; returns the kills and the problems."""
    out = folder / "out"
    out.mkdir()
    kills, wrong = 0, []
    for _ in range(draw.choice((1, 1, 2, 3))):
        number = draw.choice(SIGNALS)
        # Half of the kills come late, where files are written.
        after = seconds * (draw.random() if draw.random() < 0.5 else draw.uniform(0.6, 1.05))
        code, err = ended(work.command(out), number, after)
        kills += code != 0
        if "already there" in err:
            break  # the run before had ended before its signal came
        own = work.name != "Recorder"
        if "Traceback" in err and own:
            wrong.append(f"{number.name}: {err.strip().splitlines()[-1]}")
        # A shell sees 130 also if Python itself ends by SIGINT.
        expected = (
            {0, -number}
            if number is signal.SIGKILL or not own
            else {0, 130, -number, -signal.SIGINT}
        )
        if code not in expected and not (code == 1 and not own):
            wrong.append(f"{number.name}: exit code {code}: {err.strip()[-200:]}")
    ran = subprocess.run(work.command(out), capture_output=True, text=True, check=False)
    # The output of a run that had ended before its signal is not overwritten.
    if ran.returncode and "already there" not in ran.stderr:
        wrong.append(f"the same command ends with {ran.returncode}: {ran.stderr.strip()[-300:]}")
    elif not equal(work.written(out), calm):
        wrong.append("another output than that of an undisturbed run")
    left = [path.name for path in out.rglob("*.parts")]
    if left:
        wrong.append(f"left behind: {left}")
    shutil.rmtree(out)
    return [str(kills), *wrong]


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):
        return all(equal(a, b) for a, b in zip(one, other, strict=True))
    return bool(one.equals(other) if hasattr(one, "equals") else one == other)


def full_disks(all_work: list[Work], folder: Path) -> list[str]:
    """Run every command on a full disk: errors are clean, and no output is half-written."""
    disk = folder / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        print("left out: a full disk (this user may not mount one)")
        return []
    wrong = []
    try:
        for work in all_work:
            filler = disk / "filler"
            for room in (0, 10_000, 200_000):
                out = disk / "out"
                out.mkdir()
                filler.write_bytes(bytes(2_000_000 - room))
                with contextlib.suppress(OSError), filler.open("ab", buffering=0) as stream:
                    while room == 0 and stream.write(bytes(512)):
                        pass
                # The font cache may come from another process of this user.
                fonts = {"MPLCONFIGDIR": str(folder / "matplotlib")}
                environment = {**os.environ, "TMPDIR": str(disk), **fonts}
                ran = subprocess.run(
                    work.command(out), capture_output=True, text=True, check=False, env=environment
                )
                clean = ran.returncode == 2 and ran.stderr.startswith("error: ")
                if work.name == "Recorder":
                    clean = "RcdiagError" in ran.stderr
                if ran.returncode and not clean:
                    wrong.append(f"full disk, {work.name}: {ran.stderr.strip()[-300:]}")
                filler.unlink()
                shutil.rmtree(out, ignore_errors=True)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)
    print(f"full disk: {3 * len(all_work)} runs, {len(wrong)} bad")
    return wrong


def at_once(all_work: list[Work], folder: Path, calm: dict[str, Any]) -> list[str]:
    """Let two runs write to one output: the result is correct whichever wins."""
    wrong = []
    for work in all_work:
        if work.name == "Recorder":
            continue  # two recorders write to one folder by design
        out = folder / "twice"
        out.mkdir()
        runs = [
            subprocess.Popen(work.command(out), stderr=subprocess.PIPE, text=True) for _ in range(2)
        ]
        errors = [run.communicate()[1] for run in runs]
        codes = sorted(run.returncode for run in runs)
        if codes not in ([0, 0], [0, 2]) or any("Traceback" in text for text in errors):
            wrong.append(f"two runs, {work.name}: {codes}: {' '.join(errors)[-300:]}")
        elif not equal(work.written(out), calm[work.name]):
            wrong.append(f"two runs, {work.name}: another output")
        shutil.rmtree(out)
    print(f"two runs at one output: {len(all_work) - 1} pairs, {len(wrong)} bad")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0, help="when to stop killing")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    draw = random.Random(options.seed)
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="rcdiag-kill-") as name:
        folder = Path(name)
        all_work = works(folder)
        calm, seconds = {}, {}
        for work in all_work:
            out = folder / "calm"
            out.mkdir()
            start = time.monotonic()
            subprocess.run(work.command(out), check=True, capture_output=True)
            seconds[work.name] = time.monotonic() - start
            calm[work.name] = work.written(out)
            shutil.rmtree(out)
        assert calm["Recorder"] == sorted(list(range(STEPS)) * ROWS)
        while counts.total() < options.kills and time.monotonic() < end:
            # The command with parts has the most to lose.
            work = draw.choice([*all_work, all_work[1]])
            kills, *bad = tried(work, folder, calm[work.name], seconds[work.name], draw)
            counts[work.name] += int(kills)
            wrong += [f"{work.name}: {text}" for text in bad]
        for name, count in counts.items():
            print(f"{name}: {count} kills")
        print(f"kill, seed {options.seed}: {counts.total()} kills, {len(wrong)} bad", flush=True)
        wrong += full_disks(all_work, folder)
        wrong += at_once(all_work, folder, calm)
    for text in wrong:
        print(f"  {text}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
