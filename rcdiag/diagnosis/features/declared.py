"""What metadata and columns declare about both sides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from rcdiag.diagnosis.case import Case

# Part of a format's name in metadata -> the cause that these quantised weights are.
QUANTISED = {
    "fp8": "fp8-weights",
    "float8": "fp8-weights",
    "w8a8": "int8-weights",
    "int8": "int8-weights",
    "w4a16": "int4-weights",
    "int4": "int4-weights",
    "awq": "int4-weights",
    "gptq": "int4-weights",
    "nf4": "int4-weights",
}
# Engine options that switch speculative decoding on: of vLLM, and of SGLang.
SPECULATIVE = ("speculative_config", "speculative_algorithm")
# Options of vLLM and SGLang that make log-probs independent of the batch.
BATCH_INVARIANT = ("batch_invariant", "enable_deterministic_inference")


class DeclaredSide(Struct, frozen=True, kw_only=True):
    """What the file's metadata declare about one policy; None where they declare nothing."""

    weights: Any = None  # fingerprint: a text, or one for each version of the weights
    model: str | None = None
    temperature: float | None = None  # at which its log-probs were computed
    sampling_temperature: float | None = None  # at which tokens were sampled
    dtype: str | None = None
    quantisation: str | None = None
    backend: str | None = None
    batch_invariant: bool = False  # whether the engine's log-probs are independent of the batch
    speculative: bool = False  # whether a draft model proposed the tokens


class Declared(Struct, frozen=True, kw_only=True):
    """What is declared about sampler and trainer, and about how rows were sampled."""

    sampler: DeclaredSide
    trainer: DeclaredSide
    row_temperature: float | None  # temperature of all rows; None if unknown or not the same
    learning_rate: float | None = None  # of the updates between the steps

    @classmethod
    def of(cls, case: Case) -> Declared:
        """Return what a case's metadata and columns declare."""
        policies = case.metadata.get("policies", {})
        policies = policies if isinstance(policies, Mapping) else {}
        values = case.facts.temperature
        known = np.empty(0) if values is None else np.unique(values[np.isfinite(values)])
        # A recorder writes the learning rate beside the policies, `--given` what the user knows.
        learning_rate = _number(case.metadata.get("learning_rate"))
        given = case.metadata.get("given")
        if learning_rate is None and isinstance(given, Mapping):
            learning_rate = _number(given.get("learning_rate"))
        return cls(
            sampler=_side(policies.get(case.sampler, {})),
            trainer=_side(policies.get(case.trainer or "", {})),
            row_temperature=float(known[0]) if len(known) == 1 and known[0] > 0 else None,
            learning_rate=learning_rate,
        )

    @property
    def weights_differ(self) -> bool:
        """Tell whether both sides state fingerprints of their weights, and these differ."""
        one, two = self.sampler.weights, self.trainer.weights
        return one is not None and two is not None and one != two

    @property
    def bitwise(self) -> bool:
        """Tell whether both sides state the same batch-invariant engine and the same precision."""
        one, two = self.sampler, self.trainer
        invariant = one.batch_invariant and two.batch_invariant
        return invariant and (one.backend, one.dtype) == (two.backend, two.dtype)

    @property
    def weights_agree(self) -> bool:
        """Tell whether both sides state the same fingerprint of their weights."""
        one, two = self.sampler.weights, self.trainer.weights
        return one is not None and one == two


def _side(about: Any) -> DeclaredSide:
    about = about if isinstance(about, Mapping) else {}
    options = about.get("engine_options", {})
    options = options if isinstance(options, Mapping) else {}
    model = about.get("model")
    stated = [about.get("quantization"), options.get("quantization"), about.get("dtype")]
    texts = [str(value).lower() for value in stated if value]
    return DeclaredSide(
        weights=about.get("weights_fingerprint"),
        model=model if isinstance(model, str) else None,
        temperature=_number(about.get("temperature")),
        sampling_temperature=_number(about.get("sampling_temperature")),
        dtype=about.get("dtype"),
        quantisation=next((text for text in texts if any(q in text for q in QUANTISED)), None),
        backend=about.get("backend"),
        batch_invariant=any(options.get(name) is True for name in BATCH_INVARIANT),
        speculative=any(options.get(name) for name in SPECULATIVE),
    )


def _number(value: Any) -> float | None:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if usable and np.isfinite(value) else None
