"""Gradients of weighted sums of log-probs, added up over micro-batches.

All coefficient vectors share one forward pass and one pass through the head; each family of
vectors (`rcdiag.learning.families`) takes one backward pass through the decoder ("body").
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tensor, nn

from rcdiag.engines.hf.head import rows_at_once
from rcdiag.learning.families import VectorFamily
from rcdiag.learning.micro_batches import MicroBatch
from rcdiag.learning.policy import TrainablePolicy
from rcdiag.learning.sketch import Member, Probes, Sketcher

Array = NDArray[np.float64]


class Summed(Struct, frozen=True):
    """Gradients and sketches of some coefficient vectors, summed over micro-batches."""

    gradients: list[dict[str, Tensor]]  # [vectors] parameter -> gradient
    sketches: Array | None  # [vectors, rows, dims]


def accumulate(
    policy: TrainablePolicy,
    batches: Iterable[MicroBatch],
    coefficients: Array,
    families: Sequence[VectorFamily],
    rows: int,
    taps: Sketcher | None,
) -> Summed:
    """Sum d/d theta of sum_t c_t log pi(y_t) for each vector of coefficients [vectors, tokens].

    Without `taps` there are no sketches, and every vector is a family of its own. Sums are float32,
    whatever the precision of a micro-batch's gradients.
    """
    parameters = policy.parameters
    summed = Summed(
        [
            {name: torch.zeros_like(p, dtype=torch.float32) for name, p in parameters.items()}
            for _ in coefficients
        ],
        None if taps is None else np.zeros((len(coefficients), rows, taps.probes.settings.dims)),
    )
    # Taps stay attached during backward passes, since checkpointing runs layers again there.
    with contextlib.nullcontext() if taps is None else taps.attached():
        for batch in batches:
            chosen = torch.from_numpy(coefficients[:, batch.tokens]).to(policy.device)
            _one_batch(policy, batch, chosen, families, summed, taps)
    return summed


def _one_batch(
    policy: TrainablePolicy,
    batch: MicroBatch,
    coefficients: Tensor,
    families: Sequence[VectorFamily],
    summed: Summed,
    taps: Sketcher | None,
) -> None:
    states = policy.states(batch)
    by_token, head_sketches = _through_head(policy, states, batch, coefficients, summed, taps)
    leaders = [torch.from_numpy(family.leader[batch.tokens]).float() for family in families]
    used = [index for index, leader in enumerate(leaders) if bool(leader.any())]
    parameters = policy.parameters
    names = {id(p): name for name, p in parameters.items()}
    for index in used:
        family = families[index]
        if taps is not None:
            members = []
            for factors, number in zip(family.factors, family.members, strict=True):
                of_rows = torch.from_numpy(factors[batch.rows]).float().to(policy.device)
                members.append(Member(of_rows, _sums_of(summed.gradients[number], names)))
            taps.start(len(batch.rows), policy.device, members)
        outer = (leaders[index].to(policy.device)[:, None] * by_token).to(states.dtype)
        through_body = torch.autograd.grad(
            states,
            list(parameters.values()),
            outer,
            retain_graph=index != used[-1],
            allow_unused=True,  # the head's own parameters are not in the body
        )
        gradients = {
            name: value
            for name, value in zip(parameters, through_body, strict=True)
            if value is not None
        }
        if family.own is not None:
            for name, value in gradients.items():
                summed.gradients[family.own][name].add_(value)
        if taps is not None:
            taps.whole(gradients)
            _add_sketches(family, batch, taps.sums, head_sketches, summed)


def _add_sketches(
    family: VectorFamily, batch: MicroBatch, body: Tensor, head: Tensor, summed: Summed
) -> None:
    """Add the sketches of a family's vectors, body [rows, dims] and head [vectors, rows, dims]."""
    assert summed.sketches is not None
    of_body = body.cpu().numpy()
    if family.own is not None:
        summed.sketches[family.own][batch.rows] += of_body + head[family.own].cpu().numpy()
    for index, number in enumerate(family.members):
        factors = family.factors[index, batch.rows][:, None]
        summed.sketches[number][batch.rows] += factors * of_body + head[number].cpu().numpy()


