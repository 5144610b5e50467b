"""Tokens of the replayed batch: steps, masks, empty rows, recorded advantages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rcdiag.errors import RcdiagError
from rcdiag.usecases.replay.update_batch import Roles
from tests.usecases.replay.builders import naive_of, one, plan_of, replay_of, table_of, update_of

LOGS = [[-1.0], [-1.0, -2.0], [-3.0], [-1.0, -1.0, -1.0]]
# Without a step the loss is minus the mean advantage of the tokens.
ADVANTAGE = [1.0, 2.0, 4.0, 8.0]
STEP = [7, 9, 7, 9]


@pytest.fixture
def table(tmp_path) -> Path:
    return table_of(tmp_path / "t.parquet", LOGS, advantage=ADVANTAGE, step=STEP)


@pytest.mark.parametrize(
    ("step", "chosen", "loss", "rows", "tokens"),
    [(None, 9, -(2 * 2 + 3 * 8) / 5, 2, 5), (9, 9, -28 / 5, 2, 5), (7, 7, -5 / 2, 2, 2)],
)
def test_by_default_the_batch_is_the_last_step(table, step, chosen, loss, rows, tokens):
    result = replay_of(table, step=step)
    assert result.presets["naive"].loss == pytest.approx(loss)
    assert (result.step, result.num_sequences, result.num_tokens) == (chosen, rows, tokens)


def test_an_unknown_step_is_refused_with_the_existing_ones(table):
    with pytest.raises(RcdiagError, match="no step 8") as caught:
        replay_of(table, step=8)
    assert caught.value.hint == "there are 7, 9"


def test_a_step_of_a_table_without_steps_is_refused(tmp_path):
    path = table_of(tmp_path / "t.parquet", LOGS, advantage=ADVANTAGE)
    with pytest.raises(RcdiagError, match="no step 3") as caught:
        replay_of(path, step=3)
    assert caught.value.hint == "the table has no column `step`"
    assert (replay_of(path).step, replay_of(path).num_tokens) == (None, 7)


@pytest.mark.parametrize("rows_per_group", [1, 3])
def test_several_parts_of_a_table_are_one_batch(table, tmp_path, monkeypatch, rows_per_group):
    monkeypatch.setattr("rcdiag.table.readers.parquet.TOKENS_PER_BATCH", 1)
    path = table_of(
        tmp_path / "parts.parquet",
        LOGS,
        advantage=ADVANTAGE,
        step=STEP,
        rows_per_group=rows_per_group,
    )
    for step in (7, 9):
        result, whole = replay_of(path, step=step), replay_of(table, step=step)
        assert result.presets == whole.presets


def test_rows_of_other_steps_have_no_effect(table, tmp_path):
    """Their log-probs and advantages are NaN."""
    logs = [[np.nan], LOGS[1], [np.nan], LOGS[3]]
    advantage = [np.nan, 2.0, np.inf, 8.0]
    path = table_of(tmp_path / "t2.parquet", logs, advantage=advantage, step=STEP)
    result = replay_of(path, step=9)
    assert result.presets == replay_of(table, step=9).presets
    assert not any(item.slug == "non-finite-log-probs" for item in result.findings)


def test_masked_tokens_are_left_out(tmp_path):
    """A masked token with garbage, and a row that is entirely masked."""
    logs = [[-1.0, np.nan, -2.0], [np.inf, np.nan], [-1.0]]
    columns = {
        "response_mask": [[1, 0, 1], [0, 0], [1]],
        "advantages": [[3.0, np.nan, 5.0], [np.nan] * 2, [1.0]],
    }
    result = replay_of(table_of(tmp_path / "t.parquet", logs, **columns))
    assert result.presets["naive"].loss == pytest.approx(-(3 + 5 + 1) / 3)
    assert (result.num_sequences, result.num_tokens, result.empty_sequences) == (2, 3, 1)
    assert result.presets["naive"].coefficients.abs_sum == pytest.approx(9 / 3)


def test_a_table_of_masked_tokens_is_refused(tmp_path):
    path = table_of(tmp_path / "t.parquet", [[-1.0]], advantage=[1.0], response_mask=[[0]])
    with pytest.raises(RcdiagError, match="no unmasked response token") as caught:
        replay_of(path)
    assert "inverted" in caught.value.hint


def test_advantages_by_token_take_precedence_over_those_by_row(tmp_path):
    columns = {"advantage": [9.0], "advantages": [[1.0, -4.0]]}
    path = table_of(tmp_path / "t.parquet", [[-1.0, -1.0]], **columns)
    result = naive_of(path)
    assert result.loss == pytest.approx(3.0 / 2)
    assert result.coefficients.sum == pytest.approx(3.0 / 2)


@pytest.mark.parametrize("unknown", [np.nan, np.inf])
def test_an_unmasked_token_without_advantage_is_refused(tmp_path, unknown):
    path = table_of(tmp_path / "t.parquet", [[-1.0, -1.0], [-1.0]], advantage=[unknown, 1.0])
    with pytest.raises(RcdiagError, match="2 unmasked tokens have no finite advantage") as caught:
        naive_of(path)
    assert "--advantage grpo" in caught.value.hint


def test_unknown_rewards_are_refused(tmp_path):
    columns = {"reward": [1.0, None, 0.0], "group_id": [0, 0, 0]}
    path = table_of(tmp_path / "t.parquet", [[-1.0]] * 3, **columns)
    with pytest.raises(RcdiagError, match="1 of 3 rows have no finite reward"):
        naive_of(path, advantage="grpo")


def test_a_row_without_tokens_needs_no_reward(tmp_path):
    columns = {"reward": [1.0, None, 0.0], "group_id": [0, 0, 0]}
    path = table_of(tmp_path / "t.parquet", [[-1.0], [], [-1.0]], **columns)
    assert naive_of(path, advantage="rloo").coefficients.abs_sum == pytest.approx(1.0)


def test_groups_of_one_are_refused_by_grpo_and_not_by_reinforce(tmp_path):
    columns = {"reward": [1.0, 0.0], "group_id": ["a", "b"]}
    path = table_of(tmp_path / "t.parquet", [[-1.0]] * 2, **columns)
    with pytest.raises(RcdiagError, match="every prompt group has one sequence"):
        naive_of(path, advantage="grpo")
    assert naive_of(path, advantage="reinforce++").coefficients.abs_sum == pytest.approx(0.5**0.5)


def test_any_policy_can_take_a_role(tmp_path):
    names = {"a_log_probs": [[-1.0]], "b_log_probs": [[-2.0]], "c_log_probs": [[-2.5]]}
    path = table_of(tmp_path / "t.parquet", [[-9.0]], advantage=[1.0], **names)
    roles = Roles(rollout="a", old="b", current="c")
    config = {"rollout_is": "token", "rollout_is_threshold": 2.0}
    result = replay_of(path, plan_of(it=config), update_of(), roles=roles)
    weight, ratio = np.exp(-1.0), np.exp(-0.5)
    assert result.presets["it"].loss == pytest.approx(-weight * ratio)
    assert (result.rollout, result.old, result.current) == ("a", "b", "c")


def test_a_nan_log_prob_is_a_finding(tmp_path):
    old = [[-1.0, np.nan], [-1.0]]
    path = table_of(tmp_path / "t.parquet", [[-1.0, -1.0], [-1.0]], old, advantage=[1.0, 1.0])
    result = replay_of(path)
    (output,) = [item for item in result.findings if item.slug == "non-finite-log-probs"]
    assert (output.severity, output.evidence["policy"], output.evidence["rows"]) == (
        "error",
        "old",
        1,
    )


def test_a_nan_loss_is_never_ok(tmp_path):
    """The loss stays NaN, as the trainer would log; presets that drop the token are unknown."""
    old = [[-1.0, np.nan], *[[-1.0, -1.0]] * 11]
    path = table_of(tmp_path / "t.parquet", [[-1.0, -1.0]] * 12, old, advantage=[1.0, -1.0] * 6)
    result = replay_of(path).presets
    assert np.isnan(result["naive"].loss)
    broken = [item for item in result.values() if item.loss is not None and np.isnan(item.loss)]
    assert {item.health.verdict for item in broken} == {"error"}
    assert result["decoupled_geo_rs"].loss == pytest.approx(1 / 11)
    assert result["decoupled_geo_rs"].health.verdict == "cannot judge"


def test_a_rejection_bound_drops_the_nan_token(tmp_path):
    """The rejection removes it, so the loss of the others is finite."""
    old = [[-1.0, np.nan], [-1.0]]
    path = table_of(tmp_path / "t.parquet", [[-1.0, -1.0], [-1.0]], old, advantage=[1.0, 1.0])
    config = {"rollout_is": None, "rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0"}
    result = one(path, config)
    assert (result.loss, result.kept_tokens) == (pytest.approx(-1.0), 2)


@pytest.mark.parametrize("logs", [[], [-1.0, -1.0]])
def test_rewards_of_rows_without_a_sampled_token_count_in_their_groups_baseline(tmp_path, logs):
    """Rewards 1, 0 and 2 of one prompt; the last row was masked after it was rewarded.

    Mean 1 and deviation 1 give the advantages 0 (one token) and -1 (two tokens): loss 2 / 3.
    """
    rollout = [[-1.0], [-1.0, -1.0], logs]
    mask = [[1], [1, 1], [0] * len(logs)]
    columns = {"response_mask": mask, "reward": [1.0, 0.0, 2.0], "group_id": ["a"] * 3}
    path = table_of(tmp_path / "t.parquet", rollout, **columns)
    assert naive_of(path, advantage="grpo").loss == pytest.approx(2 / 3, rel=1e-5)
    unknown = {**columns, "reward": [1.0, 0.0, None]}
    path = table_of(tmp_path / "unknown.parquet", rollout, **unknown)
    spread = 0.5 / (0.5**0.5 + 1e-6)
    assert naive_of(path, advantage="grpo").loss == pytest.approx(spread / 3)


def test_rows_of_other_steps_do_not_count_in_a_baseline(tmp_path):
    rollout, steps = [[-1.0], [-1.0], [-1.0]], [1, 1, 0]
    columns = {"reward": [1.0, 0.0, 5.0], "group_id": ["a"] * 3, "step": steps}
    path = table_of(tmp_path / "t.parquet", rollout, **columns)
    assert naive_of(path, advantage="grpo").loss == pytest.approx(0.0, abs=1e-12)
