import json

import numpy as np
import pytest

from rcdiag.errors import RcdiagError
from rcdiag.learning.training_settings import LoraSettings
from tests.learning.helpers import take, trainee

pytestmark = pytest.mark.engine


def test_a_saved_model_scores_the_same_and_the_given_one_is_untouched(qwen3, parts, tmp_path):
    before = {path.name: path.read_bytes() for path in qwen3.iterdir()}
    one = trainee(qwen3)
    take(one, parts, (0, 2))
    one.save(tmp_path / "new" / "step")
    again = trainee(tmp_path / "new" / "step")
    np.testing.assert_array_equal(again.log_probs(parts).log_probs, one.log_probs(parts).log_probs)
    assert {path.name: path.read_bytes() for path in qwen3.iterdir()} == before
    assert {path.name for path in (tmp_path / "new" / "step").iterdir()} == set(before)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["step"]


def test_a_saved_adapter_scores_the_same_and_can_be_trained_on(qwen3, parts, tmp_path):
    one = trainee(qwen3, lora=LoraSettings(rank=4))
    take(one, parts, (0, 2))
    one.save(tmp_path / "lora")
    again = trainee(qwen3, f"hf:float32,adapter={tmp_path / 'lora'}")
    np.testing.assert_allclose(
        again.log_probs(parts).log_probs, one.log_probs(parts).log_probs, atol=1e-6
    )
    assert again.policy.parameters.keys() == one.policy.parameters.keys()
    config = json.loads((tmp_path / "lora" / "adapter_config.json").read_text())
    assert config["r"] == 4


def test_nothing_is_overwritten(shared, qwen3, tmp_path):
    with pytest.raises(RcdiagError, match="already there"):
        shared.save(qwen3)


def test_an_interrupted_save_leaves_nothing(shared, tmp_path, monkeypatch):
    def stop(folder):
        (folder / "half").write_text("written")
        raise KeyboardInterrupt

    monkeypatch.setattr(shared.policy.model, "save_pretrained", stop)
    with pytest.raises(KeyboardInterrupt):
        shared.save(tmp_path / "step")
    assert list(tmp_path.iterdir()) == []
