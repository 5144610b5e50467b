"""The course of a generated run: steps with the fault, drifts, restarts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

ROWS = 24  # of a step
CREEPING = ("stale-weights", "partial-sync")  # kinds of faults that may grow with the steps
FEWEST = 8  # steps before and after a change


@dataclass
class Course:
    """Events over the steps of a run; all positions are step indices."""

    name: str
    steps: list[int]  # step numbers by the run's own counter
    shares: np.ndarray  # share of rows with the fault, [steps]
    first: int | None = None  # None: from the beginning, or never
    period: int | None = None  # period of the steps with the fault
    resumed: int | None = None  # the run was resumed before this step
    lost: int = 0  # number of steps that were logged before and again after the restart
    rate: str = "constant"  # learning rate: `constant`, `to 0`, or `0`
    surprise: float = 0.0  # drift towards rows of high surprisal, standard deviations
    length: float = 0.0  # and towards long rows

    @property
    def learning_rate(self) -> np.ndarray:
        count = len(self.steps)
        by_name = {"constant": np.ones(count), "to 0": np.linspace(1, 0, count)}
        return 1e-6 * by_name.get(self.rate, np.zeros(count))


def drawn_course(rng: np.random.Generator, kind: str, *, healthy: bool) -> Course:
    """Draw the course of a run with a kind of fault."""
    count = int(rng.integers(30, 70))
    counter = int(rng.choice([0, 100])) + np.arange(1, count + 1)
    begins = int(rng.integers(FEWEST, count - 2 * FEWEST))
    shares = np.zeros(count)
    course = Course("begins", counter.tolist(), shares, begins)
    names = ["begins", "always", "back", "periodic"]
    if kind.startswith(CREEPING):
        names.append("creeps")
    course.name = names[int(rng.integers(len(names)))]
    match course.name:
        case "begins":
            shares[begins:] = 1.0
        case "always":
            shares[:] = 1.0
            course.first = None
        case "back":
            until = int(rng.integers(begins + FEWEST, count - FEWEST + 1))
            shares[begins:until] = 1.0
            if rng.random() < 0.5:
                course.resumed, course.lost = until, int(rng.integers(1, 6))
        case "periodic":
            course.period = int(rng.integers(4, 9))
            course.first = course.period - 1
            shares[course.first :: course.period] = 1.0
        case "creeps":
            shares[begins:] = np.linspace(0.0, 1.0, count - begins)
    if healthy and rng.random() < 0.3:
        course.resumed, course.lost = begins, int(rng.integers(1, 6))
    rates = ["constant", "to 0", "0"]
    course.rate = rates[int(rng.choice(3, p=[0.5, 0.3, 0.2]))]
    if course.name == "creeps" and rng.random() < 0.7:
        course.rate = "constant"
    course.surprise, course.length = (float(x) for x in rng.choice([-1.0, 0.0, 0.0, 1.0], 2))
    return course


def drawn_rows(
    healthy: pa.Table, faulty: pa.Table, course: Course, micro: int, rng: np.random.Generator
) -> pa.Table:
    """Draw the rows of each step; micro-batches of a step are steps of the table.

    The rows of the steps that a resumed run logged twice come last.
    """
    parts, at = [], np.arange(len(course.steps))
    shares = course.shares
    if course.resumed is not None:
        at = np.append(at, at[course.resumed : course.resumed + course.lost])
        before = course.shares[course.resumed - 1]
        shares = np.append(shares, np.full(len(at) - len(shares), before))
    tables = (healthy, faulty)
    leaning = [_leaning(table, course) for table in tables]
    for place, (step, share) in enumerate(zip(at, shares, strict=True)):
        with_fault = int(rng.binomial(ROWS, share))
        chosen = []
        for which, count in ((0, ROWS - with_fault), (1, with_fault)):
            if not count:
                continue
            odds = np.exp(leaning[which] * (2.0 * step / len(course.steps) - 1.0))
            rows = rng.choice(len(tables[which]), count, p=odds / odds.sum())
            chosen.append(tables[which].take(pa.array(rows)))
        whole = pa.concat_tables(chosen, promote_options="permissive")
        whole = whole.take(pa.array(rng.permutation(len(whole))))
        steps = place * micro + np.arange(len(whole)) * micro // len(whole)
        parts.append(whole.append_column("step", pa.array(steps)))
    return pa.concat_tables(parts, promote_options="permissive")


def _leaning(table: pa.Table, course: Course) -> np.ndarray:
    """Return the logarithm of each row's odds at the end of a run over those at its middle."""
    length = np.log([len(row) for row in table["response_ids"].to_pylist()])
    leaning = course.length * _standard(length)
    # By entropies only: selecting by surprisal of sampled tokens would bias the sample.
    if "old_entropy" in table.column_names:
        entropy = np.array([_size(row) for row in table["old_entropy"].to_pylist()])
        leaning += course.surprise * _standard(entropy)
    return leaning


def _size(numbers: list[float]) -> float:
    values = np.abs(np.array(numbers, np.float64))
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else 0.0


def _standard(values: np.ndarray) -> np.ndarray:
    return (values - values.mean()) / max(float(values.std()), 1e-9)
