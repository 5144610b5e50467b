"""Rows, coefficients and an independent gradient for the tests of training."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config, MixtralConfig, PhiConfig

from rcdiag.engines.notation import parse_policy
from rcdiag.learning.gradient import Gradient, combined
from rcdiag.learning.micro_batches import rows_of
from rcdiag.learning.trainee import Trainee
from rcdiag.learning.training_settings import OptimizerSettings
from rcdiag.table.opening import open_table
from rcdiag.table.stream import decode, read_chunks
from rcdiag.table.trajectories import Trajectories
from tests import engine_models as engines

ROWS = 12
# Learned positions and fused products; a head with a bias and norms with one.
MORE_CONFIGS = {
    "mixtral": lambda: MixtralConfig(
        **engines.SIZES, num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=False
    ),
    "gpt2": lambda: GPT2Config(
        vocab_size=320, n_positions=256, n_embd=64, n_layer=2, n_head=4, initializer_range=0.2
    ),
    "phi": lambda: PhiConfig(**{**engines.SIZES, "num_key_value_heads": 4, "head_dim": 16}),
}
ADAMW = OptimizerSettings(
    name="adamw", learning_rate=1e-3, betas=(0.9, 0.95), weight_decay=0.1, max_grad_norm=1e-3
)


def trainee(model: Path, policy: str = "hf:float32", **settings) -> Trainee:
    return Trainee.load(parse_policy(f"old={policy}", str(model)), **settings)


def parts_of(table: Path, *cuts: int) -> list[Trajectories]:
    """Return the rows of a table in a few parts, as from a stream."""
    ends = [0, *(cuts or (5, ROWS))]
    chunks = read_chunks(open_table(table), list(itertools.pairwise(ends)))
    return [decode(chunk) for chunk in chunks]


def tokens_in(parts: Sequence[Trajectories]) -> int:
    return int(sum(part.mask.sum() for part in parts))


def random_coefficients(parts: Sequence[Trajectories], count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, tokens_in(parts))) / tokens_in(parts)


def gradients_of_rows(
    one: Trainee, parts: Sequence[Trajectories], coefficients: np.ndarray
) -> list[list[Gradient]]:
    """Return the exact gradient of each row, with coefficients 0 in all other rows."""
    tokens = [len(row.places) for row in rows_of(parts, one.policy.vocab_size)]
    owner = np.repeat(np.arange(len(tokens)), tokens)
    return [
        one.gradients(parts, np.where(owner == row, coefficients, 0.0)).whole
        for row in range(len(tokens))
    ]


def objective(model, parts: Sequence[Trajectories], coefficients: np.ndarray) -> Tensor:
    """Compute sum_t c_t log pi(y_t), row by row, by the model's own forward pass."""
    total, run = torch.zeros((), dtype=torch.float64), 0
    for part in parts:
        for index in range(len(part)):
            prompt, response = part.prompt_ids.row(index), part.response_ids.row(index)
            first = int(part.response_ids.offsets[index])
            expected = np.flatnonzero(part.mask[first : first + len(response)])
            if not len(expected):
                continue
            ids = torch.tensor(np.concatenate([prompt, response]).astype(np.int64))
            logits = model(ids[None]).logits[0] / part.scoring_temperature[index]
            laws = torch.log_softmax(logits, dim=-1)
            places = torch.tensor(len(prompt) + expected)
            weights = torch.from_numpy(coefficients[run : run + len(expected)])
            total = total + (laws[places - 1, ids[places]].double() * weights).sum()
            run += len(expected)
    return total


def plain_model(folder: Path, dtype: torch.dtype):
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, experts_implementation="eager"
    ).eval()


def reference_gradient(
    folder: Path, parts: Sequence[Trajectories], coefficients: np.ndarray
) -> dict[str, Tensor]:
    """Return the gradient in float64, by autograd through the model's own forward pass."""
    model = plain_model(folder, torch.float64)
    objective(model, parts, coefficients).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def gap(result: Gradient, expected: Gradient) -> float:
    """Return |found - expected| / |expected|."""
    return combined([result, expected], [1.0, -1.0]).norm() / expected.norm()


def take(one: Trainee, parts, seeds: tuple[int, int], settings=ADAMW) -> float:
    """Take one step per seed in a range; return the norm of the last one's change."""
    for seed in range(*seeds):
        gradient = one.gradients(parts, random_coefficients(parts, 1, seed)).whole[0]
        moved = one.apply(gradient, settings)
    return moved
