import numpy as np
import pytest
import torch

from rcdiag.errors import RcdiagError
from rcdiag.learning import memory_estimate as memory_module
from rcdiag.learning.memory_estimate import TrainingPlan, check_memory, memory_needed
from rcdiag.learning.training_settings import LoraSettings
from tests.learning.helpers import trainee

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("options", ["", ",attention=eager", ",autocast=bfloat16"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_estimate_is_near_the_memory_that_a_forward_keeps(options, checkpointing, parts):
    """On the shipped policy: elements that autograd saves, without weights."""
    folder = "sample_data/policy/step_8"
    one = trainee(folder, f"hf:float32{options}", checkpointing=checkpointing, batch_tokens=1024)
    plan = TrainingPlan(
        spec=one.policy.spec, presets=1, checkpointing=checkpointing, batch_tokens=1024
    )
    batch = next(one._batches(one._rows(parts), np.ones(11, np.bool_)))
    saved = kept_bytes(one, batch) / batch.ids.numel() * 1024
    logits = 5 * 4 * memory_module.scoring_head.LOGITS_AT_ONCE["cpu"]
    estimate = memory_needed(plan, parts).activations - logits
    # With checkpointing the backward recomputes one layer, which the forward does not show.
    low, high = (2.0, 8.0) if checkpointing else (0.8, 2.0)
    assert low * saved < estimate < high * saved


def kept_bytes(one, batch) -> int:
    own = {p.untyped_storage().data_ptr() for p in one.policy.model.parameters()}
    storages: dict[int, int] = {}
    alive = []

    def pack(value):
        storage = value.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
            alive.append(value)
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        one.policy.states(batch)
    return sum(storages.values())


def test_memory_of_weights_gradients_and_optimizer_is_counted(qwen3, parts, shared):
    numbers = sum(p.numel() for p in shared.policy.parameters.values())
    plan = TrainingPlan(spec=shared.policy.spec, presets=3)
    need = memory_needed(plan, parts)
    assert need.weights == 4 * numbers
    assert need.gradients == 4 * numbers * 4
    assert need.optimizer == (8 + 4 + 4 + 4) * numbers
    adapter = trainee(qwen3, lora=LoraSettings(rank=4))
    trained = sum(p.numel() for p in adapter.policy.parameters.values())
    small = TrainingPlan(spec=shared.policy.spec, presets=3, lora=LoraSettings(rank=4))
    assert memory_needed(small, parts).gradients == 4 * trained * 4


def test_too_little_memory_is_an_error_before_loading_that_says_what_fits(
    shared, parts, monkeypatch
):
    plan = TrainingPlan(spec=shared.policy.spec, presets=50)
    monkeypatch.setattr(memory_module, "free_memory", lambda device: 10**11)
    check_memory(plan, parts)
    total = memory_needed(plan, parts).on("cpu")
    monkeypatch.setattr(memory_module, "free_memory", lambda device: total - 1)
    with pytest.raises(RcdiagError, match="training needs about") as caught:
        check_memory(plan, parts)
    assert "micro-batches of 512 tokens" in caught.value.hint
    assert "LoRA" in caught.value.hint
    monkeypatch.setattr(memory_module, "free_memory", lambda device: 1000)
    with pytest.raises(RcdiagError) as caught:
        check_memory(plan, parts)
    assert caught.value.hint == "take a larger machine"


def test_copies_are_kept_on_the_cpu_and_must_fit_there(shared, parts, monkeypatch):
    """Each copy has weights and two moments in float32; gradients are freed by then."""
    numbers = sum(p.numel() for p in shared.policy.parameters.values())
    plan = TrainingPlan(spec=shared.policy.spec, presets=3, copies=100)
    need = memory_needed(plan, parts)
    assert need.copies == 100 * 12 * numbers
    assert need.on("cpu") - need.on("cuda") == need.copies - need.gradients
    room = need.on("cpu")
    monkeypatch.setattr(memory_module, "free_memory", lambda device: room)
    check_memory(plan, parts)
    monkeypatch.setattr(memory_module, "free_memory", lambda device: room - 1)
    with pytest.raises(RcdiagError, match="100 copies on cpu") as caught:
        check_memory(plan, parts)
    assert "one preset at a time" in caught.value.hint
