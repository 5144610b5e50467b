import numpy as np
import pytest
import torch
from msgspec.structs import replace
from transformers import LlamaConfig

from rcdiag.learning.micro_batches import rows_of
from rcdiag.learning.sketch import OneRow, RowsMixed, Taps, sketcher
from rcdiag.learning.training_settings import LoraSettings, SketchSettings
from tests import engine_models as engines
from tests.learning.helpers import gap, gradients_of_rows, random_coefficients, trainee

pytestmark = pytest.mark.engine

SMALL = SketchSettings(probes=4, dims=50)  # parameters share storage
ROOMY = SketchSettings(probes=8, dims=400)  # none do


# An untied head, and a padding token, for which the embedding has no gradient.
BIASED = LlamaConfig(**engines.SIZES, attention_bias=True, mlp_bias=True, pad_token_id=7)


def check_rows(one, parts, settings, tolerance=1e-4):
    """Check that each row's sketch is that of its exact gradient, and the sum that of the whole.

    The whole gradient is the one of a backward pass of its own: of the vectors the third is minus
    the first, and the fourth and fifth are the first but for a factor of each row.
    """
    coefficients, count = random_coefficients(parts, 5), 5
    coefficients[2] = -coefficients[0]
    tokens = [len(row.places) for row in rows_of(parts, one.policy.vocab_size)]
    factors = np.random.default_rng(5).lognormal(0.0, 1.0, (2, len(tokens)))
    factors[1, 1::3] = 0.0  # rejected rows
    coefficients[3:] = np.repeat(factors, tokens, axis=1) * coefficients[0]
    result = one.gradients(parts, coefficients, sketch=settings)
    assert result.backwards == 2
    for gradient, expected in zip(
        result.whole, one.gradients(parts, coefficients).whole, strict=True
    ):
        assert gradient.values.keys() == expected.values.keys()
        assert gap(gradient, expected) < tolerance
    probes = one.probes(settings)
    exact = gradients_of_rows(one, parts, coefficients)
    assert result.sketches.shape == (count, len(exact), settings.dims)
    for k, whole in enumerate(result.whole):
        expected = np.array([probes.of(row[k].values) for row in exact])
        scale = np.abs(expected).max(axis=1, keepdims=True)
        scale[scale == 0.0] = 1.0  # of a rejected row all is 0
        np.testing.assert_allclose(result.sketches[k] / scale, expected / scale, atol=tolerance)
        total = probes.of(whole.values)
        missing = np.abs(result.sketches[k].sum(axis=0) - total).max()
        assert missing < tolerance * np.abs(total).max()


@pytest.mark.parametrize("settings", [SMALL, ROOMY])
def test_rows_have_the_sketch_of_their_exact_gradient(settings, shared, parts):
    check_rows(shared, parts, settings)


@pytest.mark.parametrize(("kind", "config"), [("biased", BIASED), ("phi", None)])
def test_sketches_with_biases_and_a_padding_token(kind, config, made, parts):
    one = trainee(made(kind, config))
    assert any((part.response_ids.values == 7).any() for part in parts)
    for parameter in one.policy.parameters.values():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1.0, 0.3, generator=torch.Generator().manual_seed(0))
    check_rows(one, parts, ROOMY)


def test_sketches_with_checkpointing(qwen3, parts):
    check_rows(trainee(qwen3, checkpointing=True), parts, SMALL)


def test_sketches_with_adapters(qwen3, parts):
    one = trainee(qwen3, lora=LoraSettings(rank=4))
    for name, parameter in one.policy.parameters.items():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05, generator=torch.Generator().manual_seed(0))
    check_rows(one, parts, ROOMY)


def test_sketches_under_autocast_agree_to_rounding(qwen3, parts):
    check_rows(trainee(qwen3, "hf:float32,autocast=bfloat16"), parts, ROOMY, tolerance=2e-2)


def test_a_row_does_not_depend_on_its_neighbours(qwen3, parts):
    coefficients = random_coefficients(parts, 1)
    together, alone = (
        trainee(qwen3, batch_tokens=tokens).gradients(parts, coefficients, sketch=SMALL).sketches
        for tokens in (1_000_000, 1)
    )
    scale = np.abs(alone).max(axis=2, keepdims=True)
    np.testing.assert_allclose(together / scale, alone / scale, atol=1e-5)


@pytest.mark.parametrize(("probes", "dims"), [(16, 4096), (16, 64)])
def test_inner_products_are_unbiased_with_the_stated_spread(probes, dims, shared, parts):
    """Over 30 draws of the signs, against the exact inner products of the rows."""
    coefficients = random_coefficients(parts, 1)
    exact = [row[0] for row in gradients_of_rows(shared, parts, coefficients)]
    inner = np.array([[one.dot(other) for other in exact] for one in exact])
    draws = []
    for seed in range(30):
        signs = shared.probes(SketchSettings(probes=probes, dims=dims, seed=seed))
        rows = np.array([signs.of(row.values) for row in exact])
        draws.append(rows @ rows.T)
    spread = np.std(draws, axis=0, ddof=1)
    assert (np.abs(np.mean(draws, axis=0) - inner) < 5 * spread / 30**0.5).all()
    sizes = np.sqrt(np.outer(np.diag(inner), np.diag(inner)))
    if dims == 4096:
        assert (spread < 1.5 * np.sqrt(8 / probes) * sizes).all()


@pytest.mark.parametrize("kind", ["gemma2", "gpt2", "mixtral"])
def test_sketches_of_layers_without_hooks(kind, made, parts):
    """Gemma's embedding multiplies what it looks up, GPT-2's products are turned round, and
    Mixtral's experts are one parameter of three axes."""
    one = trainee(made(kind))
    assert isinstance(sketcher(one.policy.body, one.probes(SMALL)), OneRow)
    check_rows(one, parts, SMALL)


def test_sketches_if_a_layer_mixes_the_rows(qwen3, parts, monkeypatch):
    """This is detected in the backward pass; rows are then processed one by one."""
    monkeypatch.setattr(Taps, "_add", mixed)
    check_rows(trainee(qwen3), parts, ROOMY)


def mixed(*_: object) -> None:
    raise RowsMixed("rows are mixed")


def test_parameters_of_equal_shape_have_different_signs(shared):
    first, second = (
        shared.policy.parameters[f"model.layers.{n}.mlp.up_proj.weight"] for n in (0, 1)
    )
    signs = shared.probes(ROOMY).signs(first)[0]
    assert not torch.equal(signs, shared.probes(ROOMY).signs(second)[0])
    assert not torch.equal(signs, shared.probes(replace(ROOMY, seed=1)).signs(first)[0])
    assert torch.equal(signs, shared.probes(ROOMY).signs(first)[0])


def test_more_probes_than_numbers_are_refused():
    with pytest.raises(ValueError, match="probes 9"):
        SketchSettings(probes=9, dims=8)
