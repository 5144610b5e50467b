"""The distribution that a sampler draws from, computed from the network's logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

END = 1


@dataclass(frozen=True, kw_only=True)
class Law:
    """Sampling parameters, in the order in which vLLM applies them to the logits."""

    min_tokens: int = 0  # the end token is banned before this number of tokens
    bias: tuple[tuple[int, float], ...] = ()  # token id -> number added to its logit
    repetition: float = 1.0  # divisor (factor) of positive (negative) logits of seen tokens
    presence: float = 0.0  # subtracted from the logits of tokens in the response
    temperature: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def processed(self, logits: Tensor, seen: Tensor, written: Tensor, tokens: int) -> Tensor:
        """Return the log-probs [rows, vocabulary] that tokens are drawn from.

        `seen` [rows, vocabulary] marks tokens of prompt and response, `written` of the response,
        which has `tokens` tokens so far.
        """
        if tokens < self.min_tokens:
            logits = logits.clone()
            logits[:, END] = -torch.inf
        if self.bias:
            logits = logits.clone()
            for token, value in self.bias:
                logits[:, token] += value
        if self.repetition != 1:
            weaker = torch.where(logits > 0, logits / self.repetition, logits * self.repetition)
            logits = torch.where(seen, weaker, logits)
        if self.presence:
            logits = logits - self.presence * written
        return self._kept(logits / self.temperature).log_softmax(-1)

    def _kept(self, logits: Tensor) -> Tensor:
        """Return the logits with -inf where min-p, top-k or top-p drop the token."""
        if self.min_p:
            top = logits.amax(-1, keepdim=True)
            floor = torch.log(torch.tensor(self.min_p))
            logits = logits.masked_fill(logits < top + floor, -torch.inf)
        if self.top_k:
            least = logits.topk(self.top_k, -1).values[:, -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        if self.top_p < 1:
            ordered, index = logits.sort(-1, descending=True)
            probabilities = ordered.softmax(-1)
            before = probabilities.cumsum(-1) - probabilities
            dropped = torch.zeros_like(before, dtype=torch.bool)
            dropped.scatter_(-1, index, before >= self.top_p)
            logits = logits.masked_fill(dropped, -torch.inf)
        return logits
