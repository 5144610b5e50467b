"""`--rebaseline`: advantages recomputed without the rejected rows."""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.usecases.replay.token_advantages import ADVANTAGES, without_rejected
from tests.usecases.replay.builders import batch_of, one, table_of

REJECT = {"rollout_is": None, "rollout_rs": "seq_mean_k2", "rollout_rs_threshold": 0.5}
ROLLOUT = [[-1.0, -1.0], [-5.0], [-1.0], [-1.0], [-2.0], [-2.0, -2.0]]
# Only row 1 differs by 3 nats and is rejected.
OLD = [[-1.0, -1.0], [-2.0], [-1.0], [-1.0], [-2.0], [-2.0, -2.0]]
REWARD = [1.0, 0.0, 0.5, 0.0, 1.0, 0.2]
GROUP = ["a", "a", "a", "b", "b", "b"]


@pytest.fixture
def table(tmp_path) -> Path:
    return table_of(tmp_path / "t.parquet", ROLLOUT, OLD, reward=REWARD, group_id=GROUP)


def group_advantages(rewards: list[float]) -> list[float]:
    mean = sum(rewards) / len(rewards)
    spread = sqrt(sum((item - mean) ** 2 for item in rewards) / (len(rewards) - 1)) + 1e-6
    return [(item - mean) / spread for item in rewards]


def test_baselines_come_from_the_kept_rows(table):
    """Token losses are -A; the kept rows of group a have rewards 1 (two tokens) and 0.5."""
    first, second = group_advantages([1.0, 0.5])
    rest = group_advantages([0.0, 1.0, 0.2])
    total = 2 * first + second + rest[0] + rest[1] + 2 * rest[2]
    result = one(table, REJECT, advantage="grpo", rebaseline=True)
    assert result.loss == pytest.approx(-total / 7)
    assert result.kept_sequences == 5


def test_without_rebaseline_rejected_rows_are_in_the_baseline(table):
    whole, rest = group_advantages([1.0, 0.0, 0.5]), group_advantages([0.0, 1.0, 0.2])
    total = 2 * whole[0] + whole[2] + rest[0] + rest[1] + 2 * rest[2]
    assert one(table, REJECT, advantage="grpo").loss == pytest.approx(-total / 7)


def test_nothing_changes_if_nothing_is_rejected(table):
    config = {"rollout_is": "token", "rollout_is_threshold": 2.0}
    plain = one(table, config, advantage="rloo")
    again = one(table, config, advantage="rloo", rebaseline=True)
    assert (again.loss, again.coefficients) == (plain.loss, plain.coefficients)


def test_a_recorded_advantage_is_recomputed_by_grpo(tmp_path):
    columns = {"reward": REWARD, "group_id": GROUP, "advantage": [9.0] * 6}
    path = table_of(tmp_path / "t.parquet", ROLLOUT, OLD, **columns)
    expected = one(path, REJECT, advantage="grpo", rebaseline=True).loss
    assert one(path, REJECT, advantage="column", rebaseline=True).loss == pytest.approx(expected)
    assert one(path, REJECT, advantage="column").loss == pytest.approx(-9.0)


ROWS = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 2), st.integers(1, 4), st.booleans()),
    min_size=2,
    max_size=10,
)


@pytest.mark.parametrize("source", list(ADVANTAGES))
@given(rows=ROWS)
def test_advantages_without_rejected_rows_are_those_of_a_loop(source, rows):
    """From the kept rows only; a rejected row has 0."""
    rewards, groups, lengths, stays = map(list, zip(*rows, strict=True))
    lists = [[-1.0] * count for count in lengths]
    batch = batch_of(lists, lists, lists, reward=rewards, cluster=groups)
    result = without_rejected(batch.tokens, np.repeat(stays, lengths), source).tolist()
    kept = [row for row in rows if row[3]]
    expected: list[float] = []
    of_kept = iter(loop(source, kept))
    for _, _, count, stay in rows:
        expected += [next(of_kept) if stay else 0.0] * count
    assert result == pytest.approx(expected, rel=1e-6, abs=1e-6)


def loop(source: str, rows: list) -> list[float]:
    if source == "reinforce++":
        tokens = [reward for reward, _, count, _ in rows for _ in range(count)]
        if not tokens:
            return []
        mean = sum(tokens) / len(tokens)
        variance = sum((item - mean) ** 2 for item in tokens) / max(len(tokens) - 1, 1)
        return [(reward - mean) / sqrt(variance + 1e-8) for reward, *_ in rows]
    result = []
    for own, key, *_ in rows:
        others = [reward for reward, group, *_ in rows if group == key]
        if len(others) == 1:
            result.append(own / (1 + 1e-6) if source == "grpo" else float(own))
        elif source == "rloo":
            result.append(own - (sum(others) - own) / (len(others) - 1))
        else:
            mean = sum(others) / len(others)
            spread = sqrt(sum((item - mean) ** 2 for item in others) / (len(others) - 1))
            result.append((own - mean) / (spread + 1e-6))
    return result


def test_a_row_that_loses_some_tokens_stays_in_the_baseline(tmp_path):
    """Token rejection removes one of its two tokens."""
    rollout, old = [[-1.0, -4.0], [-1.0]], [[-1.0, -1.0], [-1.0]]
    columns = {"reward": [1.0, 0.0], "group_id": ["a", "a"]}
    path = table_of(tmp_path / "t.parquet", rollout, old, **columns)
    config = {"rollout_is": None, "rollout_rs": "token_k2", "rollout_rs_threshold": 0.5}
    result = one(path, config, advantage="rloo", rebaseline=True)
    assert result.loss == pytest.approx(-(1.0 - 1.0) / 2)
    assert result.coefficients.abs_sum == pytest.approx(1.0)
