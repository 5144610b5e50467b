"""All that one pass leaves behind is the same whatever the cut of the rows."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from rcdiag.statistics.accumulator import Summary
from rcdiag.statistics.profiles import finished
from rcdiag.statistics.vocabulary import worst_ids
from tests.builders import make_pair, summed
from tests.statistics.comparisons import assert_near, assert_same_values
from tests.statistics.strategies import seeded_batch


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def columns_of(rows: int, *, holes_from: int = 0) -> dict[str, list]:
    """A table with everything; rows before `holes_from` have no masked token."""
    random = np.random.default_rng(5)
    behavior, target = seeded_batch(5, rows)
    mask = [(random.random(len(row)) < 0.8).astype(int).tolist() for row in behavior]
    mask[:holes_from] = [[1] * len(row) for row in behavior[:holes_from]]
    return {
        "behavior": behavior,
        "target": target,
        "mask": mask,
        "cluster": random.integers(0, 9, rows).tolist(),
        "step": np.sort(random.integers(1, 4, rows)).tolist(),
        "reward": random.choice([-1.0, 0.0, 1.0, np.nan], rows).tolist(),
        "entropy": [random.exponential(size=len(row)).tolist() for row in behavior],
        "token_ids": [random.integers(0, 6, len(row)).tolist() for row in behavior],
    }


def summary_of(columns: dict[str, list], executor: Executor, *cuts: int) -> Summary:
    found = Summary()
    rows = len(columns["behavior"])
    for start, end in zip([0, *cuts], [*cuts, rows], strict=True):
        cut = {name: values[start:end] for name, values in columns.items()}
        cut["entropy"] = {"old": cut["entropy"]}
        found.add(make_pair(**cut, first_row=start), executor)
    return found


def plain(summary: Summary) -> dict[str, Any]:
    """What comes out, but for the metrics."""
    return {
        "profiles": finished(summed(summary.profiles)),
        "ids": worst_ids(summary.vocabulary),
        "figures": summary.figures.to_dict(),
        "tokens": summary.worst_tokens.to_list(),
        "sequences": summary.worst_sequences.found,
    }


def assert_same_summary(found: Summary, wanted: Summary) -> None:
    assert_near(plain(found), plain(wanted), "summary")
    states = wanted.by_step()
    assert list(found.by_step()) == list(states) == [1, 2, 3]
    for step, state in found.by_step().items():
        assert_same_values(state, states[step])


def test_a_summary_is_the_same_whatever_the_cut(executor, monkeypatch):
    columns = columns_of(80)
    wanted = summary_of(columns, executor)
    assert set(plain(wanted)["profiles"]) >= {"position", "turn", "entropy", "reward"}
    assert_same_summary(summary_of(columns, executor, 20, 21, 55), wanted)
    monkeypatch.setattr("rcdiag.statistics.accumulator.WAITING", 3)
    assert_same_summary(summary_of(columns, executor, *range(5, 80, 5)), wanted)


def test_merged_summaries_are_that_of_all_rows(executor):
    columns = columns_of(80)
    head = {name: values[:33] for name, values in columns.items()}
    found = summary_of(head, executor, 10)
    other = Summary()
    tail = {name: values[33:] for name, values in columns.items()}
    tail["entropy"] = {"old": tail["entropy"]}
    other.add(make_pair(**tail, first_row=33), executor)
    found.merge(other)
    assert_same_summary(found, summary_of(columns, executor))


def test_turns_are_counted_in_shards_without_a_hole_too(executor):
    """Rows of one turn lie in the first turn, whether a neighbour in their batch has two or not."""
    columns = columns_of(40, holes_from=20)
    whole, cut = summary_of(columns, executor), summary_of(columns, executor, 20)
    assert_near(plain(cut)["profiles"]["turn"], plain(whole)["profiles"]["turn"], "turn")
