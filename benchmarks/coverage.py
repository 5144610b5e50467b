"""How often do 95% intervals hold the truth? Seven laws of tables, 8 to 150 groups.

`python benchmarks/coverage.py` (or `make bench`) draws tables of which the truth is known
(`tests/statistics/generators.py`), reads the metrics off them as `rcdiag score` does, and counts
the intervals that hold it; an end that is null, as the data cannot show it, holds whatever is true.
It prints what was counted, and stores it in `benchmarks/results/coverage.json`: for every law,
number of groups and metric the share of tables whose interval holds the truth, of those where the
truth is below and above it, and of those without both ends.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

# The repository and not this folder, whose `statistics` would stand before Python's own.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.scoring import machine  # noqa: E402
from tests.statistics.generators import FAR_APART, GENERATORS, RARE, coverage  # noqa: E402

# A coverage of 0.95 is known to 0.010 by 500 tables and to 0.011 by 400.
RUNS = {8: 500, 15: 500, 40: 500, 150: 400}
OUT = Path(__file__).parent / "results" / "coverage.json"
Shares = dict[str, dict[str, float]]


def sentence(law: str, groups: int, shares: Shares) -> str:
    cells = [
        f"{name} {share['holds']:.1%}"
        + (f" (no end {share['without_both_ends']:.0%})" if share["without_both_ends"] else "")
        for name, share in shares.items()
    ]
    return f"{law}, {groups} groups: " + ", ".join(cells)


def main() -> None:
    results = []
    for law, generator in {**RARE, **GENERATORS, **FAR_APART}.items():
        for groups, runs in RUNS.items():
            shares = coverage(generator, groups, runs)
            print(sentence(law, groups, shares), flush=True)
            results.append({"law": law, "groups": groups, "runs": runs, "metrics": shares})
    document = {
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d"),
        "results": results,
    }
    OUT.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
