"""Reference updates in plain torch, float64, row by row, independent of rcdiag."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

# Log-probs of a row's unmasked tokens (current, old, rollout), its advantage -> token losses.
TokenLoss = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def clipped(current: Tensor, anchor: Tensor, advantage: float) -> Tensor:
    ratio = (current - anchor).exp()
    losses = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
    return torch.clamp(losses, max=-advantage * 3.0) if advantage < 0 else losses


def naive(current: Tensor, old: Tensor, rollout: Tensor, advantage: float) -> Tensor:
    return clipped(current, old, advantage)


def decoupled_token_is(current: Tensor, old: Tensor, rollout: Tensor, advantage: float) -> Tensor:
    return (old - rollout).exp().clamp(max=2.0) * clipped(current, old, advantage)


def bypass_ppo_clip(current: Tensor, old: Tensor, rollout: Tensor, advantage: float) -> Tensor:
    return clipped(current, rollout, advantage)


def bypass_pg_is(current: Tensor, old: Tensor, rollout: Tensor, advantage: float) -> Tensor:
    weight = (current.detach() - rollout).sum().exp().clamp(max=2.0)
    return -advantage * weight * current


LOSSES: dict[str, TokenLoss] = {
    "naive": naive,
    "decoupled_token_is": decoupled_token_is,
    "bypass_ppo_clip": bypass_ppo_clip,
    "bypass_pg_is": bypass_pg_is,
}


@dataclass(frozen=True)
class Plain:
    """A model, and the rows of a table with an unmasked token."""

    model: Any
    rows: list[dict[str, Any]]

    @classmethod
    def load(cls, folder: Path, table: Path, step: int | None = None) -> Plain:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
        rows = [row for row in pq.read_table(table).to_pylist() if any(row["response_mask"])]
        return cls(model, [row for row in rows if step is None or row["step"] == step])

    def laws(self, row: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return log-probs [unmasked tokens, vocabulary], and the tokens."""
        prompt, response = row["prompt_ids"], row["response_ids"]
        logits = self.model(torch.tensor([prompt + response])).logits[0]
        laws = torch.log_softmax(logits / row["temperature"], dim=-1)
        expected = torch.tensor(row["response_mask"], dtype=torch.bool)
        return laws[len(prompt) - 1 : -1][expected], torch.tensor(response)[expected]

    def log_probs(self, row: dict[str, Any]) -> Tensor:
        laws, tokens = self.laws(row)
        return laws.gather(1, tokens[:, None])[:, 0]

    @torch.no_grad()
    def all_log_probs(self) -> np.ndarray:
        return torch.cat([self.log_probs(row) for row in self.rows]).numpy()

    @torch.no_grad()
    def entropy(self) -> float:
        laws = torch.cat([self.laws(row)[0] for row in self.rows])
        return float(-(laws.exp() * laws).sum(dim=-1).mean())

    def loss(self, of_token: TokenLoss, chosen: Sequence[int], olds: list[Tensor]) -> Tensor:
        """Return the mean loss over the tokens of the chosen rows."""
        losses = []
        for index in chosen:
            row = self.rows[index]
            mask = np.array(row["response_mask"], bool)
            rollout = torch.tensor(np.array(row["rollout_log_probs"])[mask])
            current = self.log_probs(row)
            losses.append(of_token(current, olds[index], rollout, row["advantage"]))
        return torch.cat(losses).mean()

    def olds(self) -> list[Tensor]:
        with torch.no_grad():
            return [self.log_probs(row) for row in self.rows]

    def train(
        self,
        of_token: TokenLoss,
        optimizer: torch.optim.Optimizer,
        chunks: Sequence[Sequence[int]],
        max_grad_norm: float | None = None,
    ) -> None:
        olds = self.olds()
        for chosen in chunks:
            optimizer.zero_grad()
            self.loss(of_token, chosen, olds).backward()
            if max_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_grad_norm)
            optimizer.step()


def k3(behavior: np.ndarray, target: np.ndarray) -> float:
    log_ratio = target - behavior
    return float((np.exp(log_ratio) - 1.0 - log_ratio).mean())
