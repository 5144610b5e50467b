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
    """Tables of even index are for development; those of odd index are kept aside."""
    return HALVES[index % 2]


def cycle() -> list[str]:
    """Every kind, the healthy ones twice, in an order in which any stretch is a mixture."""
    names = list(KINDS) + [name for name, made in KINDS.items() if made.healthy]
    return [names[i] for i in np.random.default_rng(0).permutation(len(names))]


def kind_of(index: int) -> str:
    """Two neighbours are of one kind, so that each half has all kinds."""
    names = cycle()
    return names[index // 2 % len(names)]


def planned(
    seed: int, index: int, name: str | None = None, **sizes: Any
) -> tuple[Plan, list[Fault], Kind]:
    """The plan of table `index` of a seed with its faults; a kind's own sizes go before `sizes`."""
    made = KINDS[name or kind_of(index)]
    plan = Plan(np.random.default_rng([seed, index]), **{**sizes, **made.fixed})
    return plan, made.build(plan), made


def make(seed: int, index: int, name: str | None = None) -> tuple[pa.Table, dict[str, Any]]:
    """Table `index` of a seed and its label; nothing else goes into it.

    A label's `faults` lists each fault with its acceptable causes, `visible` where it is above the
    engines' noise; "*" accepts any cause (one policy alone: nothing was compared).
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
