"""Score through vLLM's decode kernels by forcing the stored tokens, one step at a time.

A logits processor receives the raw float32 logits of each step before temperature and sampling. It
computes the stored token's scores, keeps them on the device, and masks all other tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import LogitsProcessor

from rcdiag.engines.hf.head import token_scores

# Scores of all steps since the last `drain`: (request keys and positions, scores).
_captured: list[tuple[list[tuple[int, int]], Tensor]] = []


class ForceTokens(LogitsProcessor):
    """A logits processor that scores the stored tokens and allows only them to be sampled.

    Each request's `extra_args` hold `ids` (tokens to force), `key` and `temperature`.
    """

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._requests: dict[int, tuple[dict[str, Any], list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow requests as the engine adds, removes and moves them in its batch."""
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._requests.pop(index, None)
        for index, params, _, output_ids in batch_update.added:
            if params.extra_args and "ids" in params.extra_args:
                self._requests[index] = (params.extra_args, output_ids)
        for source, destination, direction in batch_update.moved:
            moving = self._requests.pop(source, None)
            other = self._requests.pop(destination, None)
            if moving is not None:
                self._requests[destination] = moving
            if other is not None and direction.name == "SWAP":
                self._requests[source] = other

    def apply(self, logits: Tensor) -> Tensor:
        """Score the stored token of each request, and mask all other tokens."""
        if not self._requests:
            return logits
        rows = sorted(self._requests)
        requests = [self._requests[row] for row in rows]
        places = [(arguments["key"], len(generated)) for arguments, generated in requests]
        ids = [arguments["ids"][len(generated)] for arguments, generated in requests]
        index = torch.tensor(rows, device=logits.device)
        forced = torch.tensor(ids, device=logits.device)
        temperature = torch.tensor([arguments["temperature"] for arguments, _ in requests])
        options = {"entropy": requests[0][0]["entropy"], "top_k": requests[0][0]["top_k"]}
        _captured.append((places, token_scores(logits[index], forced, temperature, **options)))
        logits[index] = float("-inf")
        logits[index, forced] = 0.0
        return logits


def drain(worker: Any) -> list[tuple[list[tuple[int, int]], Tensor]]:
    """Return and clear the scores captured by a worker's processor (via `collective_rpc`)."""
    captured = [(places, scores.cpu()) for places, scores in _captured]
    _captured.clear()
    return captured
