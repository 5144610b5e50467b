"""Quantised checkpoints are dequantised at loading, and the metadata say so."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rcdiag.engines.hf import model as model_module
from rcdiag.engines.hf.engine import HfEngine
from rcdiag.engines.notation import parse_policy
from rcdiag.errors import RcdiagError
from tests.engine_models import reference
from tests.engines.test_hf import rows_of

pytestmark = pytest.mark.engine
BLOCK = 32
LARGEST = torch.finfo(torch.float8_e4m3fn).max


def fold(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantise in blocks of 32 x 32; returns float8 values, scales, and values x scales."""
    rows, columns = weight.shape
    blocks = weight.reshape(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
    scale = blocks.abs().amax(dim=(1, 3)) / LARGEST
    wide = scale[:, None, :, None]
    quantised = (blocks / wide).to(torch.float8_e4m3fn)
    back = (quantised.float() * wide).reshape(rows, columns)
    return quantised.reshape(rows, columns), scale, back


@pytest.fixture(scope="module")
def checkpoints(qwen3, tmp_path_factory) -> tuple[Path, Path]:
    """The tiny model in float8, in the format of DeepSeek and Qwen, and its dequantised values."""
    root = tmp_path_factory.mktemp("float8")
    weights = load_file(qwen3 / "model.safetensors")
    quantised, wide = dict(weights), dict(weights)
    for name in [name for name in weights if name.endswith("proj.weight")]:
        quantised[name], quantised[f"{name}_scale_inv"], wide[name] = fold(weights[name])
    config = json.loads((qwen3 / "config.json").read_text())
    settings = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
    }
    for name, tensors, more in (
        ("fp8", quantised, {"quantization_config": settings}),
        ("wide", wide, {}),
    ):
        (root / name).mkdir()
        save_file(tensors, root / name / "model.safetensors", metadata={"format": "pt"})
        (root / name / "config.json").write_text(json.dumps({**config, **more}))
    return root / "fp8", root / "wide"


def test_scores_are_those_of_the_values_times_their_scales(checkpoints, table, expected):
    fp8, wide = checkpoints
    engine = HfEngine(parse_policy("p=hf:float32", str(fp8)))
    scores = engine.score(rows_of(table), lambda tokens: None).log_probs
    by_hand = np.concatenate(reference(wide, table)["log_probs"])
    np.testing.assert_allclose(scores, by_hand, atol=1e-5)
    assert np.abs(scores - np.concatenate(expected["log_probs"])).max() > 0.1, "not the original"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_metadata_say_that_weights_were_quantised(dtype, checkpoints):
    fp8, wide = checkpoints
    engine = HfEngine(parse_policy(f"p=hf:{dtype}", str(fp8)))
    assert engine.provenance()["quantization"] == f"fp8, dequantised to {dtype}"
    weights = {weight.dtype for weight in engine.model.parameters()}
    assert weights == {getattr(torch, dtype)}
    assert "quantization" not in HfEngine(parse_policy("p=hf:float32", str(wide))).provenance()


def test_float8_products_are_not_run_as_another_dtype(checkpoints, monkeypatch):
    """On a GPU with float8 products transformers keeps float8 weights by default."""
    fp8, _ = checkpoints
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: (9, 0))
    kept = AutoModelForCausalLM.from_pretrained(fp8, device_map={"": "cpu"})
    assert torch.float8_e4m3fn in {weight.dtype for weight in kept.parameters()}
    load = functools.partial(
        model_module.load_model, parse_policy("p=hf:float32", str(fp8)), str(fp8)
    )
    model = load(torch.device("cpu"))
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    monkeypatch.setattr(model_module, "_dequantise", lambda config: None)
    with pytest.raises(RcdiagError, match="float8_e4m3fn, not as float32"):
        load(torch.device("cpu"))
