"""Faults of coarse precision: the sampler records what it sampled from, but rounded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tests.faults.other.models import NOT_WEIGHTS, Model
from tests.faults.other.registry import kind
from tests.faults.other.sampling import score
from tests.faults.other.tables import SILENT, Fault, Plan

QUANTISED = ("quantised-weights", "int8-weights", "int4-weights", "fp8-weights", "fp8-kv-cache")
OTHER = ("forwards-differ", "weights-differ")


def mantissa(x: np.ndarray, bits: int, smallest: float = 0.0) -> np.ndarray:
    """Round to `bits` explicit mantissa bits, and below `smallest` to multiples of its ulp."""
    _, exponent = np.frexp(np.where(x == 0, 1.0, x))
    exponent = np.maximum(exponent, np.log2(smallest) + 1 if smallest else -1000)
    ulp = np.exp2(exponent - 1.0 - bits)
    return (np.round(x / ulp) * ulp).astype(np.float32)


def bfloat16(x: np.ndarray) -> np.ndarray:
    return mantissa(x, 7)


def float8(x: np.ndarray) -> np.ndarray:
    """Round to e4m3 with one scale for the tensor."""
    scale = np.abs(x).max() / 448.0
    return mantissa((x / scale).astype(np.float32), 3, 2.0**-6) * np.float32(scale)


def integers(x: np.ndarray, bits: int, block: int) -> np.ndarray:
    """Round to symmetric integers, with one scale for `block` numbers of a row."""
    parts = x.reshape(-1, block)
    scale = np.abs(parts).max(1, keepdims=True) / (2 ** (bits - 1) - 1)
    return (np.round(parts / scale) * scale).reshape(x.shape).astype(np.float32)


def quantised(model: Model, rounding) -> Model:
    kept = (*NOT_WEIGHTS, "bias", "norm", "embedding")
    return model.with_weights(
        **{name: rounding(value) for name, value in model.weights.items() if name not in kept}
    )


def weights_fault(plan: Plan, slug: str, rounding) -> Fault:
    plan.sampler_models = [quantised(plan.model, rounding)]
    size = plan.rms(plan.sampler_models[0])
    noise = ("engine-noise", "healthy", "bf16-logits", "batch-noise") if size < 0.06 else ()
    # A fixed change of weights looks like an older version of them.
    also = (*QUANTISED, *OTHER, "stale-weights", *noise)
    return Fault(slug, "honest", also, size=size)


@kind("int8-weights")
def int8(plan: Plan) -> Fault:
    return weights_fault(plan, "int8-weights", lambda x: integers(x, 8, x.shape[-1]))


@kind("int4-weights")
def int4(plan: Plan) -> Fault:
    return weights_fault(plan, "int4-weights", lambda x: integers(x, 4, 16))


@kind("fp8-weights")
def fp8(plan: Plan) -> Fault:
    fault = weights_fault(plan, "fp8-weights", float8)
    if plan.rng.random() < 0.5:
        plan.metadata = {
            "format_version": 1,
            "policies": {
                "rollout": {
                    "name": "rollout",
                    "backend": "vllm",
                    "dtype": "bfloat16",
                    "engine_options": {"quantization": "fp8"},
                }
            },
        }
    return fault


@kind("fp8-kv-cache")
def fp8_cache(plan: Plan) -> Fault:
    # The slow channels of the state play the part of the cache.
    slow = plan.model.weights["decay"] >= plan.rng.choice([0.3, 0.8, 0.97])

    def rounding(state: np.ndarray) -> np.ndarray:
        return np.where(slow, float8(state), state)

    plan.sampler_models = [replace(plan.model, state_rounding=rounding)]
    size = plan.rms(plan.sampler_models[0])
    noise = ("engine-noise", "healthy", "batch-noise", "bf16-logits") if size < 0.06 else ()
    return Fault("fp8-kv-cache", "honest", (*QUANTISED, *OTHER, *noise), size=size)


@kind("bf16-logits")
def bf16_logits(plan: Plan) -> Fault:
    plan.sampler_models = [replace(plan.model, logit_rounding=bfloat16)]
    size = plan.rms(plan.sampler_models[0])
    wide = ("forwards-differ", *QUANTISED) if size > 0.03 else ()
    return Fault("bf16-logits", "honest", ("engine-noise", "healthy", "batch-noise", *wide))


@kind("dropout-in-trainer")
def dropout(plan: Plan) -> Fault:
    """Apply dropout to a branch that makes up `share` of the hidden vector."""
    size, rate, rng = plan.graded(0.03, 0.5), 0.1, plan.rng
    views, before = plan.pilot_views, plan.pilot_own

    def drop(share: float) -> Callable[[np.ndarray], np.ndarray]:
        def change(vectors: np.ndarray) -> np.ndarray:
            kept = (rng.random(vectors.shape) >= rate) / (1.0 - rate)
            return (vectors * (1.0 + share * (kept - 1.0))).astype(np.float32)

        return change

    def rms(share: float) -> float:
        after = score(plan.model, views, rng, SILENT, change=drop(share)).log_probs
        return float(np.sqrt(((after - before) ** 2).mean()))

    plan.trainer_change = drop(plan.solve(rms, size))
    also = ("engine-noise", "batch-noise", "moe-routing", *QUANTISED, *OTHER)
    return Fault("dropout-in-trainer", "honest", also, ("broken",))
