"""A model on two fake devices: `python -m tests.engines.two_devices`.

Torch's fake tensors have a device and a shape but no values. An operation is refused if its
tensors lie on two devices, as on GPUs. A process of its own: the backend is registered for good.
"""

from __future__ import annotations

import accelerate
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)
from transformers import AutoModelForCausalLM, Qwen3Config

from rcdiag.engines.hf.layers import device_map
from rcdiag.engines.hf.model import body_and_head
from tests.engine_models import SIZES

FIRST, LAST = (torch.device("privateuseone", index) for index in range(2))


class Backend(_DummyBackendModule):
    """The interface that torch needs of a device type, with one method for autocast."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float32]


def spread_model(*, tied: bool, hooks: bool = True) -> torch.nn.Module:
    """Return a model of four layers, two on each device, with accelerate's hooks."""
    sizes = {**SIZES, "num_hidden_layers": 4}
    model = AutoModelForCausalLM.from_config(Qwen3Config(**sizes, tie_word_embeddings=tied))
    devices = device_map(model, [range(2), range(2, 4)], [FIRST, LAST])
    moved: dict[int, tuple[torch.Tensor, torch.nn.Parameter]] = {}
    for name, device in devices.items():
        for module in model.get_submodule(name).modules():
            for key, weight in module._parameters.items():
                if weight is not None:  # a tied weight is moved once
                    new = torch.nn.Parameter(weight.detach().to(device), requires_grad=False)
                    module._parameters[key] = moved.setdefault(id(weight), (weight, new))[1]
            for key, buffer in module._buffers.items():
                module._buffers[key] = buffer.to(device)
    # accelerate recreates parameters when it moves them, which fake tensors do not support.
    accelerate.hooks.set_module_tensor_to_device = lambda *args, **options: None
    if hooks:
        accelerate.dispatch_model(model, devices)
    return model.eval()


def score(model: torch.nn.Module, head_dtype: str | None) -> tuple[torch.device, torch.device]:
    """Run body and head as the engine does; return the devices of hidden states and logits."""
    body, to_logits = body_and_head(model, head_dtype)
    ids = torch.zeros(2, 8, dtype=torch.long, device=FIRST)
    hidden = body(input_ids=ids, use_cache=False).last_hidden_state
    places = torch.arange(2, device=hidden.device)
    return hidden.device, to_logits(hidden[places, places]).device


def main() -> None:
    _setup_privateuseone_for_python_backend(backend_module=Backend())
    with FakeTensorMode(), torch.no_grad():
        for head_dtype in (None, "float32"):
            assert score(spread_model(tied=False), head_dtype) == (LAST, LAST)
            assert score(spread_model(tied=True), head_dtype) == (LAST, FIRST)
        with pytest.raises(RuntimeError, match="devices"):
            score(spread_model(tied=False, hooks=False), None)


if __name__ == "__main__":
    main()
