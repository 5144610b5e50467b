"""The attention of `hf:float32` on CUDA equals transformers' sdpa with repeated keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rcdiag.engines.hf.attention import REPEATED, attention_of
from rcdiag.engines.hf.engine import HfEngine
from rcdiag.engines.hf.model import load_model
from rcdiag.engines.notation import parse_policy
from tests.engine_models import CONFIGS, make_model, reference

pytestmark = pytest.mark.engine

CPU = torch.device("cpu")


def load(model: Path, attention: str):
    spec = parse_policy(f"p=hf:float32,attention={attention}", str(model))
    return load_model(spec, str(model), CPU).eval()


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    """Models: Qwen3 has two queries per key, Gemma a window of 64 and so its own mask."""
    folder = tmp_path_factory.mktemp("models")
    return {kind: make_model(folder / kind, kind) for kind in CONFIGS}


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_it_equals_sdpa_on_a_batch(kind, padding, models):
    """Causal attention with grouped keys, with and without a padding mask."""
    ids = torch.randint(2, 320, (3, 150), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    if padding != "none":
        for row, length in enumerate((150, 97, 1)):
            mask[row] = torch.arange(150) < length
        mask = mask.flip(1) if padding == "left" else mask
    given = {"input_ids": ids, **({} if padding == "none" else {"attention_mask": mask})}
    outputs = []
    for attention in ("sdpa", REPEATED):
        model = load(models[kind], attention)
        assert model.config.get_text_config()._attn_implementation == attention
        with torch.no_grad():
            outputs.append(model(**given).logits[mask.bool()])
    assert outputs[0].std() > 0.1
    torch.testing.assert_close(outputs[1], outputs[0], atol=1e-5, rtol=1e-5)


def test_no_grouped_keys_reach_sdpa_and_no_mask_is_made(models, monkeypatch):
    """Either would prevent CUDA's memory-efficient kernel."""
    seen = []
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def watched(query, key, value, **options):
        seen.append((query.shape[1], key.shape[1], options))
        return sdpa(query, key, value, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    ids = torch.arange(2, 66).reshape(2, 32)
    for attention, keys in (("sdpa", 2), (REPEATED, 4)):
        seen.clear()
        load(models["qwen3"], attention)(input_ids=ids, use_cache=False)
        assert [one[:2] for one in seen] == [(4, keys)] * 2
        for _, _, options in seen:
            assert options["is_causal"] is True
            assert options["attn_mask"] is None
            assert bool(options.get("enable_gqa")) == (attention == "sdpa")


def test_scores_with_it_are_those_of_the_plain_forward(models, table):
    from tests.engines.test_hf import rows_of

    engine = HfEngine(parse_policy(f"p=hf:float32,attention={REPEATED}", str(models["qwen3"])))
    result = engine.score(rows_of(table), lambda tokens: None)
    expected = np.concatenate(reference(models["qwen3"], table)["log_probs"])
    np.testing.assert_allclose(result.log_probs, expected, atol=1e-5)
    assert engine.provenance()["attention"] == REPEATED


def test_gradients_pass_through_it(models):
    """`replay --model` trains in float32 with it."""
    gradients = []
    for attention in ("sdpa", REPEATED):
        model = load(models["qwen3"], attention)
        model(input_ids=torch.arange(2, 66).reshape(2, 32)).logits.square().mean().backward()
        gradients.append(model.model.layers[0].self_attn.k_proj.weight.grad)
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-6, rtol=1e-4)


def test_it_is_the_default_for_float32_products_on_cuda_alone():
    cuda = torch.device("cuda")
    assert attention_of(None, torch.float32, cuda) == REPEATED
    assert attention_of("eager", torch.float32, cuda) == "eager"
    assert attention_of(None, torch.bfloat16, cuda) == "sdpa"
    assert attention_of(None, torch.float32, CPU) == "sdpa"
