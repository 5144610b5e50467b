"""One model over several GPUs: the plan, and the forward pass of the split model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import accelerate
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3Config

from rcdiag.engines import BACKENDS
from rcdiag.engines.hf import model as model_module
from rcdiag.engines.hf.engine import HfEngine
from rcdiag.engines.hf.layers import device_map, layout, shares, weight_sizes
from rcdiag.engines.notation import parse_policy
from rcdiag.errors import RcdiagError
from tests.engine_models import SIZES, VOCABULARY
from tests.engines.test_hf import rows_of

pytestmark = pytest.mark.engine
LAYERS = 7


def folder_of(tmp_path: Path, **sizes) -> Path:
    torch.manual_seed(0)
    config = Qwen3Config(**{**SIZES, "num_hidden_layers": LAYERS, **sizes})
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(scope="module")
def deep(tmp_path_factory) -> Path:
    return folder_of(tmp_path_factory.mktemp("models"), tie_word_embeddings=False)


def policy(model: Path, gpus: int, dtype: str = "float32"):
    return parse_policy(f"p=hf:{dtype},gpus={gpus}", str(model))


@pytest.mark.parametrize(("dtype", "each"), [("float32", 4), ("bfloat16", 2)])
@pytest.mark.parametrize("gpus", [2, 3, 4, LAYERS])
def test_every_layer_is_on_one_gpu_and_all_weights_are_counted(gpus, dtype, each, deep):
    held = shares(policy(deep, gpus, dtype))
    assert [layer for share in held for layer in share.layers] == list(range(LAYERS))
    weights = load_file(deep / "model.safetensors").values()
    assert sum(share.weights for share in held) == each * sum(value.numel() for value in weights)
    # No share differs from an equal one by more than a layer.
    layer = weight_sizes(policy(deep, gpus, dtype)).layers[0]
    equal = sum(share.weights for share in held) / gpus
    assert max(abs(share.weights - equal) for share in held) <= layer


def test_the_plan_equals_one_computed_by_hand(deep):
    """Embedding and head: 320 x 64 values each; the last norm 64."""
    sizes = weight_sizes(policy(deep, 2, "bfloat16"))
    attention = 2 * 64 * 128 + 2 * 64 * 64 + 2 * 32  # q and o; k and v; norms of q and k
    layer = 2 * (attention + 3 * 64 * 128 + 2 * 64)
    assert (sizes.before, sizes.after) == (2 * 64 * VOCABULARY, 2 * 64 * (VOCABULARY + 1))
    assert sizes.layers == [layer] * LAYERS
    # Half is 193,216 values; 3 layers and the embedding are 168,512, and with a fourth 217,856.
    assert [one.layers for one in shares(policy(deep, 2))] == [range(4), range(4, 7)]


def test_a_tied_head_is_where_the_embedding_is(tmp_path):
    folder = folder_of(tmp_path, tie_word_embeddings=True)
    assert weight_sizes(policy(folder, 2, "bfloat16")).after == 2 * 64
    model = AutoModelForCausalLM.from_pretrained(folder)
    placed = device_map(model, [range(3), range(3, 7)], ["first", "last"])
    assert placed["lm_head"] == placed["model.embed_tokens"] == "first"
    assert placed["model.norm"] == "last"


def test_vision_and_multi_token_layers_are_not_decoder_layers(tmp_path, deep):
    """A vision tower has its own layers; layers beyond the count predict further tokens."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text((deep / "config.json").read_text())
    weights = load_file(deep / "model.safetensors")
    tower = {f"model.visual.blocks.{n}.weight": torch.zeros(8, 8) for n in range(LAYERS)}
    further = {f"model.layers.{LAYERS}.weight": torch.zeros(8, 8)}
    save_file({**weights, **tower, **further}, folder / "model.safetensors")
    with_them, without = (weight_sizes(policy(one, 2)) for one in (folder, deep))
    assert (with_them.layers, with_them.after) == (without.layers, without.after)
    assert with_them.before == without.before + LAYERS * 64 * 4


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("gpus=0", "gpus=0", "two"),
        ("gpus=8", "7 decoder layers", "7 at most"),
        ("gpus=2,device=cpu", "gpus=2,device=cpu", "two"),
    ],
)
def test_numbers_that_a_model_cannot_have_are_refused_before_it_is_loaded(text, words, hint, deep):
    with pytest.raises(RcdiagError, match=words) as caught:
        BACKENDS["hf"].check(parse_policy(f"p=hf:float32,{text}", str(deep)))
    assert hint in caught.value.hint


def test_weights_without_a_header_are_refused(tmp_path, deep):
    (tmp_path / "config.json").write_text((deep / "config.json").read_text())
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(RcdiagError, match="there are none"):
        layout(policy(tmp_path, 2))
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(RcdiagError, match="no header"):
        layout(policy(tmp_path, 2))
    header = json.dumps({"lm_head.weight": {"shape": [4, 4]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(RcdiagError, match="no 7 numbered layers"):
        layout(policy(tmp_path, 2))


def test_fewer_gpus_than_asked_for_are_refused(deep, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RcdiagError, match="gpus=2, and torch sees 1"):
        HfEngine(policy(deep, 2))


def test_a_dry_run_shows_the_plan(deep, table, rcdiag):
    pair = ("--policy", "old=hf:float32,gpus=2", "--policy", "rollout=hf:bfloat16")
    run = rcdiag("score", table, "--model", deep, *pair, "--dry-run")
    assert run.code == 0, run.err
    assert "GPU 0: layers 0 to 3, 0.8 MiB; GPU 1: layers 4 to 6, 0.6 MiB" in run.err
    assert run.err.count("weights by GPU") == 1


@pytest.mark.parametrize("options", ["float32", "bfloat16,lm_head=float32", "float32,top_k=2"])
def test_a_spread_model_scores_like_a_whole_one(options, deep, table, monkeypatch):
    """Both devices are this CPU, so accelerate's hooks are attached by hand."""
    rows = rows_of(table)
    whole = HfEngine(parse_policy(f"p=hf:{options},device=cpu", str(deep)))
    monkeypatch.setattr(model_module, "gpu_devices", lambda spec, count: [whole.device] * count)
    spread = HfEngine(parse_policy(f"p=hf:{options},gpus=2", str(deep)))
    placed = device_map(spread.model, [range(4), range(4, 7)], [whole.device] * 2)
    accelerate.dispatch_model(spread.model, placed, force_hooks=True)
    assert all(hasattr(layer, "_hf_hook") for layer in spread.body.layers)
    scores = [engine.score(rows, lambda tokens: None).log_probs for engine in (whole, spread)]
    assert np.array_equal(*scores)


@pytest.mark.slow
def test_every_product_finds_its_tensors_on_one_device():
    """On two fake torch devices: the forward pass, and the head on either device."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.engines.two_devices"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
