"""Ready sets of policies lead from the sampler to the trainer, one difference at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rcdiag.engines import BACKENDS
from rcdiag.engines.backend import is_low_precision
from rcdiag.engines.checkpoint import check_checkpoint, fingerprint
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError, mapping_setting, setting

LADDERS: dict[str, tuple[str, ...]] = {
    # One engine's low precision, then the trainer's from low to full.
    "precision": (
        "vllm_bf16=vllm:bfloat16",
        "hf_bf16=hf:bfloat16",
        "hf_autocast=hf:float32,autocast=bfloat16",
        "hf_bf16_head32=hf:bfloat16,lm_head=float32",
        "hf_fp32=hf:float32",
    ),
    # Decode, prefill and transformers in one precision, then both engines in full precision.
    "engine": (
        "vllm_bf16_decode=vllm:bfloat16,path=decode",
        "vllm_bf16=vllm:bfloat16",
        "hf_bf16=hf:bfloat16",
        "vllm_fp32=vllm:float32",
        "hf_fp32=hf:float32",
    ),
}


def again(spec: PolicySpec) -> PolicySpec:
    """Return the policy once more, with other rows together in a batch: for the noise floor."""
    batches = BACKENDS[spec.backend].other_batches
    if batches is None:
        raise RcdiagError(
            f"{setting('noise_floor')}: `{spec.name}` would be scored in the same batches again, "
            f"since {spec.backend} has no option that changes them",
            hint="give a policy of another backend as well",
        )
    has_it = spec.options.get(batches.option) == batches.size
    size = batches.smaller if has_it else batches.size
    other = {**spec.options, batches.option: size, "repeat_of": spec.name}
    return replace(spec, name=f"{spec.name}_again", options=other)


def to_repeat(specs: Sequence[PolicySpec]) -> PolicySpec:
    """Return the policy whose noise matters most: the first in low precision, else the first.

    Policies of backends that cannot change their batches come last.
    """
    if not specs:
        raise RcdiagError(
            f"{setting('noise_floor')}: no policy that could be scored again",
            hint="give one with "
            f"{mapping_setting('policies', {'NAME': 'BACKEND:DTYPE'}, '--policy')} and "
            f"{setting('model', 'PATH')}",
        )
    able = [spec for spec in specs if BACKENDS[spec.backend].other_batches] or specs
    return next((spec for spec in able if is_low_precision(spec.to_dict())), able[0])


def spec_of(about: dict[str, Any], model: str | None) -> PolicySpec | None:
    """Return the spec that scored a policy of the table; None where the metadata do not tell.

    `about` is what the file metadata note of the policy, `model` the default checkpoint.
    """
    recorded = about.get("model")
    where = recorded if model is None or Path(str(recorded)).is_dir() else model
    if about.get("backend") not in BACKENDS or "options" not in about or where is None:
        return None
    weights = about.get("weights_fingerprint")
    comparable = Path(str(where)).is_dir() and isinstance(weights, str)
    if comparable and fingerprint(check_checkpoint(str(where))) != weights:
        raise RcdiagError(
            f"{where}: not the weights that `{about['name']}` was scored with",
            hint=f"give its checkpoint with {setting('model')}, or score the policy anew",
        )
    return PolicySpec(
        name=about["name"],
        backend=about["backend"],
        dtype=about["dtype"],
        model=str(where),
        options={key: value for key, value in about["options"].items() if key != "repeat_of"},
    )
