"""Errors of a replay with a model, before anything is loaded if possible."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rcdiag.errors import RcdiagError
from rcdiag.learning.memory_estimate import TrainingPlan, memory_needed
from rcdiag.learning.trainee import Trainee
from tests.engine_models import VOCABULARY
from tests.usecases.replay.conftest import table_for
from tests.usecases.replay.with_model import loaded, model_of, replay_model_of, training_of

pytestmark = pytest.mark.engine


@pytest.fixture
def no_loading(monkeypatch):
    def load(*_: object, **__: object) -> None:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr(Trainee, "load", load)


def with_column(table: Path, path: Path, name: str, values: list) -> Path:
    result = pq.read_table(table)
    index = result.schema.get_field_index(name)
    column = pa.array(values, result.schema.field(name).type)
    pq.write_table(result.set_column(index, name, column), path)
    return path


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize("column", ["prompt_ids", "response_ids"])
def test_a_token_beyond_the_vocabulary_is_refused_by_row_and_column(model, table, tmp_path, column):
    values = pq.read_table(table)[column].to_pylist()
    values[6][-1] = VOCABULARY
    path = with_column(table, tmp_path / "t.parquet", column, values)
    with pytest.raises(RcdiagError) as caught:
        replay_model_of(path, model_of(model))
    assert f"{path}, row 6: column `{column}` holds token id {VOCABULARY}" in caught.value.message
    assert "(320 tokens)" in caught.value.message
    assert caught.value.hint == "is it the model that sampled these rows?"


@pytest.mark.usefixtures("no_loading")
def test_the_file_of_the_row_is_named(model, table, tmp_path):
    values = pq.read_table(table)["response_ids"].to_pylist()
    values[6][-1] = VOCABULARY
    folder = tmp_path / "t"
    folder.mkdir()
    whole = pq.read_table(with_column(table, tmp_path / "t.parquet", "response_ids", values))
    pq.write_table(whole.slice(0, 4), folder / "a.parquet")
    pq.write_table(whole.slice(4), folder / "b.parquet")
    with pytest.raises(RcdiagError) as caught:
        replay_model_of(folder, model_of(model))
    assert caught.value.message.startswith(f"{folder / 'b.parquet'}, row 2: column `response_ids`")


@pytest.mark.usefixtures("no_loading")
def test_a_row_longer_than_the_model_can_read_is_refused(model, table, tmp_path):
    short = shutil.copytree(model, tmp_path / "short")
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 3}))
    with pytest.raises(RcdiagError, match=r"context of .* is 3"):
        replay_model_of(table, model_of(short))


@pytest.mark.usefixtures("no_loading")
def test_the_last_token_of_the_vocabulary_is_accepted(model, table, tmp_path):
    values = pq.read_table(table)["prompt_ids"].to_pylist()
    values[6][-1] = VOCABULARY - 1
    path = with_column(table, tmp_path / "t.parquet", "prompt_ids", values)
    with pytest.raises(AssertionError, match="the model is loaded"):
        replay_model_of(path, model_of(model))


@pytest.mark.usefixtures("no_loading")
def test_a_table_without_prompts_is_refused(model, table, tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pq.read_table(table).drop_columns(["prompt_ids"]), path)
    with pytest.raises(RcdiagError, match="prompt_ids"):
        replay_model_of(path, model_of(model))


@pytest.mark.usefixtures("no_loading")
def test_too_little_memory_is_refused_with_what_would_fit(model, table, monkeypatch):
    made = model_of(model)
    whole = TrainingPlan(spec=made.spec, presets=6, optimizer="sgd")
    parts = loaded(table)[0]
    need = memory_needed(whole, parts).on("cpu")
    monkeypatch.setattr("rcdiag.learning.memory_estimate.free_memory", lambda device: need - 1)
    with pytest.raises(RcdiagError, match="training needs about") as caught:
        replay_model_of(table, made)
    assert caught.value.hint.startswith("these would fit: micro-batches of")
    assert "LoRA of rank 16" in caught.value.hint


@pytest.mark.usefixtures("no_loading")
def test_if_nothing_fits_a_larger_machine_is_suggested(model, table, monkeypatch):
    monkeypatch.setattr("rcdiag.learning.memory_estimate.free_memory", lambda device: 1000)
    with pytest.raises(RcdiagError, match="0 GB are free") as caught:
        replay_model_of(table, model_of(model))
    assert caught.value.hint == "take a larger machine"


def test_memory_that_just_fits_is_enough(model, table, monkeypatch):
    made = model_of(model)
    plan = TrainingPlan(spec=made.spec, presets=6, optimizer="sgd")
    need = memory_needed(plan, loaded(table)[0]).on("cpu")
    monkeypatch.setattr("rcdiag.learning.memory_estimate.free_memory", lambda device: need)
    assert replay_model_of(table, made).presets["naive"].gradient.grad_norm > 0


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize("given", [{"reference": "fresh"}, {"evaluate": 8}])
def test_a_missing_reward_function_is_an_error_before_the_model_is_loaded(model, table, given):
    with pytest.raises(RcdiagError, match="fresh samples need a reward function"):
        replay_model_of(table, model_of(model, training_of(**given)))


@pytest.mark.usefixtures("no_loading")
def test_an_existing_save_folder_is_an_error_before_the_model_is_loaded(model, table, tmp_path):
    (tmp_path / "saved").mkdir()
    made = model_of(model, save=tmp_path / "saved")
    with pytest.raises(RcdiagError, match="already there"):
        replay_model_of(table, made, "disabled")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interrupted_save_leaves_nothing(model, table, tmp_path, monkeypatch, stop):
    """The interrupt comes after writing the weights, before the tokenizer."""

    def copy(*_: object) -> None:
        (partial,) = tmp_path.iterdir()
        assert any(item.suffix == ".safetensors" for item in partial.iterdir())
        raise stop

    monkeypatch.setattr("rcdiag.learning.policy.shutil.copyfile", copy)
    with pytest.raises((KeyboardInterrupt, RcdiagError)):
        replay_model_of(table, model_of(model, save=tmp_path / "saved"), "disabled")
    assert list(tmp_path.iterdir()) == []


def test_a_preset_that_rejects_everything_has_no_gradient(model, table):
    result = replay_model_of(table, model_of(model), "decoupled_geo_rs", "disabled").presets
    gone = result["decoupled_geo_rs"]
    assert (gone.loss, gone.kept_tokens, gone.after_step) == (None, 0, None)
    assert gone.undefined == "no token is kept, so there is nothing to average"
    assert gone.gradient is None or gone.gradient.grad_norm == 0.0
    assert not any("--model" in item for item in gone.health.not_judged)
    assert result["disabled"].after_step.kl_old_new.value > 0


def test_a_nan_rollout_log_prob_affects_only_presets_that_use_it(model, tmp_path):
    """Without correction the loss does not use the rollout's log-probs."""
    path = table_for(tmp_path / "a.parquet", model)
    values = pq.read_table(path)["rollout_log_probs"].to_pylist()
    values[0][0] = np.nan
    path = with_column(path, tmp_path / "t.parquet", "rollout_log_probs", values)
    result = replay_model_of(path, model_of(model), "decoupled_token_is")
    assert result.presets["naive"].gradient.grad_norm > 0
    assert result.presets["naive"].after_step.step_norm > 0
    spoiled = result.presets["decoupled_token_is"]
    assert (spoiled.gradient, spoiled.after_step) == (None, None)
    assert [item.slug for item in result.findings].count("non-finite-log-probs") == 1
