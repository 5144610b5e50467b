"""Gradients of weighted log-probs: micro-batches, shared forwards, a backward per basis vector."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rcdiag.learning.head import HeadChunk, add_head_gradient, head_chunks
from rcdiag.learning.load import Policy
from rcdiag.learning.one_row import Sketcher
from rcdiag.learning.probes import Probes
from rcdiag.learning.rows import MicroBatch

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Summed:
    """What the micro-batches of some coefficient vectors add up to."""

    gradients: list[dict[str, Tensor]]  # of each vector
    sketches: Array | None  # [vectors, rows, dims]


def accumulate(
    policy: Policy,
    batches: Iterable[MicroBatch],
    coefficients: Array,
    rows: int,
    taps: Sketcher | None,
) -> Summed:
    """d/d theta of sum_t c_t log pi(y_t) for each vector of coefficients [vectors, tokens].

    Sums are float32, whatever the precision of a micro-batch's own gradients.
    """
    parameters = policy.parameters
    summed = Summed(
        [
            {name: torch.zeros_like(p, dtype=torch.float32) for name, p in parameters.items()}
            for _ in coefficients
        ],
        None if taps is None else np.zeros((len(coefficients), rows, taps.probes.settings.dims)),
    )
    # Attached through the backwards too: checkpointing runs layers again there.
    with contextlib.nullcontext() if taps is None else taps.attached():
        for batch in batches:
            chosen = torch.from_numpy(coefficients[:, batch.tokens]).to(policy.device)
            _one_batch(policy, batch, chosen, summed, taps)
    return summed


def _one_batch(
    policy: Policy, batch: MicroBatch, coefficients: Tensor, summed: Summed, taps: Sketcher | None
) -> None:
    used = [k for k in range(len(coefficients)) if bool(coefficients[k].any())]
    states = policy.states(batch)
    by_token, head_sketches = _through_head(policy, states, batch, coefficients, summed, taps)
    for k in used:
        if taps is not None:
            taps.start(len(batch.rows), policy.device)
        outer = (coefficients[k].float()[:, None] * by_token).to(states.dtype)
        found = _through_body(policy, states, outer, keep=k != used[-1])
        for name, value in found.items():
            summed.gradients[k][name].add_(value)
        if taps is not None and summed.sketches is not None:
            taps.whole(found)
            sketch = (taps.sums + head_sketches[k]).cpu().numpy()
            summed.sketches[k][batch.rows] += sketch


def _through_body(
    policy: Policy, states: Tensor, outer: Tensor, *, keep: bool
) -> dict[str, Tensor]:
    """The gradient that reaches the body's parameters from its last states."""
    parameters = policy.parameters
    found = torch.autograd.grad(
        states, list(parameters.values()), outer, retain_graph=keep, allow_unused=True
    )
    # The head's own parameters are not in the body.
    return {n: value for n, value in zip(parameters, found, strict=True) if value is not None}


def _through_head(
    policy: Policy,
    states: Tensor,
    batch: MicroBatch,
    coefficients: Tensor,
    summed: Summed,
    taps: Sketcher | None,
) -> tuple[Tensor, Tensor]:
    """[tokens, width] d log pi(y_t) / d state; and the head's part of the sketches."""
    dims = 0 if taps is None else taps.probes.settings.dims
    shape = (len(coefficients), len(batch.rows), dims)
    sketches = torch.zeros(shape, dtype=torch.float64, device=states.device)
    by_token = torch.empty_like(states)
    names = {id(p): name for name, p in policy.parameters.items()}
    for chunk in head_chunks(policy, states, batch):
        by_token[chunk.tokens] = chunk.states
        for k, vector in enumerate(coefficients):
            sums = _sums_of(summed.gradients[k], names)
            add_head_gradient(policy.head, chunk, vector[chunk.tokens].float(), sums)
        if taps is not None:
            _sketch_head(policy.head, chunk, batch, coefficients, taps.probes, sketches)
    return by_token, sketches


def _sums_of(sums: dict[str, Tensor], names: dict[int, str]) -> Callable[[Tensor], Tensor]:
    return lambda parameter: sums[names[id(parameter)]]


def _sketch_head(
    head: nn.Linear,
    chunk: HeadChunk,
    batch: MicroBatch,
    coefficients: Tensor,
    probes: Probes,
    sketches: Tensor,
) -> None:
    """Add sum_t c_t (u.d_t)(v.h_t) of each row to sketches [vectors, rows, dims]."""
    for parameter in (head.weight, head.bias):
        if parameter is None or not parameter.requires_grad:
            continue
        left, *right = probes.signs(parameter)
        products = chunk.outputs.float() @ left
        if right:
            products = products * (chunk.inputs.float() @ right[0])
        slots = torch.from_numpy(probes.slots(parameter)).to(products.device)
        for vector, found in zip(coefficients, sketches, strict=True):
            scaled = vector[chunk.tokens, None] * products.double()
            by_row = scaled.new_zeros(len(found), len(slots))
            found[:, slots] += by_row.index_add_(0, batch.row[chunk.tokens], scaled)
