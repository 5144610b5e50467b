"""`sampled_tokens`: which tokens it keeps, their columns, and how batches are merged."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from msgspec.structs import fields, replace

from rcdiag.statistics.pair import pair_of
from rcdiag.table.token_batch import TokenBatch, sampled_tokens
from rcdiag.table.trajectories import Ragged, Trajectories
from rcdiag.usecases.replay.update_batch import joined_batches
from tests.builders import make_trajectories

POLICIES = ("rollout", "old")


def table_of(rows: int, seed: int = 0, steps: bool = True) -> Trajectories:
    """Make a table with every column; some rows are empty, some have only masked tokens."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 7, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = int(offsets[-1])

    def of_tokens() -> np.ndarray:
        return -random.exponential(size=tokens)

    return Trajectories(
        first_row=0,
        response_ids=Ragged(random.integers(0, 50, tokens).astype(np.int32), offsets),
        mask=random.random(tokens) < 0.6,
        log_probs={name: of_tokens() for name in (*POLICIES, "other")},
        group=random.integers(0, 5, rows).astype(np.uint64),
        step=random.integers(1, 4, rows) if steps else None,
        reward=random.normal(size=rows),
        advantage=random.normal(size=rows),
        advantages=of_tokens(),
        entropy={"old": of_tokens()},
        sample_id=[f"s{row}" for row in range(rows)],
    )


def rows_of(table: Trajectories, start: int, end: int) -> Trajectories:
    """Return consecutive rows of a table."""
    offsets = table.response_ids.offsets[start : end + 1]
    tokens = slice(offsets[0], offsets[-1])
    of_rows = ("group", "step", "reward", "advantage", "sample_id")
    return dataclasses.replace(
        table,
        first_row=table.first_row + start,
        response_ids=Ragged(table.response_ids.values[tokens], offsets - offsets[0]),
        mask=table.mask[tokens],
        log_probs={name: values[tokens] for name, values in table.log_probs.items()},
        entropy={name: values[tokens] for name, values in table.entropy.items()},
        advantages=table.advantages[tokens],
        **{
            name: None if getattr(table, name) is None else getattr(table, name)[start:end]
            for name in of_rows
        },
    )


def assert_same(result: TokenBatch, expected: TokenBatch) -> None:
    """Check that all fields are equal; missing turns equal turns of 1."""
    for field in fields(TokenBatch):
        one, other = (_plain(getattr(item, field.name)) for item in (result, expected))
        if field.name == "turn":
            one, other = (item or [1] * len(result.token_id) for item in (one, other))
        assert one == other, field.name


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def test_only_unmasked_tokens_are_kept():
    trajectories = make_trajectories(
        [[-1.0, np.nan, -3.0], [], [-4.0]], [[-1.5, np.inf, -3.5], [], [5.0]], [[1, 0, 1], [], [0]]
    )
    tokens = sampled_tokens(trajectories, POLICIES)
    assert tokens.log_probs["rollout"].tolist() == [-1.0, -3.0]
    assert tokens.log_probs["old"].tolist() == [-1.5, -3.5]
    assert tokens.lengths.tolist() == [2]
    assert (tokens.row.tolist(), tokens.empty, tokens.width) == ([0], {None: 2}, 3)
    assert pair_of(trajectories, *POLICIES).log_ratio.tolist() == [-0.5, -0.5]


def test_swapped_names_swap_the_sides():
    pair = pair_of(make_trajectories([[-1.0]], [[-3.0]]), "old", "rollout")
    assert pair.log_ratio.tolist() == [2.0]


def test_columns_of_tokens_equal_those_of_a_loop():
    table = table_of(40)
    tokens = sampled_tokens(table, POLICIES)
    assert set(tokens.log_probs) == set(POLICIES)
    result = []
    for row in range(len(table)):
        start = table.response_ids.offsets[row]
        mask = table.mask[start : table.response_ids.offsets[row + 1]]
        turn = 0
        for position in np.flatnonzero(mask):
            turn += position == 0 or not mask[position - 1]
            at = start + position
            result.append(
                (
                    *(row, position, turn, table.response_ids.values[at]),
                    *(table.log_probs[name][at] for name in POLICIES),
                    *(table.entropy["old"][at], table.advantages[at], table.group[row]),
                    *(table.step[row], table.reward[row], table.advantage[row], f"s{row}"),
                )
            )
    owner = tokens.owner
    columns = (
        *(tokens.row[owner], tokens.position, tokens.turn, tokens.token_id),
        *(tokens.log_probs[name] for name in POLICIES),
        *(tokens.entropy["old"], tokens.advantages, tokens.cluster[owner]),
        *(tokens.step[owner], tokens.reward[owner], tokens.advantage[owner]),
        [tokens.sample_id[index] for index in owner],
    )
    assert list(zip(*columns, strict=True)) == result
    assert len(tokens.lengths) == len({entry[0] for entry in result})
    empty = [row for row in range(40) if row not in {entry[0] for entry in result}]
    assert tokens.empty == {
        step: count
        for step in (1, 2, 3)
        if (count := sum(table.step[row] == step for row in empty))
    }
    assert sum(tokens.empty.values()) > 2


