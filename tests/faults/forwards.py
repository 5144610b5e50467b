"""Faults of the forward pass: model function and precision."""

from __future__ import annotations

from dataclasses import replace

import torch

from tests.faults import policies
from tests.faults.fault import SAMPLING, SCORING, Effect, either, fault, log_uniform
from tests.faults.network import EMBEDDING, Network
from tests.faults.recipe import Random, Recipe, engine


def side_of(random: Random) -> str:
    return either(random, "sampler", "trainer")


@fault("rope-theta", SCORING)
def rope_theta(recipe: Recipe, random: Random) -> Effect:
    side, how = side_of(random), either(random, "theta", "scale")
    factor = float(log_uniform(random, 1.2, 3) ** random.choice([-1, 1]))
    if how == "theta":
        recipe.change_side(side, lambda n: n.with_options(theta=10_000.0 * factor))
    else:
        factor = 1 + 0.15 * (factor - 1)
        recipe.change_side(side, lambda n: n.with_options(position_scale=factor))
    return Effect(note=f"{side}: {how} times {factor:.2f}", side=side, strength=factor)


@fault("norm-eps", SCORING)
def norm_eps(recipe: Recipe, random: Random) -> Effect:
    side, eps = side_of(random), log_uniform(random, 1e-3, 0.3)
    recipe.change_side(side, lambda n: n.with_options(eps=eps))
    return Effect(note=f"{side}: eps {eps:.1e}", side=side, strength=eps)


@fault("sliding-window", SCORING)
def sliding_window(recipe: Recipe, random: Random) -> Effect:
    side, window = side_of(random), int(random.integers(48, 128))
    recipe.change_side(side, lambda n: n.with_options(window=window))
    return Effect(note=f"{side}: window {window}", side=side, strength=window)


@fault("logit-softcap", SCORING)
def logit_softcap(recipe: Recipe, random: Random) -> Effect:
    side, cap = side_of(random), float(random.uniform(12, 35))
    recipe.change_side(side, lambda n: n.with_options(softcap=cap))
    return Effect(note=f"{side}: cap {cap:.0f}", side=side, strength=cap)


@fault("vocabulary-padding", SCORING)
def vocabulary_padding(recipe: Recipe, random: Random) -> Effect:
    rows, scale = int(2 ** random.integers(5, 11)), float(random.uniform(0.3, 1.5))
    source = torch.Generator().manual_seed(int(random.integers(2**31)))

    def padded(network: Network) -> Network:
        std = float(network.tensors[EMBEDDING].std())
        drawn = torch.randn(rows, network.tensors[EMBEDDING].shape[1], generator=source)
        return replace(network, padding_rows=drawn * std * scale)

    recipe.change_side("trainer", padded)
    return Effect(note=f"{rows} rows of {scale:.1f} times the size", side="trainer", strength=rows)


@fault("bf16-logits", SCORING)
def bf16_logits(recipe: Recipe, random: Random) -> Effect:
    side = side_of(random)
    recipe.sample_with(lambda step: policies.trainer(step))
    if side == "sampler":
        recipe.sample_with(lambda step: policies.trainer(step).with_options(bfloat16_logits=True))
    else:
        recipe.change_side("trainer", lambda n: n.with_options(bfloat16_logits=True))
    recipe.facts["sampler_dtype"] = "float32"
    return Effect(note=f"{side}: logits in bfloat16", side=side, strength="bfloat16")


def quantised(recipe: Recipe, random: Random, how: str, change: policies.Change) -> None:
    """Sample with all matrices except the embedding changed; sometimes the metadata say so."""
    recipe.sample_with(
        lambda step: engine(step).with_tensors(
            lambda n, v: change(v) if policies.is_matrix(n, v) else v
        )
    )
    if random.random() < 0.3:
        recipe.facts["quantization"] = how


@fault("int8-weights", SAMPLING)
def int8_weights(recipe: Recipe, random: Random) -> Effect:
    how = either(random, "tensor", "channel")
    quantised(
        recipe,
        random,
        "int8",
        lambda v: policies.integers(v, 8, None if how == "tensor" else v.shape[1]),
    )
    return Effect(note=f"int8, a scale per {how}", side="sampler", strength=how)


@fault("int4-weights", SAMPLING)
def int4_weights(recipe: Recipe, random: Random) -> Effect:
    group = int(random.choice([16, 32, 64]))
    quantised(recipe, random, "int4", lambda v: policies.integers(v, 4, group))
    return Effect(note=f"int4 in groups of {group}", side="sampler", strength=group)


@fault("fp8-weights", SAMPLING)
def fp8_weights(recipe: Recipe, random: Random) -> Effect:
    per_channel, inputs = bool(random.integers(2)), bool(random.integers(2))
    quantised(recipe, random, "fp8", lambda v: policies.float8(v, per_channel))
    if inputs:
        made = {id(n): n.with_options(float8_inputs=True) for n in recipe.sampler}
        recipe.sampler = [made[id(n)] for n in recipe.sampler]
    note = f"float8, per channel: {per_channel}, inputs too: {inputs}"
    return Effect(note=note, side="sampler", strength=note)


@fault("fp8-kv-cache", SAMPLING)
def fp8_kv_cache(recipe: Recipe, random: Random) -> Effect:
    scale = log_uniform(random, 0.01, 3)
    recipe.sample_with(lambda step: engine(step).with_options(float8_cache=scale))
    if random.random() < 0.3:
        recipe.facts["kv_cache_dtype"] = "fp8"
    return Effect(
        note=f"keys and values in float8, scale {scale:.2f}", side="sampler", strength=scale
    )


@fault("dropout-in-trainer", SCORING)
def dropout_in_trainer(recipe: Recipe, random: Random) -> Effect:
    share = log_uniform(random, 0.005, 0.1)
    recipe.change_side("trainer", lambda n: n.with_options(dropout=share))
    return Effect(note=f"dropout {share:.3f}", side="trainer", strength=share)


@fault("batch-noise", SAMPLING)
def batch_noise(recipe: Recipe, random: Random) -> Effect:
    block, every = int(random.choice([8, 16, 32])), int(random.integers(2, 5))
    noisy = {id(n): n.with_options(coarse=True) for n in recipe.sampler}
    recipe.sampler = [
        noisy[id(n)] if row // block % every == 0 else n for row, n in enumerate(recipe.sampler)
    ]
    recipe.honest_sampler = False
    return Effect(note=f"every {every}th block of {block} rows", side="sampler", strength=block)


@fault("moe-routing", SAMPLING, weight=1.5)
def moe_routing(recipe: Recipe, random: Random) -> Effect:
    share, loss = log_uniform(random, 0.01, 0.1), float(random.uniform(0.1, 0.4))
    tail = float(random.uniform(1.5, 3))
    options = {"routing": (share, loss), "routing_tail": tail}
    recipe.sample_with(lambda step: engine(step).with_options(**options))
    return Effect(note=f"{share:.1%} of the routes differ", side="sampler", strength=share)
