"""Engines turn stored tokens into log-probs: transformers, vLLM, servers over HTTP, any program.

To add an engine, write a folder with a `Backend` whose `load` imports the engine only when called,
and add it to `BACKENDS`, or call `BACKENDS.add(...)` in a package of your own (entry-point group
`rcdiag.plugins`). `--policy`, `compare`, the noise floor, help and `explain` then include it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rcdiag.registry import Registry

if TYPE_CHECKING:
    from rcdiag.engines.backend import Backend


def _shipped() -> Iterable[Backend]:
    from rcdiag.engines.command import COMMAND
    from rcdiag.engines.hf import HF
    from rcdiag.engines.server import SERVER
    from rcdiag.engines.vllm import VLLM

    return HF, VLLM, SERVER, COMMAND


BACKENDS: Registry[Backend] = Registry("backend", _shipped)
