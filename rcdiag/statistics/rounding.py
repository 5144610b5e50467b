"""How far honest rounding moves log-probs: of two engines with the same weights, by precision.

Rounding moves the logits of a next token by about as much each, so that the log-prob of a token of
probability p moves by noise * (1 - p), in nats: a certain token cannot move. How much that makes of
a table is known from the precisions, the recorded probabilities and the lengths alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

# Nats of logit noise by which an engine in a precision is off, in proportion to its unit roundoff.
# Two engines in bfloat16 differ by 0.01 to 0.05 nats rms where E[(1 - p)^2] is 0.06, which is a
# noise of 0.04 (the sample data's small model) to 0.2; rcdiag's proposal is the middle.
NOISE = {
    name: 0.1 * 2.0 ** (8 - bits)
    for name, bits in {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}.items()
}
SAMPLER, TRAINER = "bfloat16", "float32"  # assumed where nothing is declared


class RoundingNoise(Struct, frozen=True):
    """The noise of the logits' difference between two policies, and of which precisions it is."""

    noise: float | None  # nats; None where a declared precision is none of NOISE
    precisions: str


def rounding_of(policies: Mapping[str, Any], behavior: str, target: str) -> RoundingNoise:
    """Return the rounding of a pair, by what a table's metadata declares of its `policies`."""
    declared = []
    for name in (behavior, target):
        about = policies.get(name)
        said = isinstance(about, Mapping) and (about.get("quantization") or about.get("dtype"))
        declared.append(str(said) if said else None)
    one, two = declared[0] or SAMPLER, declared[1] or TRAINER
    assumed = "" if all(declared) else " (assumed)" if not any(declared) else " (one assumed)"
    known = one in NOISE and two in NOISE
    noise = float(np.hypot(NOISE[one], NOISE[two])) if known else None
    return RoundingNoise(noise, f"{one} against {two}{assumed}")


ASSUMED = rounding_of({}, "", "")
