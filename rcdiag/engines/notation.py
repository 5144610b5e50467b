"""`NAME=BACKEND[:DTYPE][,key=value...]`: the notation for a policy to score."""

from __future__ import annotations

import json
from typing import Any

from rcdiag.engines import BACKENDS
from rcdiag.engines.backend import Backend, Option
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError, did_you_mean, mapping_setting, setting
from rcdiag.table.trajectories import POLICY_NAME

SHORT = 0.5  # similarity (difflib) low enough that fp32 suggests float32, and bf16 bfloat16
LONGEST_NAME = 128  # characters of a policy's name, which becomes a folder's name
JSON = ("{", "[", '"')  # first characters of a JSON value: object, list or string
JSON_HINT = (
    "keep its double quotes from the shell, with single quotes around the policy: "
    """'a=vllm,key={"mode":0,"on":true}'"""
)
SWITCH = {"true": True, "1": True, "false": False, "0": False}


def default_policies() -> dict[str, str]:
    """Return the policies that `--model` alone scores: name -> text that `parse_policy` takes.

    If two backends have the same default policy, the one registered first is used.
    """
    texts: dict[str, str] = {}
    for backend in BACKENDS.values():
        if (name := backend.default_policy) is not None:
            texts.setdefault(name, f"{name}={backend.name}:{backend.default_dtype}")
    return texts


def parse_policy(text: str, default_model: str | None = None) -> PolicySpec:
    """Parse NAME=BACKEND[:DTYPE][,key=value...].

    A policy without `model=` gets the default model, unless its backend names models otherwise.
    """
    name, _, rest = text.partition("=")
    head, *pairs = _pieces(rest)
    backend_name, _, dtype = head.partition(":")
    if not POLICY_NAME.fullmatch(name) or not rest:
        raise _bad(text, "wanted NAME=BACKEND[:DTYPE][,key=value...]")
    if len(name) > LONGEST_NAME:
        raise _bad(text, f"the name has {len(name)} letters, and {LONGEST_NAME} at most")
    if backend_name not in BACKENDS:
        raise _bad(
            text,
            f"no backend `{backend_name}`; there are {', '.join(BACKENDS)}",
            guess=did_you_mean(backend_name, BACKENDS),
        )
    backend = BACKENDS[backend_name]
    dtype = dtype or backend.default_dtype
    if dtype not in backend.dtypes:
        raise _bad(
            text,
            f"no dtype `{dtype}` in {backend_name}; there are {', '.join(backend.dtypes)}",
            guess=did_you_mean(dtype, backend.dtypes, likeness=SHORT),
        )
    options = dict(_pair(text, pair, backend) for pair in pairs)
    # A backend with an option `model` has a server's model names there, not a checkpoint.
    model = options.pop("model", None if "model" in backend.options else default_model)
    if model is None and backend.needs_model:
        hint = f"give {setting('model', 'PATH')}, or model=PATH in the policy"
        raise _bad(text, "no model", hint=hint)
    return PolicySpec(
        name=name, backend=backend_name, dtype=dtype, model=str(model or ""), options=options
    )


def _pieces(text: str) -> list[str]:
    """Split at commas, except within JSON values such as `key={"mode":0,"level":1}`."""
    pieces: list[str] = []
    for piece in text.split(","):
        if pieces and pieces[-1].partition("=")[2][:1] in JSON and not _is_json(pieces[-1]):
            pieces[-1] += f",{piece}"
        else:
            pieces.append(piece)
    return pieces


def _is_json(pair: str) -> bool:
    try:
        json.loads(pair.partition("=")[2])
    except (ValueError, RecursionError):
        return False
    return True


def _pair(text: str, pair: str, backend: Backend) -> tuple[str, Any]:
    key, equals, value = pair.partition("=")
    if not equals or not key:
        hint = "a value with commas is text in double quotes, and single quotes around the policy "
        hint += """keep them from the shell: 'a=command,run="python score.py --layers 1,2"'"""
        raise _bad(text, f"`{pair}` is not key=value", hint=hint)
    if key in backend.refuses:
        others = [one.name for one in BACKENDS.values() if key in one.known_options]
        hint = f"leave {key} out, or score with {' or '.join(others)}"
        raise _bad(text, f"{key}: {backend.refuses[key]}", hint=hint)
    option = backend.known_options.get(key)
    if option is not None:
        return key, _checked(text, key, value, option)
    if not backend.passes_options_on:
        names = list(backend.known_options)
        hint = f"{did_you_mean(key, names)}known: {', '.join(names)}"
        raise _bad(text, f"unknown option `{key}`", hint=hint)
    if value[:1] in JSON and not _is_json(pair):
        raise _bad(text, f"{key}={value}: not JSON", hint=JSON_HINT)
    # The value of an option that the engine reads is true, false, JSON or else text.
    if value.lower() in ("true", "false"):
        return key, value.lower() == "true"
    try:
        return key, json.loads(value)
    except (ValueError, RecursionError):
        return key, value


def _checked(text: str, key: str, value: str, option: Option) -> Any:
    """Check the value of an option that rcdiag reads, and convert it to its type."""
    if option.takes is bool:
        if value.lower() not in SWITCH:
            raise _bad(text, f"{key}={value}: wanted true or false")
        return SWITCH[value.lower()]
    if option.takes is int:
        if not value.isdecimal():
            raise _bad(text, f"{key}={value}: wanted a whole number")
        return int(value)
    if isinstance(option.takes, tuple) and value not in option.takes:
        raise _bad(
            text,
            f"{key}={value}: not known; there are {', '.join(option.takes)}",
            guess=did_you_mean(value, option.takes, likeness=SHORT),
        )
    if value[:1] != '"':
        return value
    if not _is_json(f"{key}={value}"):
        raise _bad(text, f"{key}={value}: not JSON", hint=JSON_HINT)
    return json.loads(value)


def _bad(text: str, why: str, hint: str = "", guess: str = "") -> RcdiagError:
    """Return the error about a policy; the default hint is a guess and examples."""
    examples = {"old": "hf:float32", "fp8": "vllm:bfloat16,quantization=fp8"}
    example = f"for example {mapping_setting('policies', examples, '--policy')}"
    return RcdiagError(f"policy {text}: {why}", hint=hint or guess + example)
