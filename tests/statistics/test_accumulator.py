"""The state of a pass does not depend on how rows are cut into parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from rcdiag.statistics.accumulator import PairState
from rcdiag.statistics.merging import merge, merged
from rcdiag.statistics.profiles import finished
from rcdiag.statistics.token_ids import worst_ids
from tests.builders import make_pair, summed
from tests.statistics.comparisons import assert_near, assert_same_values
from tests.statistics.strategies import seeded_batch


def columns_of(rows: int, *, holes_from: int = 0) -> dict[str, list]:
    """Make a table with every column; rows before `holes_from` have no masked token."""
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


def states_of(columns: dict[str, list], *cuts: int) -> list[PairState]:
    """Return the states of the rows between the cuts."""
    result = []
    rows = len(columns["behavior"])
    for start, end in zip([0, *cuts], [*cuts, rows], strict=True):
        cut = {name: values[start:end] for name, values in columns.items()}
        cut["entropy"] = {"old": cut["entropy"]}
        pair = make_pair(**cut, first_row=start)
        result.append(PairState.of(pair))
    return result


def state_of(columns: dict[str, list], *cuts: int) -> PairState:
    return summed(states_of(columns, *cuts))


def plain(state: PairState) -> dict[str, Any]:
    """Return the results of a state except the metrics."""
    return {
        "profiles": finished(state.profiles),
        "ids": worst_ids(state.vocabulary),
        "figures": state.figures.to_dict(),
        "tokens": state.worst_tokens.tokens,
        "sequences": state.worst_sequences.rounded(),
    }


def assert_same_state(result: PairState, expected: PairState) -> None:
    assert_near(plain(result), plain(expected), "state")
    states = expected.by_step()
    assert list(result.by_step()) == list(states) == [1, 2, 3]
    for step, state in result.by_step().items():
        assert_same_values(state, states[step])


def test_a_state_does_not_depend_on_the_cuts():
    columns = columns_of(80)
    expected = state_of(columns)
    assert set(plain(expected)["profiles"]) >= {"position", "turn", "entropy", "reward"}
    assert_same_state(state_of(columns, 20, 21, 55), expected)
    assert_same_state(state_of(columns, 1, 2, 79), expected)
    assert_same_state(state_of(columns, *range(5, 80, 5)), expected)


def test_a_state_does_not_depend_on_the_order_of_merging():
    columns = columns_of(80)
    expected = state_of(columns)
    first, second, third = states_of(columns, 10, 33)
    assert_same_state(merge([first, merge([second, third])]), expected)
    assert_same_state(merge([third, first, second]), expected)
    total = merged(states_of(columns, *range(5, 80, 5)))
    assert total is not None
    assert_same_state(total, expected)


def test_turns_are_counted_in_shards_without_masked_tokens_too():
    """Single-turn rows count for the first turn, also if another row of the batch has two."""
    columns = columns_of(40, holes_from=20)
    whole, cut = state_of(columns), state_of(columns, 20)
    assert_near(plain(cut)["profiles"]["turn"], plain(whole)["profiles"]["turn"], "turn")