def _through_head(
    policy: TrainablePolicy,
    states: Tensor,
    batch: MicroBatch,
    coefficients: Tensor,
    summed: Summed,
    taps: Sketcher | None,
) -> tuple[Tensor, Tensor]:
    """Add the head's gradient to the sums; return what the body and the sketches need.

    The first result is d log pi(y_t) / d state [tokens, width], the second the head's part of the
    sketches [vectors, rows, dims].
    """
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
        for vector, sketch in zip(coefficients, sketches, strict=True):
            scaled = vector[chunk.tokens, None] * products.double()
            by_row = scaled.new_zeros(len(sketch), len(slots))
            sketch[:, slots] += by_row.index_add_(0, batch.row[chunk.tokens], scaled)


class HeadChunk(Struct, frozen=True):
    """Some tokens of a micro-batch with the derivatives of their log-probs."""

    tokens: slice  # within the micro-batch
    inputs: Tensor  # [n, width] states in the precision in which the head multiplies them
    outputs: Tensor  # [n, vocabulary] d log pi(y_t) / d output of the head's product
    states: Tensor  # [n, width] d log pi(y_t) / d state


def head_chunks(policy: TrainablePolicy, states: Tensor, batch: MicroBatch) -> Iterator[HeadChunk]:
    """Yield derivatives of each token's log-prob, a few tokens at a time.

    log pi(y) = z_y - logsumexp(z), z = logits / temperature, logits = head(state) with the
    model's scale and cap; d/dz = onehot(y) - softmax(z). Tokens do not interact in the head, so one
    pass gives each token's derivatives, which a coefficient vector only scales.
    """
    step = rows_at_once(states.device.type, policy.vocab_size)
    for start in range(0, len(states), step):
        tokens = slice(start, min(start + step, len(states)))
        yield _chunk(policy, states[tokens].detach().requires_grad_(), batch, tokens)


def _chunk(policy: TrainablePolicy, states: Tensor, batch: MicroBatch, tokens: slice) -> HeadChunk:
    products: list[Tensor] = []
    hook = policy.head.register_forward_hook(lambda _m, _i, output: products.append(output))
    try:
        with torch.enable_grad(), policy.precision():
            logits = policy.to_logits(states)
    finally:
        hook.remove()
    product = products[0]
    with torch.enable_grad():
        log_probs = token_log_probs(logits, batch.targets[tokens], batch.temperature[tokens])
    outputs, inputs = torch.autograd.grad(log_probs.sum(), (product, states))
    return HeadChunk(tokens, states.detach().to(product.dtype), outputs, inputs)


def token_log_probs(logits: Tensor, targets: Tensor, temperature: Tensor) -> Tensor:
    """Return each target's log-prob (nats, [n]): log softmax(logits / temperature) at it.

    logits [n, vocabulary], targets [n], temperature [n] on the CPU. The result is float32, or
    float64 for float64 logits.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    scaled = logits.to(wide)
    if bool((temperature != 1.0).any()):
        scaled = scaled / temperature[:, None].to(logits.device, wide)
    return scaled.gather(1, targets[:, None]).squeeze(1) - scaled.logsumexp(dim=-1)


def add_head_gradient(
    head: nn.Linear, chunk: HeadChunk, coefficients: Tensor, sums: Callable[[Tensor], Tensor]
) -> None:
    """Add sum_t c_t (d log pi_t / d product)' input_t to the gradients of weight and bias.

    coefficients [n] belong to the chunk's tokens; `sums` returns the running sum of a parameter's
    gradient. The product is computed in the head's precision.
    """
    if head.weight.requires_grad:
        # Scale the states, which have fewer values than the outputs (width < vocabulary).
        scaled = (coefficients[:, None] * chunk.inputs).to(chunk.outputs.dtype)
        total = sums(head.weight)
        if scaled.dtype == total.dtype:
            total.addmm_(chunk.outputs.T, scaled)
        else:
            total.add_(chunk.outputs.T @ scaled)
    if head.bias is not None and head.bias.requires_grad:
        sums(head.bias).add_(coefficients @ chunk.outputs.float())
