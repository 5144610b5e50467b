"""A vLLM model that scores its own prompt: a causal LM with a pooler that computes log-probs.

vLLM's own prompt log-probs are computed from raw logits, without the temperature, and need a Python
object for each token. The pooling interface gives access to hidden states and prompt ids, and
returns one tensor for each sequence. `tests/engines/test_vllm.py` compares both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.pooler.abstract import Pooler
from vllm.model_executor.layers.pooler.common import PoolingParamsUpdate

from rcdiag.engines.hf.head import scores_in_chunks


class ScorePooler(Pooler):
    """A pooler that turns hidden states into `token_scores` of each request's response tokens."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        # In a list, so that torch does not register the model as a submodule of its own pooler.
        self._model = [model]

    def get_supported_tasks(self) -> set[str]:
        return {"token_classify"}

    def get_pooling_updates(self, task: str) -> PoolingParamsUpdate:
        return PoolingParamsUpdate(requires_token_ids=True)

    def forward(self, hidden_states: Tensor, pooling_metadata: Any) -> list[Tensor | None]:
        """Return one tensor for each request that ends in this step, None for the others.

        A request may be prefilled in several steps. Scores of earlier steps are kept in its pooling
        state, so hidden states need not be.
        """
        cursor = pooling_metadata.get_pooling_cursor()
        requests = [params.extra_kwargs or {} for params in pooling_metadata.pooling_params]
        rows, targets, temperature, counts = _scored_rows(cursor, pooling_metadata, requests)
        options = {
            "entropy": requests[0].get("entropy", False),
            "top_k": requests[0].get("top_k", 0),
        }
        scores = self._scores(
            hidden_states[rows.to(hidden_states.device)], targets, temperature, options
        )
        outputs: list[Tensor | None] = []
        states, finished = pooling_metadata.pooling_states, cursor.is_finished().tolist()
        for state, part, is_finished in zip(
            states, torch.split(scores, counts), finished, strict=True
        ):
            state.hidden_states_cache.append(part)
            outputs.append(torch.cat(state.hidden_states_cache) if is_finished else None)
            if is_finished:
                state.clean()
        return outputs

    def _scores(
        self, hidden: Tensor, targets: Tensor, temperature: Tensor, options: dict[str, Any]
    ) -> Tensor:
        model: Any = self._model[0]
        width = 1 + options["entropy"] + 2 * options["top_k"]
        if not len(hidden):
            return hidden.new_zeros((0, width), dtype=torch.float32)
        vocab_size = model.config.get_text_config().vocab_size
        return scores_in_chunks(
            hidden, _logits_function(model), vocab_size, targets, temperature, **options
        )


def _logits_function(model: Any) -> Callable[[Tensor], Tensor]:
    """Return the model's function from hidden states to logits, without vLLM's LoRA wrapper.

    The wrapper expects one row for each request (the sampled one) and fails on one for each token.
    Adapters that change head or embedding are refused by `lora_request`, so it is not needed.
    """
    processor: Any = getattr(model, "logits_processor", None)
    if not hasattr(processor, "base_layer"):
        compute_logits: Callable[[Tensor], Tensor] = model.compute_logits
        return compute_logits
    head = getattr(model.lm_head, "base_layer", model.lm_head)
    return lambda hidden: processor.base_layer(head, hidden)


def _scored_rows(
    cursor: Any, metadata: Any, requests: list[dict[str, Any]]
) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    """Return the indices of hidden states that predict a response token, the tokens and more.

    The state at position t predicts token t + 1. A step holds positions [start, end) of each
    request, one request after another. Returns indices, target ids and temperatures, each [tokens],
    and the number of tokens of each request.
    """
    rows, targets, temperatures, counts = [], [], [], []
    before = 0  # hidden states of the requests before this one
    prompt_ids = metadata.get_prompt_token_ids_cpu()
    sizes = cursor.num_scheduled_tokens_cpu.tolist()
    ends, totals = cursor.seq_lens_cpu.tolist(), cursor.prompt_lens_cpu.tolist()
    for ids, size, end, total, request in zip(
        prompt_ids, sizes, ends, totals, requests, strict=True
    ):
        start = end - size
        first = max(start, request.get("first", total) - 1)
        last = max(min(end, total - 1), first)
        rows.append(torch.arange(before + first - start, before + last - start))
        targets.append(ids[first + 1 : last + 1].long())
        temperatures.append(torch.full((last - first,), request.get("temperature", 1.0)))
        counts.append(last - first)
        before += size
    return torch.cat(rows), torch.cat(targets), torch.cat(temperatures), counts


def scoring_class(model_class: type[nn.Module]) -> type[nn.Module]:
    """Make a subclass of a model class with a `ScorePooler` on top."""

    class Scorer(model_class):  # type: ignore[misc, valid-type]
        is_pooling_model = True

        def __init__(self, *, vllm_config: Any, prefix: str = "", **options: Any) -> None:
            super().__init__(vllm_config=vllm_config, prefix=prefix, **options)
            self.pooler = ScorePooler(self)

    Scorer.__name__ = Scorer.__qualname__ = model_class.__name__
    return Scorer
