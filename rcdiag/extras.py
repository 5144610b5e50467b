"""EXTRAS: optional packages, and the extra of rcdiag that installs each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rcdiag.errors import RcdiagError

EXTRAS = {
    "torch": "hf",
    "transformers": "hf",
    "tokenizers": "hf",
    "peft": "lora",
    "vllm": "vllm",
    "ray": "ray",
    "s3fs": "s3",
    "tensorboard": "tensorboard",
}


@contextmanager
def saying_what_to_install(where: str = "") -> Iterator[None]:
    """Turn the failed import of an optional package into an error that says what to install.

    Any other failed import is a bug and is raised unchanged.

    Args:
        where: the beginning of the message, such as the policy that needs the package.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        extra = f"'.[{EXTRAS[package]}]'"
        raise RcdiagError(
            f"{where}{package} is not installed",
            hint=f"in the clone that rcdiag was installed from: pip install {extra}; or "
            f"uv tool install --force {extra}, where `uv tool install` made the command",
        ) from error
