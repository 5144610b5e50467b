"""`NAME=BACKEND[:DTYPE][,key=value...]`: how a user names a policy to score."""

from __future__ import annotations

import difflib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from rcdiag.errors import RcdiagError
from rcdiag.table.trajectories import POLICY_NAME

# What both backends understand. `model` and `adapter` are paths, `repeat_of` names the policy that
# this is a second run of, the others are measurements.
COMMON_OPTIONS = ("model", "adapter", "entropy", "top_k", "lm_head", "repeat_of")
OPTIONS: dict[str, tuple[str, ...]] = {
    "hf": (
        *COMMON_OPTIONS,
        "autocast",
        "attention",
        "device",
        "batch_tokens",
        "compile",
        "trust_remote_code",
    ),
    # Anything else goes to vLLM's engine, which knows its own option names.
    "vllm": (*COMMON_OPTIONS, "path"),
}
DEFAULT_DTYPE = {"hf": "float32", "vllm": "bfloat16"}
DTYPES = {
    "hf": ("float32", "bfloat16", "float16"),
    "vllm": ("bfloat16", "float16", "float32", "auto"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicySpec:
    """One policy to score: which engine, in which precision, with which options."""

    name: str
    backend: str
    dtype: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def own_options(self) -> dict[str, Any]:
        """Options that rcdiag reads itself."""
        return {key: v for key, v in self.options.items() if key in OPTIONS[self.backend]}

    @property
    def engine_options(self) -> dict[str, Any]:
        """Options that are passed on to the engine."""
        return {key: v for key, v in self.options.items() if key not in OPTIONS[self.backend]}


def parse_policy(text: str, default_model: str | None = None) -> PolicySpec:
    """Parse the value of `--policy`; `default_model` is that of `--model`."""
    name, _, rest = text.partition("=")
    head, *pairs = rest.split(",")
    backend, _, dtype = head.partition(":")
    if not POLICY_NAME.fullmatch(name) or not rest:
        raise _bad(text, "wanted NAME=BACKEND[:DTYPE][,key=value...]")
    if backend not in OPTIONS:
        raise _bad(text, f"no backend `{backend}`; there are {', '.join(OPTIONS)}")
    dtype = dtype or DEFAULT_DTYPE[backend]
    if dtype not in DTYPES[backend]:
        raise _bad(text, f"no dtype `{dtype}` in {backend}; there are {', '.join(DTYPES[backend])}")
    options = dict(_pair(text, pair) for pair in pairs)
    model = options.pop("model", default_model)
    if model is None:
        raise _bad(text, "no model", hint="give --model PATH, or model=PATH in the policy")
    spec = PolicySpec(name=name, backend=backend, dtype=dtype, model=str(model), options=options)
    if backend == "hf":
        _refuse_unknown(text, spec)
    return spec


def _pair(text: str, pair: str) -> tuple[str, Any]:
    key, equals, value = pair.partition("=")
    if not equals or not key:
        raise _bad(text, f"`{pair}` is not key=value")
    return key, _value(key, value)


def _value(key: str, value: str) -> Any:
    if key in ("model", "adapter"):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def _refuse_unknown(text: str, spec: PolicySpec) -> None:
    for key in spec.engine_options:
        near = difflib.get_close_matches(key, OPTIONS[spec.backend], n=1)
        guess = f"did you mean `{near[0]}`? " if near else ""
        known = ", ".join(OPTIONS[spec.backend])
        raise _bad(text, f"unknown option `{key}`", hint=f"{guess}known: {known}")


def _bad(text: str, why: str, hint: str = "") -> RcdiagError:
    example = "for example --policy old=hf:float32 or --policy fp8=vllm:bfloat16,quantization=fp8"
    return RcdiagError(f"--policy {text}: {why}", hint=hint or example)
