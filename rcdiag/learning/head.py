"""The backward of the head: through [tokens, vocabulary] in chunks, once for all coefficients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rcdiag.engines.hf import head as scoring_head
from rcdiag.learning.load import Policy
from rcdiag.learning.rows import MicroBatch


@dataclass(frozen=True, slots=True)
class HeadChunk:
    """Some tokens of a micro-batch, and the derivatives of their log-probs."""

    tokens: slice  # within the micro-batch
    inputs: Tensor  # [n, width] what the head's product takes, in its precision
    outputs: Tensor  # [n, vocabulary] d log pi(y_t) / d output of the head's product
    states: Tensor  # [n, width] d log pi(y_t) / d state


def head_chunks(policy: Policy, states: Tensor, batch: MicroBatch) -> Iterator[HeadChunk]:
    """Derivatives of each token's log-prob, a few tokens at a time.

    log pi(y) = z_y - logsumexp(z), z = logits / temperature, logits = head(state) with the
    model's scale and cap; d/dz = onehot(y) - softmax(z). In the head tokens do not meet, so that
    one pass gives all of them apart, and a coefficient vector only scales them.
    """
    step = max(scoring_head.LOGITS_AT_ONCE[states.device.type] // policy.vocab_size, 16)
    for start in range(0, len(states), step):
        tokens = slice(start, min(start + step, len(states)))
        yield _chunk(policy, states[tokens].detach().requires_grad_(), batch, tokens)


def _chunk(policy: Policy, states: Tensor, batch: MicroBatch, tokens: slice) -> HeadChunk:
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
    """[n] log softmax(logits / temperature) at the targets, in float32 at least (nats).

    logits [n, vocabulary], targets [n], temperature [n] on the CPU.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    scaled = logits.to(wide)
    if bool((temperature != 1.0).any()):
        scaled = scaled / temperature[:, None].to(logits.device, wide)
    return scaled.gather(1, targets[:, None]).squeeze(1) - scaled.logsumexp(dim=-1)


def add_head_gradient(
    head: nn.Linear, chunk: HeadChunk, coefficients: Tensor, sums: Callable[[Tensor], Tensor]
) -> None:
    """Add sum_t c_t (d log pi_t / d product)' input_t to the weight's sum, and to the bias's.

    coefficients [n] of the chunk's tokens. The product is made in the head's own precision.
    """
    scaled = (coefficients[:, None] * chunk.outputs).to(chunk.outputs.dtype)
    if head.weight.requires_grad:
        total = sums(head.weight)
        if scaled.dtype == total.dtype:
            total.addmm_(scaled.T, chunk.inputs)
        else:
            total.add_(scaled.T @ chunk.inputs)
    if head.bias is not None and head.bias.requires_grad:
        sums(head.bias).add_(scaled.sum(dim=0))
