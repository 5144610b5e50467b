"""Write tables with known faults: `python -m tests.faults.other.make OUT --tables 320 --seed 7`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.faults.other import pairs  # noqa: F401 - registers every kind
from tests.faults.other.registry import KINDS, Kind
from tests.faults.other.tables import Fault, Plan, label, to_arrow

HALVES = ("dev", "kept")


def half(index: int) -> str:
    """Return the half: even indices are for development, odd ones are held out."""
    return HALVES[index % 2]


def cycle() -> list[str]:
    """Return every kind, the healthy ones twice, shuffled so that any stretch is a mixture."""
    names = list(KINDS) + [name for name, made in KINDS.items() if made.healthy]
    return [names[i] for i in np.random.default_rng(0).permutation(len(names))]


def kind_of(index: int) -> str:
    """Return the kind of a table; neighbours share one, so that each half has all kinds."""
    names = cycle()
    return names[index // 2 % len(names)]


def planned(
    seed: int, index: int, name: str | None = None, **sizes: Any
) -> tuple[Plan, list[Fault], Kind]:
    """Return the plan and faults of table `index`; a kind's own sizes override `sizes`."""
    made = KINDS[name or kind_of(index)]
    plan = Plan(np.random.default_rng([seed, index]), **{**sizes, **made.fixed})
    return plan, made.build(plan), made


def make(seed: int, index: int, name: str | None = None) -> tuple[pa.Table, dict[str, Any]]:
    """Return table `index` of a seed and its label, which depend on nothing else.

    A label's `faults` lists each fault with its acceptable causes, `visible` where it is above the
    engines' noise; "*" accepts any cause (for one policy alone, where nothing was compared).
    """
    plan, faults, made = planned(seed, index, name)
    columns, truth, _ = plan.run()
    key = {
        "index": index,
        "half": half(index),
        "kind": made.name,
        **label(faults, truth),
        "healthy": made.healthy,
        "strength": round(plan.strength, 3),
        "columns": sorted(columns.rows),
        "truth": {name: round(float(value), 6) for name, value in truth.items()},
    }
    return to_arrow(columns, plan), key


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tables", type=int, default=320)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--half", choices=HALVES)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    labels = []
    for index in range(arguments.tables):
        if arguments.half in (None, half(index)):
            table, key = make(arguments.seed, index)
            pq.write_table(table, arguments.out / f"t{index:03}.parquet")
            labels.append({"file": f"t{index:03}.parquet", **key})
    (arguments.out / "labels.json").write_text(json.dumps(labels, indent=1))


if __name__ == "__main__":
    main()
