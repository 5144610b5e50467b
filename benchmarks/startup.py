"""Time of short commands: `explain`, help, version, `import rcdiag`, `score` and `replay` of the
sample data.

`python benchmarks/startup.py [CHECKOUT]` (or `make bench`) prints a table and stores it in
`benchmarks/results/startup.json`. Every command runs ROUNDS times in its own process and the
best counts (the machine may be shared): `wall_s` from start to end, `cpu_s` as user and system
time. With the path of another checkout of rcdiag the two alternate, and the ratios are stored too.
Bytecode is cached before the first measured run, as in an installed package.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Import from the repository root: `statistics.py` in this folder would hide the standard module.
sys.path[0] = str(ROOT)

from benchmarks import RESULTS, store  # noqa: E402

ROUNDS = 7
PAGE = Path(tempfile.gettempdir()) / f"rcdiag-startup-{os.getpid()}.html"
SCORE = ("-m", "cli.main", "score", "sample_data/rollouts.parquet")
COMMANDS = {
    "rcdiag explain k3_kl": ("-m", "cli.main", "explain", "k3_kl"),
    "rcdiag explain": ("-m", "cli.main", "explain"),
    "rcdiag --version": ("-m", "cli.main", "--version"),
    "rcdiag --help": ("-m", "cli.main", "--help"),
    "import rcdiag": ("-c", "import rcdiag"),
    "rcdiag score": SCORE,
    "rcdiag replay": ("-m", "cli.main", "replay", "sample_data/rollouts.parquet"),
    "rcdiag score --html": (*SCORE, "--html", str(PAGE), "--force", "-q"),
}


def seconds(checkout: Path, arguments: tuple[str, ...]) -> tuple[float, float]:
    """Return wall and CPU time of one process that runs the code of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=checkout,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measured(command: str, other: Path | None) -> dict:
    """Return the best times of a command in this and, alternating, in another checkout."""
    checkouts = [ROOT] if other is None else [ROOT, other]
    _, *times = (
        [seconds(each, COMMANDS[command]) for each in checkouts] for _ in range(1 + ROUNDS)
    )
    best = [tuple(map(min, zip(*runs, strict=True))) for runs in zip(*times, strict=True)]
    (wall, cpu), *rest = best
    result = {"command": command, "wall_s": round(wall, 3), "cpu_s": round(cpu, 3)}
    for other_wall, other_cpu in rest:
        result |= {"other_wall_s": round(other_wall, 3), "other_cpu_s": round(other_cpu, 3)}
        result |= {
            "wall_ratio": round(wall / other_wall, 2),
            "cpu_ratio": round(cpu / other_cpu, 2),
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, nargs="?", help="another checkout to compare with")
    other = parser.parse_args().checkout
    results = []
    for command in COMMANDS:
        results.append(measured(command, other and other.resolve()))
        print("   ".join(f"{key} {value}" for key, value in results[-1].items()), flush=True)
    PAGE.unlink(missing_ok=True)
    store(RESULTS / "startup.json", {"results": results})


if __name__ == "__main__":
    main()
