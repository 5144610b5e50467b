"""Count how often the diagnosis of a table alone is right, on the second generator's tables.

python -m tests.faults.other.evaluate --tables 160 --seed 7 --half dev --wrong
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import rcdiag
from tests.faults.other.make import HALVES, half, make
from tests.faults.other.registry import KINDS


def diagnosed(seed: int, index: int, name: str | None = None) -> dict[str, Any]:
    """Return the label of one table and the diagnosis of it."""
    table, key = make(seed, index, name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"t{index:03}.parquet"
        pq.write_table(table, path)
        try:
            diagnosis = rcdiag.diagnose(str(path)).diagnosis
            assert diagnosis is not None
            verdict = diagnosis.verdict
            causes = [(cause.slug, float(cause.confidence)) for cause in diagnosis.causes]
        except Exception as error:  # count a crash as a wrong answer
            verdict, causes = "crash", [(f"{type(error).__name__}: {error}"[:120], 0.0)]
    acceptable = set(key["acceptable"])
    named = {slug for slug, _ in causes}
    key.update(
        verdict=verdict,
        causes=causes,
        cause_right="*" in acceptable or (bool(causes) and causes[0][0] in acceptable),
        verdict_right=verdict in key["verdicts"],
        both_named=len(key["faults"]) == 1
        or all(named & set(fault["acceptable"]) for fault in key["faults"] if fault["visible"]),
    )
    return key


def evaluate(seed: int, indices: list[int], processes: int, name: str | None = None) -> list[dict]:
    with ProcessPoolExecutor(processes) as pool:
        count = len(indices)
        return list(pool.map(diagnosed, [seed] * count, indices, [name] * count, chunksize=2))


def summary(results: list[dict[str, Any]]) -> list[str]:
    def share(right: list[bool]) -> str:
        return f"{sum(right)} of {len(right)} ({sum(right) / max(1, len(right)):.1%})"

    healthy = [r["verdict"] == "broken" for r in results if r["healthy"]]
    two = [r["both_named"] for r in results if len(r["faults"]) > 1]
    lines = [
        f"cause right            {share([r['cause_right'] for r in results])}",
        f"verdict right          {share([r['verdict_right'] for r in results])}",
        f"healthy called broken  {share(healthy)}",
        f"two faults, both named {share(two)}",
        "confidence of the first cause, and how often it is right:",
    ]
    bins: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    for result in results:
        if result["causes"] and "*" not in result["acceptable"]:
            confidence = result["causes"][0][1]
            bins[min(9, int(confidence * 10 + 1e-9))].append((confidence, result["cause_right"]))
    for bin_, pairs in sorted(bins.items()):
        mean = sum(confidence for confidence, _ in pairs) / len(pairs)
        right = share([right for _, right in pairs])
        lines.append(f"  {bin_ / 10:.1f} to {bin_ / 10 + 0.1:.1f}: mean {mean:.2f}, {right}")
    lines.append("by kind: cause right, verdict right, of; what was said")
    by_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        by_kind[result["kind"]].append(result)
    for kind in [kind for kind in KINDS if kind in by_kind]:
        own = by_kind[kind]
        causes, verdicts = (sum(r[name] for r in own) for name in ("cause_right", "verdict_right"))
        answers = {f"{r['causes'][0][0] if r['causes'] else '-'}/{r['verdict']}" for r in own}
        lines.append(f"  {kind:42} {causes} {verdicts} {len(own)}  {', '.join(sorted(answers))}")
    return lines


def wrong(results: list[dict[str, Any]]) -> list[str]:
    """Return one line per table whose cause, verdict or second cause is wrong."""
    lines = []
    for r in results:
        if r["cause_right"] and r["verdict_right"] and r["both_named"]:
            continue
        checks = {"C": "cause_right", "V": "verdict_right", "B": "both_named"}
        what = "".join("-" if r[name] else letter for letter, name in checks.items())
        said = " ".join(f"{slug} {confidence:.2f}" for slug, confidence in r["causes"][:3])
        truth = r["truth"]
        lines.append(
            f"{what} {r['index']:4} {r['kind']:36} key {'|'.join(r['verdicts'])}; "
            f"said {r['verdict']}: {said}; strength {r['strength']:.2f}, "
            f"rms {truth['rms_log_ratio']:.3g}, floor {truth['floor']:.2g}, "
            f"entropy {truth['entropy']:.2g}, ids {truth['vocabulary']:.0f}, "
            f"{truth['rows']:.0f} rows, {truth['tokens']:.0f} tokens"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=160, help="of both halves together")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--half", choices=HALVES)
    parser.add_argument("--kind", choices=list(KINDS), help="this kind alone, at all indices")
    parser.add_argument("--wrong", action="store_true", help="one line per wrong table")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="every result as JSON")
    arguments = parser.parse_args()
    indices = [i for i in range(arguments.tables) if arguments.half in (None, half(i))]
    results = evaluate(arguments.seed, indices, arguments.processes, arguments.kind)
    lines = summary(results) + (wrong(results) if arguments.wrong else [])
    sys.stdout.write("\n".join(lines) + "\n")
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
