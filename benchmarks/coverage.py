"""Coverage of 95% intervals on tables from seven distributions, with 8 to 150 prompt groups.

`python benchmarks/coverage.py` (or `make bench`) draws tables whose true metrics are known
(`tests/statistics/generators.py`), computes the metrics as `rcdiag score` does, and counts
the intervals that contain the true value. An end that is null is unbounded, so it excludes no
value. The counts are printed and stored in `benchmarks/results/coverage.json`: for every
distribution, number of groups and metric, the share of tables whose interval contains the true
value, the shares where it is below and above the interval, and the share without an interval.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Import from the repository root: `statistics.py` in this folder would hide the standard module.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import RESULTS, store  # noqa: E402
from tests.statistics.generators import FAR_APART, GENERATORS, RARE, coverage  # noqa: E402

# The standard error of a coverage of 0.95 is 0.010 with 500 tables and 0.011 with 400.
RUNS = {8: 500, 15: 500, 40: 500, 150: 400}
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
    store(RESULTS / "coverage.json", {"results": results})


if __name__ == "__main__":
    main()
