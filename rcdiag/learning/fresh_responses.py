"""Fresh responses, sampled from the policy's current weights, with their log-probs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tensor

from rcdiag.engines.hf import head as scoring_head
from rcdiag.learning.policy import TrainablePolicy
from rcdiag.table.trajectories import Ragged, Trajectories


class Generated(Struct, frozen=True):
    """One response, including the token that ends it."""

    prompt: int  # index of its prompt
    ids: NDArray[np.int32]
    log_probs: NDArray[np.float64]  # of the whole distribution at the temperature, nats


class SamplingSettings(Struct, frozen=True):
    """How responses are sampled: from the whole distribution, at one temperature."""

    temperature: float
    max_new_tokens: int
    seed: int
    samples: int = 1  # of each prompt

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature {self.temperature}: wanted above 0")


@torch.no_grad()
def generate(
    policy: TrainablePolicy,
    prompts: Sequence[NDArray[np.int32]],
    settings: SamplingSettings,
    batch_tokens: int,
) -> list[Generated]:
    """Sample responses to each prompt, in the order of the prompts.

    The same seed and batch size give the same samples. There is no top-p, top-k or penalty,
    whatever the checkpoint's generation_config says.
    """
    random = torch.Generator(policy.device).manual_seed(settings.seed)
    repeated = np.repeat(np.arange(len(prompts)), settings.samples)
    # As many rows at a time as fit into memory, with their tokens and logits. A row's keys and
    # values take much less memory than its activations for a backward pass.
    widest = max((len(prompt) for prompt in prompts), default=0) + settings.max_new_tokens
    logits = scoring_head.LOGITS_AT_ONCE[policy.device.type] // policy.vocab_size
    count = max(min(8 * batch_tokens // max(widest, 1), logits), 1)
    ends = end_tokens(policy)
    responses: list[Generated] = []
    for start in range(0, len(repeated), count):
        chosen = repeated[start : start + count]
        ids, log_probs = _sample(policy, [prompts[p] for p in chosen], settings, random)
        for prompt, row, scores in zip(chosen, ids, log_probs, strict=True):
            at = np.flatnonzero(np.isin(row, ends))
            length = at[0] + 1 if len(at) else len(row)
            own = row[:length].astype(np.int32)
            responses.append(Generated(int(prompt), own, scores[:length]))
    return responses


def _sample(
    policy: TrainablePolicy,
    prompts: Sequence[NDArray[Any]],
    settings: SamplingSettings,
    random: torch.Generator,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return sampled tokens and their log-probs, [rows, steps]; those after an end are invalid."""
    inputs, mask = _left_padded(prompts, policy.device)
    # Prompts are padded on the left; the first real token of each has position 0.
    places = (mask.cumsum(dim=1) - 1).clamp(min=0)
    ends = torch.tensor(end_tokens(policy), device=policy.device, dtype=torch.long)
    shape = (len(prompts), settings.max_new_tokens)
    tokens = torch.zeros(shape, dtype=torch.long, device=policy.device)
    scores = torch.zeros(shape, dtype=torch.float64, device=policy.device)
    going = torch.arange(len(prompts), device=policy.device)  # rows that have not ended yet
    cache = None
    for step in range(settings.max_new_tokens):
        logits, cache = _last_logits(policy, inputs, mask, places, cache)
        log_probs = torch.log_softmax(logits.float() / settings.temperature, dim=-1)
        inputs = torch.multinomial(log_probs.exp(), 1, generator=random)
        tokens[going, step] = inputs[:, 0]
        scores[going, step] = log_probs.gather(1, inputs)[:, 0].double()
        on = torch.isin(inputs[:, 0], ends, invert=True).nonzero()[:, 0]
        if not len(on):
            break
        if len(on) < len(going):
            cache.batch_select_indices(on)
            going, inputs, mask, places = going[on], inputs[on], mask[on], places[on]
        mask = torch.cat([mask, torch.ones_like(inputs)], dim=1)
        places = places[:, -1:] + 1
    return tokens.cpu().numpy(), scores.cpu().numpy()


def _last_logits(
    policy: TrainablePolicy, inputs: Tensor, mask: Tensor, places: Tensor, cache: Any
) -> tuple[Tensor, Any]:
    """Return the logits after each row's last input, [rows, vocabulary], and the extended cache."""
    with policy.precision():
        output = policy.body(
            input_ids=inputs,
            attention_mask=mask,
            position_ids=places,
            past_key_values=cache,
            use_cache=True,
        )
        return policy.to_logits(output.last_hidden_state[:, -1]), output.past_key_values


def _left_padded(prompts: Sequence[NDArray[Any]], device: torch.device) -> tuple[Tensor, Tensor]:
    width = max(len(prompt) for prompt in prompts)
    ids, mask = np.zeros((2, len(prompts), width), np.int64)
    for index, prompt in enumerate(prompts):
        ids[index, width - len(prompt) :] = prompt
        mask[index, width - len(prompt) :] = 1
    return torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)


def end_tokens(policy: TrainablePolicy) -> list[int]:
    """Return the ids that end a response, from the checkpoint's generation config; may be empty."""
    tokens = policy.model.generation_config.eos_token_id
    if tokens is None:
        return []
    return list(tokens) if isinstance(tokens, list) else [tokens]


def as_trajectories(
    prompts: Sequence[NDArray[np.int32]], generated: Sequence[Generated], temperature: float
) -> Trajectories:
    """Return the samples as rows of a table, with their log-probs as those of `rollout`."""
    return Trajectories(
        first_row=0,
        response_ids=_ragged([one.ids for one in generated]),
        mask=np.ones(sum(len(one.ids) for one in generated), np.bool_),
        prompt_ids=_ragged([prompts[one.prompt] for one in generated]),
        log_probs={"rollout": np.concatenate([one.log_probs for one in generated])},
        temperature=np.full(len(generated), temperature),
    )


def _ragged(rows: Sequence[NDArray[Any]]) -> Ragged:
    return Ragged.of(np.concatenate(rows), np.array([len(row) for row in rows]))