@pytest.mark.parametrize("steps", [True, False])
@pytest.mark.parametrize("cuts", [(20,), (1, 2, 39), tuple(range(1, 40))])
def test_batches_of_a_table_merge_to_the_whole(cuts, steps):
    table = table_of(40, seed=1, steps=steps)
    ends = zip([0, *cuts], [*cuts, 40], strict=True)
    parts = [sampled_tokens(rows_of(table, start, end), POLICIES) for start, end in ends]
    whole = sampled_tokens(table, POLICIES)
    assert_same(joined_batches(parts), whole)
    assert joined_batches(parts).rewards.tolist() == whole.reward.tolist()


def test_a_batch_of_one_turn_and_one_of_two_merge():
    """Without a masked token no turns are stored: all are 1."""
    one = sampled_tokens(make_trajectories([[-1.0] * 3], [[-1.0] * 3]), POLICIES)
    rows = make_trajectories([[-1.0] * 3], [[-1.0] * 3], [[1, 0, 1]], first_row=1)
    two = sampled_tokens(rows, POLICIES)
    assert one.turn is None
    assert joined_batches([one, two]).turn.tolist() == [1, 1, 1, 1, 2]
    assert joined_batches([two, one]).turn.tolist() == [1, 2, 1, 1, 1]
    assert joined_batches([one, one]).turn is None


def test_the_parts_of_every_step_are_its_rows():
    table = table_of(40, seed=2)
    parts = sampled_tokens(table, POLICIES).by_step()
    assert list(parts) == [1, 2, 3]
    for step, part in parts.items():
        rows = np.flatnonzero(table.step == step)
        alone = joined_batches(
            [sampled_tokens(rows_of(table, row, row + 1), POLICIES) for row in rows.tolist()]
        )
        assert_same(replace(part, width=0), replace(alone, width=0))


def test_a_step_without_a_token_is_kept_with_its_rows():
    rows = make_trajectories([[-1.0], [-1.0]], [[-1.0], [-1.0]], [[1], [0]], step=[1, 2])
    parts = sampled_tokens(rows, POLICIES).by_step()
    assert [len(part.lengths) for part in parts.values()] == [1, 0]
    assert [part.empty for part in parts.values()] == [{1: 0}, {2: 1}]


def test_a_table_without_steps_or_of_one_step_is_not_copied():
    rows = make_trajectories([[-1.0], [-2.0]], [[-1.0], [-2.0]])
    tokens = sampled_tokens(rows, POLICIES)
    assert tokens.by_step() == {None: tokens}
    assert tokens.by_step()[None] is tokens
    tokens = sampled_tokens(dataclasses.replace(rows, step=np.array([7, 7])), POLICIES)
    assert tokens.by_step()[7] is tokens


def test_without_masked_tokens_nothing_is_copied():
    rows = make_trajectories([[-1.0], [-2.0]], [[-1.0], [-2.0]])
    tokens = sampled_tokens(rows, POLICIES)
    assert np.shares_memory(tokens.log_probs["old"], rows.log_probs["old"])


def test_unknown_rewards_are_nan():
    tokens = sampled_tokens(make_trajectories([[-1.0], [-2.0]], [[-1.0], [-2.0]]), POLICIES)
    assert tokens.reward is None
    assert np.isnan(tokens.rewards).tolist() == [True, True]


def test_masked_tokens_are_included_on_request():
    """Also for rows without a sampled token, and when split by step and merged."""
    rows = make_trajectories(
        [[-1.0, -2.0, -3.0], [-4.0, -5.0], [-6.0]],
        [[-1.5, -2.5, -3.5], [-4.5, -5.5], [-6.5]],
        mask=[[1, 0, 1], [0, 0], [1]],
        step=[1, 2, 2],
    )
    assert sampled_tokens(rows, ("rollout", "old")).masked is None
    found = sampled_tokens(rows, ("rollout", "old"), masked=True)
    assert found.log_probs["rollout"].tolist() == [-1.0, -3.0, -6.0]
    assert found.masked is not None
    assert found.masked.log_probs["rollout"].tolist() == [-2.0, -4.0, -5.0]
    by_step = {step: part.masked for step, part in found.by_step().items()}
    assert by_step[1].log_probs["old"].tolist() == [-2.5]
    assert by_step[2].log_probs["old"].tolist() == [-4.5, -5.5]
    joined = joined_batches([found, found])
    assert joined.masked.lengths.tolist() == [1, 2, 1, 2]
