"""Choices of `rcdiag sweep` compared with the best candidate, on tables with known true gradients.

`python benchmarks/recommendation.py` (or `make bench`) generates 48 tables of policies whose
gradients are known: noise of .01 to .2 nats per token, 40 to 4,000 tokens, 512 to 4,096 sequences
(1,024 of 4,000 tokens), dense and heavy-tailed noise, rewards that depend on one sum over the
tokens or on a product of two. For each table it compares the choice with the best candidate that
violates no constraint, and with no correction, by the squared error of the gradient of a batch as
large as the table (weights scaled to a mean of 1) and by its efficiency
(m . g)^2 / (|g|^2 E|G|^2). True gradients are estimated from 65,536 sequences of each policy. It
prints every case and how often the targets are met, and stores both in
`benchmarks/results/recommendation.json`.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path

# Import from the repository root: `statistics.py` in this folder would hide the standard module.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import RESULTS, store  # noqa: E402
from tests.usecases.sweep.truth import Outcome, cases, outcome_of, shares  # noqa: E402


def line(it: Outcome) -> str:
    """Write a case in one line."""
    return (
        f"{it.case:68} {it.choice:20} error x{it.error:.3f} of {it.least_error:20} efficiency "
        f"x{it.efficiency:.3f} of {it.most_efficient:20} to none: error x{it.error_to_none:.3f}, "
        f"efficiency x{it.efficiency_to_none:.3f}"
    )


def rounded(it: Outcome) -> dict[str, str | float]:
    """Round the numbers of a case."""
    return {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in asdict(it).items()
    }


def main() -> None:
    start, outcomes = time.perf_counter(), []
    for case in cases():
        outcomes.append(outcome_of(case))
        print(line(outcomes[-1]), flush=True)
    met = shares(outcomes)
    for aim, share in met.items():
        print(f"{share:.1%}  {aim}")
    store(
        RESULTS / "recommendation.json",
        {
            "seconds": round(time.perf_counter() - start, 1),
            "cases": len(outcomes),
            "shares": met,
            "outcomes": [rounded(it) for it in outcomes],
        },
    )


if __name__ == "__main__":
    main()
