"""Scores from logits: the one function that all engines compute them with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rcdiag.engines.hf.support import KeptSets

# Values of the logits that are computed at a time, whatever the vocabulary: 16 MB in float32 on a
# CPU, which nearly fit its caches (a third faster than 64 MB, measured), 256 MB on a GPU.
LOGITS_AT_ONCE = {"cpu": 4 << 20, "cuda": 64 << 20}
# This many rows keep all cores busy; with a small vocabulary more rows would only cost memory.
MOST_ROWS = {"cpu": 256, "cuda": 1 << 20}
LEAST_ROWS = 16


def token_scores(
    logits: Tensor,
    targets: Tensor,
    temperature: Tensor,
    *,
    entropy: bool,
    top_k: int,
    low_division: bool = False,
    kept: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Score `targets` under softmax(logits / temperature), in float32.

    With `low_division` the temperature and the quotient are rounded to the dtype of the logits.
    With `kept` the softmax is over the tokens for which `kept(logits / temperature)` [rows,
    vocabulary] is true; all others have probability 0.

    logits [rows, vocabulary], targets [rows], temperature [rows] (on the CPU) ->
    [rows, 1 + entropy + 2 top_k]: the target's log-prob (nats, clamped to at most 0, which only
    rounding can exceed), the entropy H = logsumexp(z) - sum softmax(z) z (nats) if wanted, then
    the `top_k` largest log-probs and their token ids (exact in float32 up to 2^24).
    """
    scaled = logits if low_division else logits.float()
    if bool((temperature != 1.0).any()):
        scaled = scaled / temperature[:, None].to(scaled.device, scaled.dtype)
    scaled = scaled.float()
    if kept is not None:
        scaled = scaled.masked_fill(~kept(scaled), -torch.inf)
    normalizer = scaled.logsumexp(dim=-1)
    target_logits = scaled.gather(1, targets[:, None].to(logits.device)).squeeze(1)
    columns = [(target_logits - normalizer).clamp(max=0.0)[:, None]]
    if entropy:
        finite = scaled if kept is None else scaled.clamp(min=torch.finfo(torch.float32).min)
        mean_logit = (torch.softmax(scaled, dim=-1) * finite).sum(dim=-1)
        columns.append((normalizer - mean_logit)[:, None])
    if top_k:
        best, ids = scaled.topk(top_k, dim=-1)
        columns += [(best - normalizer[:, None]).clamp(max=0.0), ids.float()]
    return torch.cat(columns, dim=1)


def scores_in_chunks(
    hidden: Tensor,
    to_logits: Callable[[Tensor], Tensor],
    vocab_size: int,
    targets: Tensor,
    temperature: Tensor,
    *,
    kept_sets: KeptSets | None = None,
    **options: Any,
) -> Tensor:
    """Score hidden states [rows, width] as `token_scores` does, a few rows of logits at a time.

    `kept_sets` has one kept set for each row.
    """
    step = rows_at_once(hidden.device.type, vocab_size)
    scores = []
    for start in range(0, max(len(hidden), 1), step):  # no rows: one chunk without any
        rows = slice(start, start + step)
        logits = to_logits(hidden[rows])
        kept = None if kept_sets is None else partial(kept_sets.mask, rows)
        scores.append(token_scores(logits, targets[rows], temperature[rows], kept=kept, **options))
    return torch.cat(scores)


def rows_at_once(device: str, vocab_size: int) -> int:
    """Return the number of rows whose logits are computed at a time on a kind of device."""
    fit = max(LOGITS_AT_ONCE[device] // vocab_size, LEAST_ROWS)
    return min(fit, MOST_ROWS[device])
