"""Packages that not every installation has, and which extra of rcdiag brings each."""

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
    """Turn the failed import of a package that an extra brings into an error that says so.

    Any other failed import is a bug, and keeps its traceback.

    Args:
        where: what the message says first, such as the policy that needs the package.
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
