"""Trajectories -> log-probs. transformers and vLLM live here and nowhere else.

To add a backend: one file with a class that satisfies `Backend`, one line in `load_backend`, its
options and dtypes in `spec.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from rcdiag.engines.spec import PolicySpec
from rcdiag.table.trajectories import Scores, Trajectories

Progress = Callable[[int], None]  # called with the number of tokens just done


class Backend(Protocol):
    """An engine with one model loaded."""

    def score(self, trajectories: Trajectories, progress: Progress) -> Scores:
        """Log-prob of each response token given all tokens before it, at the row's temperature."""
        ...

    def provenance(self) -> dict[str, Any]:
        """What is needed to score the same way again: versions, device, dtype, attention, ..."""
        ...


def load_backend(spec: PolicySpec, max_length: int) -> Backend:
    """Load the model of a policy; `max_length` is the longest sequence it will see."""
    if spec.backend == "hf":
        from rcdiag.engines.hf.backend import HfBackend

        return HfBackend(spec)
    from rcdiag.engines.vllm.engine import VllmBackend

    return VllmBackend(spec, max_length)
