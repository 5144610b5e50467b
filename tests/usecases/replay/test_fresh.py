"""Fresh samples of the model: as the gradient reference, and rewards before and after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rcdiag.engines.tokenizer import decoder
from rcdiag.errors import RcdiagError
from rcdiag.usecases.replay.fresh_samples import prompts_of, sampler
from tests.usecases.replay.builders import update_of
from tests.usecases.replay.conftest import ROWS, table_for
from tests.usecases.replay.with_model import (
    loaded,
    model_of,
    replay_model_of,
    trainee_of,
    training_of,
)

pytestmark = pytest.mark.engine
FRESH = {"reference": "fresh"}


def twos(prompt: str, response: str, row: dict[str, Any]) -> float:
    """Return the share of 2 among the digits; the tokens of the tiny model are numbers."""
    return response.count("2") / max(len(response), 1)


@pytest.fixture(scope="module")
def trainee(model):
    return trainee_of(model)


def joined_ids(ids: list[int]) -> list[str]:
    return [f"{item} " for item in ids]


def rows_for(numbers: list[int]) -> dict[int, dict[str, Any]]:
    return {number: {"number": number} for number in numbers}


def test_every_prompt_is_sampled_as_often_as_it_was_recorded(trainee, table):
    """Eight rows of four prompts, one of them empty."""
    seen: list[tuple[str, int]] = []

    def reward(prompt: str, response: str, row: dict[str, Any]) -> float:
        seen.append((prompt, row["number"]))
        return float(len(seen))

    prompts = prompts_of(loaded(table)[0], rows_for)
    result = sampler(trainee, prompts, reward, joined_ids)(None, 0)
    (part,) = result.parts
    assert len(prompts.ids) == 4
    assert len(part) == 8
    assert result.reward.tolist() == [float(n) for n in range(1, 9)]
    assert set(seen) == {("2 5 9 ", 0), ("3 5 10 ", 2), ("4 5 11 ", 4), ("5 5 12 ", 6)}
    assert np.unique(result.group, return_counts=True)[1].tolist() == [2, 2, 2, 2]
    assert part.mask.all()


@pytest.mark.parametrize(("expected", "given"), [(1, 4), (9, 12), (40, 40)])
def test_the_number_of_samples_is_a_multiple_of_the_prompts(trainee, table, expected, given):
    prompts = prompts_of(loaded(table)[0], rows_for)
    result = sampler(trainee, prompts, twos, joined_ids)(expected, 0)
    assert len(result.reward) == given


def test_the_same_seed_gives_the_same_samples(trainee, table):
    take = sampler(trainee, prompts_of(loaded(table)[0], rows_for), twos, joined_ids)
    one, again, other = (take(None, seed).parts[0].response_ids.values for seed in (1, 1, 2))
    assert one.tolist() == again.tolist()
    assert one.tolist() != other.tolist()


def test_rewards_before_and_after_are_those_of_both_models(model, table, tmp_path):
    """The model after the step is the saved one; both are sampled with one seed."""
    training = training_of(rate=0.1, evaluate=200, reference="none", seed=4)
    made = model_of(model, training, reward=twos, save=tmp_path / "saved")
    after = replay_model_of(table, made, "decoupled_token_is").presets["decoupled_token_is"]
    result = after.after_step
    for folder, value in ((model, result.reward_before), (tmp_path / "saved", result.reward_after)):
        prompts = prompts_of(loaded(table)[0], rows_for)
        decode = decoder(str(folder))
        rewards = sampler(trainee_of(folder), prompts, twos, decode)(200, 5).reward
        assert len(rewards) == 200
        assert value.value == pytest.approx(rewards.mean())
        assert value.low < value.value < value.high
    assert result.reward_before.value != pytest.approx(result.reward_after.value, abs=1e-4)


def test_without_evaluation_no_reward_is_reported(model, table):
    after = replay_model_of(table, model_of(model), "disabled").presets["naive"].after_step
    assert (after.reward_before, after.reward_after) == (None, None)


def test_the_reward_function_gets_the_whole_row(model, table):
    seen = []

    def reward(prompt: str, response: str, row: dict[str, Any]) -> float:
        seen.append(row)
        return float(len(response))

    made = model_of(model, training_of(**FRESH), reward=reward)
    replay_model_of(table, made, "disabled")
    assert {row["answer"] for row in seen} == {"0", "1", "2", "3"}
    assert {"prompt_ids", "reward", "advantage", "rollout_log_probs"} <= seen[0].keys()


def test_the_fresh_reference_differs_from_sequence_weights(model, table):
    made = model_of(model, training_of(**FRESH), reward=twos)
    fresh = replay_model_of(table, made, "disabled").presets["naive"].gradient
    other = replay_model_of(table, model_of(model), "disabled").presets["naive"].gradient
    assert fresh.grad_norm == pytest.approx(other.grad_norm, rel=1e-6)
    assert abs(fresh.cosine_whole) < 1
    assert fresh.cosine_whole != pytest.approx(other.cosine_whole, abs=1e-3)
    assert fresh.norm_ratio != pytest.approx(other.norm_ratio, rel=1e-3)


def test_without_a_reference_only_norm_and_noise_are_reported(model, table):
    made = model_of(model, training_of(reference="none"))
    result = replay_model_of(table, made, "disabled").presets["naive"].gradient
    assert (result.cosine.value, result.cosine_whole, result.norm_ratio) == (None, None, None)
    assert result.squared_bias.value is None
    assert result.grad_norm > 0
    assert result.skew > 0


@pytest.mark.parametrize("given", [FRESH, {"evaluate": 8}])
def test_fresh_samples_need_a_reward_function(model, table, given):
    with pytest.raises(RcdiagError, match="fresh samples need a reward function") as caught:
        replay_model_of(table, model_of(model, training_of(**given)), "disabled")
    assert "--reward FILE.py:FUNCTION" in caught.value.hint


def broken(prompt: str, response: str, row: dict[str, Any]) -> float:
    raise KeyError("expected_answer")


def nothing(prompt: str, response: str, row: dict[str, Any]) -> float:
    return float("nan")


@pytest.mark.parametrize(
    ("reward", "output"),
    [
        (broken, r"the function failed \(KeyError: 'expected_answer'\)"),
        (nothing, "the function returned nan"),
        (lambda prompt, response, row: None, r"the function failed \(TypeError"),
    ],
)
def test_a_reward_function_that_fails_is_an_error(model, table, reward, output):
    made = model_of(model, training_of(**FRESH), reward=reward)
    with pytest.raises(RcdiagError, match=output):
        replay_model_of(table, made, "disabled")


def test_rows_of_several_temperatures_have_no_fresh_samples(model, tmp_path):
    temperatures = [0.9] * (ROWS - 1) + [0.7]
    path = table_for(tmp_path / "t.parquet", model, temperature=temperatures)
    made = model_of(model, training_of(**FRESH), reward=twos)
    with pytest.raises(RcdiagError, match="rows have 2 temperatures") as caught:
        replay_model_of(path, made, "disabled")
    assert "--reference seq_is" in caught.value.hint
    assert (
        replay_model_of(path, model_of(model), "disabled").presets["naive"].gradient.grad_norm > 0
    )


def test_advantages_of_fresh_samples_come_from_their_rewards(model, table):
    """With equal rewards GRPO has zero advantages, and so no reference."""
    made = model_of(model, training_of(**FRESH), reward=lambda prompt, response, row: 1.0)
    result = replay_model_of(table, made, "disabled", update={"advantage": "grpo"})
    assert update_of(advantage="grpo").advantage == result.advantage
    assert result.presets["naive"].gradient.cosine_whole is None
    assert result.presets["naive"].gradient.cosine.value is None
