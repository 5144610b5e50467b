"""Several steps, split batches and saved models, against plain torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rcdiag.errors import RcdiagError
from tests.usecases.replay.builders import plan_of
from tests.usecases.replay.conftest import ROWS, table_for
from tests.usecases.replay.plain import LOSSES, Plain, k3
from tests.usecases.replay.with_model import model_of, replay_model_of, training_of

pytestmark = pytest.mark.engine
every_loss = pytest.mark.parametrize("name", list(LOSSES))
STEPS = [3, 3, 5, 3, 5, 5, 3, 5]


@pytest.fixture(scope="module")
def two_steps(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("steps") / "two.parquet"
    assert len(STEPS) == ROWS
    return table_for(path, model, seed=1, step=STEPS)


@pytest.fixture(scope="module")
def over_steps(model, two_steps):
    return replay_model_of(two_steps, model_of(model, steps=2))


def by_hand(model: Path, table: Path, name: str, rate: float = 0.1) -> tuple[Plain, Plain]:
    """Take the first step, then use the model on the rows of the second."""
    first = Plain.load(model, table, step=3)
    optimizer = torch.optim.SGD(first.model.parameters(), lr=rate)
    first.train(LOSSES[name], optimizer, [range(len(first.rows))])
    return first, Plain(first.model, Plain.load(model, table, step=5).rows)


@every_loss
def test_each_preset_continues_from_its_own_first_step(model, two_steps, over_steps, name):
    """The old log-probs of the second step are those of the policy after the first."""
    _, second = by_hand(model, two_steps, name)
    old = second.all_log_probs()
    optimizer = torch.optim.SGD(second.model.parameters(), lr=0.1)
    loss = second.loss(LOSSES[name], range(len(second.rows)), second.olds()).item()
    second.train(LOSSES[name], optimizer, [range(len(second.rows))])
    assert [item.step for item in over_steps.steps] == [3, 5]
    result = over_steps.steps[1].presets[name]
    assert result.loss == pytest.approx(loss, rel=1e-4)
    expected = k3(old, second.all_log_probs())
    assert result.after_step.kl_old_new.value == pytest.approx(expected, rel=2e-3)


def test_the_first_of_several_steps_is_the_replay_itself(over_steps):
    assert over_steps.step == 3
    for name, preset in over_steps.presets.items():
        again = over_steps.steps[0].presets[name]
        assert again.loss == preset.loss
        expected = preset.after_step.kl_old_new.value
        assert again.after_step.kl_old_new.value == pytest.approx(expected, rel=1e-6)


def test_bypass_and_decoupled_differ_at_the_second_step(over_steps):
    """With one update per step the two differ only by their anchors."""
    last = over_steps.steps[1].presets
    assert last["bypass_ppo_clip"].loss != pytest.approx(last["naive"].loss, rel=1e-3)


def test_more_steps_than_the_table_has_are_refused(model, two_steps):
    with pytest.raises(RcdiagError, match=r"\(--steps 3\): the table has only 2 steps") as caught:
        replay_model_of(two_steps, model_of(model, steps=3))
    assert caught.value.hint == "`steps=2` (--steps 2)"


@every_loss
def test_a_split_batch_equals_a_plain_loop(model, table, name):
    training = training_of(split=2, seed=3)
    names = () if name == "naive" else (name,)
    result = replay_model_of(table, model_of(model, training), *names).presets[name].split
    ends = []
    order = np.random.default_rng(3).permutation(ROWS - 1)
    halves = [np.sort(half).tolist() for half in np.array_split(order, 2)]
    for chunks in ([range(ROWS - 1)], halves):
        plain = Plain.load(model, table)
        start = plain.all_log_probs()
        optimizer = torch.optim.SGD(plain.model.parameters(), lr=0.1)
        plain.train(LOSSES[name], optimizer, chunks)
        ends.append(plain.all_log_probs())
    assert result.minibatches == 2
    assert result.kl_whole.value == pytest.approx(k3(start, ends[0]), rel=2e-3)
    assert result.kl_split.value == pytest.approx(k3(start, ends[1]), rel=2e-3)
    assert result.kl_between.value == pytest.approx(k3(ends[0], ends[1]), rel=5e-3)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("name", ["decoupled_token_is", "bypass_pg_is"])
def test_the_saved_model_is_that_after_the_step(model, table, tmp_path, name):
    before = bytes_of(model)
    made = replay_model_of(table, model_of(model, save=tmp_path / "saved"), name)
    assert bytes_of(model) == before
    plain = Plain.load(model, table)
    optimizer = torch.optim.SGD(plain.model.parameters(), lr=0.1)
    plain.train(LOSSES[name], optimizer, [range(len(plain.rows))])
    saved = Plain.load(tmp_path / "saved", table).all_log_probs()
    np.testing.assert_allclose(saved, plain.all_log_probs(), atol=2e-4)
    old = Plain.load(model, table).all_log_probs()
    expected = made.presets[name].after_step.kl_old_new.value
    assert k3(old, saved) == pytest.approx(expected, rel=1e-3)


def test_the_model_saved_after_two_steps_includes_both(model, two_steps, tmp_path):
    replay_model_of(two_steps, model_of(model, steps=2, save=tmp_path / "saved"), "bypass_pg_is")
    _, second = by_hand(model, two_steps, "bypass_pg_is")
    optimizer = torch.optim.SGD(second.model.parameters(), lr=0.1)
    second.train(LOSSES["bypass_pg_is"], optimizer, [range(len(second.rows))])
    saved = Plain.load(tmp_path / "saved", two_steps, step=5).all_log_probs()
    np.testing.assert_allclose(saved, second.all_log_probs(), atol=5e-4)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_new_baselines_are_in_every_step_that_is_taken(model, table, tmp_path, minibatches):
    """With one mini-batch the gradient is reused; saving computes the step again."""
    training = training_of(minibatches=minibatches)
    made = model_of(model, training, save=tmp_path / "saved")
    update = {"advantage": "grpo", "rebaseline": True}
    config = {"rollout_is": None, "rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.02}
    plan = plan_of(it=config)
    result = replay_model_of(table, made, plan=plan, update=update).presets["it"]
    assert 2 < result.kept_sequences < ROWS - 1
    old = Plain.load(model, table).all_log_probs()
    saved = Plain.load(tmp_path / "saved", table).all_log_probs()
    moved = result.after_step.kl_old_new.value
    assert k3(old, saved) == pytest.approx(moved, rel=1e-3)
    plain = replay_model_of(
        table, model_of(model, training), plan=plan, update={"advantage": "grpo"}
    )
    assert plain.presets["it"].after_step.kl_old_new.value != pytest.approx(moved, rel=1e-3)
