"""Damage good inputs and run rcdiag on them: `python -m tests.fuzz --seed 1 --inputs 5000`.

Every input ends in a clean result, equal to numpy's where numpy can compute it, or in a refusal of
two lines, error and hint. A traceback, an abort, a hang, another number or a control character on
the screen is bad: its file is kept, and the exit code is 1. Hypothesis draws the values of tables.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.fuzz.corpus import TABLE, Good, corpus, rows_of
from tests.fuzz.drawn import drawn_tables
from tests.fuzz.mutate import mutated, mutated_json
from tests.fuzz.worker import BAD

HANG = 60.0  # time limit in seconds, for a busy machine


class Workers(threading.local):
    """One worker process per thread, restarted after an abort or a hang."""

    process: subprocess.Popen[str] | None = None

    def ask(self, job: dict[str, Any]) -> dict[str, str]:
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], HANG)
        if not ready:
            self.process.kill()
            self.process.wait()
            return {"outcome": BAD, "what": f"no end after {HANG:.0f} s"}
        line = self.process.stdout.readline()
        if not line:
            return {"outcome": BAD, "what": f"the process ended with {self.process.wait()}"}
        return json.loads(line)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def damaged(kind: str, good: Good, draw: random.Random) -> bytes:
    is_json = good.name.endswith((".json", ".jsonl"))
    if is_json and draw.random() < 0.6:
        return mutated_json(good.content, draw)
    return mutated(good.content, draw)


def inputs(seed: int, count: int) -> list[tuple[str, int, int]]:
    """Return kind, index of the undamaged input, and seed of the damage for each input."""
    kinds = {"parquet": 40, "drawn": 15, "json": 15, "dumps": 16, "yaml": 6, "toml": 3, "logs": 5}
    draw = random.Random(seed)
    names = draw.choices(list(kinds), list(kinds.values()), k=count)
    return [(kind, draw.randrange(1 << 30), draw.randrange(1 << 60)) for kind in names]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=3600.0, help="when to stop")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kind", help="one kind of input alone")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "rcdiag-fuzz")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    counts: Counter[tuple[str, str]] = Counter()
    bad: list[str] = []
    lock = threading.Lock()
    workers = Workers()
    tables = drawn_tables(options.seed, min(options.inputs, 5000))

    with tempfile.TemporaryDirectory(prefix="rcdiag-fuzz-") as name:
        folder = Path(name)
        table = folder / "good.parquet"
        pq.write_table(rows_of(), table)

        def one(number: int, kind: str, which: int, seed: int) -> None:
            if time.monotonic() > end:
                return
            if kind == "drawn":
                table_bytes = tables[which % len(tables)]
                good = Good("table.parquet", table_bytes, ("score", "{}", "--json"), True)
                content = table_bytes
            else:
                goods = corpus()[kind]
                good = goods[which % len(goods)]
                content = damaged(kind, good, random.Random(seed))
            own = folder / str(number)
            own.mkdir()
            path = own / good.name
            path.write_bytes(content)
            command = [
                word.replace(TABLE, str(table)).replace("{}", str(path)) for word in good.command
            ]
            job = {"path": str(path), "command": command, "compared": good.compared}
            answer = workers.ask(job)
            with lock:
                counts[kind, answer["outcome"]] += 1
                if answer["outcome"] == BAD:
                    kept = options.keep / f"{options.seed}-{number}-{good.name}"
                    options.keep.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, kept)
                    words = " ".join(command).replace(str(path), str(kept))
                    bad.append(f"{answer['what']}\n    rcdiag {words}")
            shutil.rmtree(own)

        drawn = inputs(options.seed, min(options.inputs, 200_000))
        if options.kind:
            drawn = [(options.kind, which, seed) for _, which, seed in drawn]
        with ThreadPoolExecutor(options.workers) as threads:
            list(threads.map(lambda item: one(item[0], *item[1]), enumerate(drawn)))
            list(threads.map(lambda _: workers.stop(), range(options.workers)))

    for kind in dict.fromkeys(kind for kind, _ in counts):
        ends = {outcome: n for (own, outcome), n in sorted(counts.items()) if own == kind}
        print(f"{kind}: {', '.join(f'{n:,} {outcome}' for outcome, n in ends.items())}")
    total = sum(counts.values())
    print(f"fuzz, seed {options.seed}: {total:,} inputs, {len(bad)} bad", flush=True)
    for text in bad:
        print(f"  {text}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
