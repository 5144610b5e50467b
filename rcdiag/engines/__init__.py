"""Engines turn stored tokens into log-probs. Transformers and vLLM live here and in `learning`.

`command` hands the tokens to any program of the user's.

To add an engine: a folder with a `Backend`, whose `load` imports the engine and nothing before it,
and its name in `BACKENDS`; or `BACKENDS.add(...)` in a package of your own (entry-point group
`rcdiag.plugins`). `--policy`, `compare`, the noise floor, help and `explain` follow from it.
"""

from __future__ import annotations

from rcdiag.engines.backend import Backend
from rcdiag.engines.command import COMMAND
from rcdiag.engines.hf import HF
from rcdiag.engines.vllm import VLLM
from rcdiag.registry import Registry

BACKENDS: Registry[Backend] = Registry("backend", (HF, VLLM, COMMAND))
