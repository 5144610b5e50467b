"""How far rounding moves log-probs between two engines with the same weights, by precision.

Rounding moves all logits of a next token by similar amounts, so that the log-prob of a token of
probability p moves by about noise * (1 - p), in nats: a certain token cannot move. The effect on a
table then follows from the precisions, the recorded probabilities and the lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

# Logit noise of an engine by precision, nats, proportional to the unit roundoff. Two engines in
# bfloat16 differ by 0.01 to 0.05 nats rms where E[(1 - p)^2] is 0.06, which means a noise of 0.04
# (the small model of the sample data) to 0.2; the middle is rcdiag's proposal.
NOISE = {
    name: 0.1 * 2.0 ** (8 - bits)
    for name, bits in {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}.items()
}
SAMPLER, TRAINER = "bfloat16", "float32"  # assumed if nothing is declared


class RoundingNoise(Struct, frozen=True):
    """The noise of the difference of two policies' logits, and the precisions that cause it."""

    noise: float | None  # nats; None if a declared precision is not in NOISE
    precisions: str


def rounding_of(policies: Mapping[str, Any], behavior: str, target: str) -> RoundingNoise:
    """Return the rounding noise of a pair, from what a table's metadata says of its `policies`."""
    declared = []
    for name in (behavior, target):
        about = policies.get(name)
        about = about if isinstance(about, Mapping) else {}
        options = about.get("options")
        options = options if isinstance(options, Mapping) else {}
        # What its products are computed in: the most specific of what is declared.
        autocast = options.get("autocast") or about.get("autocast")
        said = about.get("quantization") or autocast or about.get("dtype")
        declared.append(str(said) if said else None)
    one, two = declared[0] or SAMPLER, declared[1] or TRAINER
    assumed = "" if all(declared) else " (assumed)" if not any(declared) else " (one assumed)"
    known = one in NOISE and two in NOISE
    noise = float(np.hypot(NOISE[one], NOISE[two])) if known else None
    return RoundingNoise(noise, f"{one} against {two}{assumed}")


ASSUMED = rounding_of({}, "", "")
