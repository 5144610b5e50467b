"""Made-up responses for the readers of padded batches, and padded matrices as in trainers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rcdiag.table.opening import open_table

PAD = 7  # also a token of every response: padding cannot be recognised by its id
COLUMNS = ("rollout_log_probs", "old_log_probs", "ref_log_probs", "old_entropy", "advantages")


@dataclass
class Rollouts:
    """Expected rows of a table."""

    rows: list[dict[str, Any]]
    prompt_width: int
    response_width: int

    def __len__(self) -> int:
        return len(self.rows)

    def but_for(self, *rows: int) -> Rollouts:
        """Return these rows without some of them."""
        kept = [row for number, row in enumerate(self.rows) if number not in rows]
        return Rollouts(kept, self.prompt_width, self.response_width)

    def column(self, name: str) -> list[Any]:
        return [row[name] for row in self.rows]

    def matrix(self, name: str, kind: torch.dtype, fill: float = 0, right: bool = False) -> Any:
        """Return a column as a padded matrix, padded on the left with `right`."""
        width = self.prompt_width if name == "prompt_ids" else self.response_width
        matrix = torch.full((len(self), width), fill, dtype=kind)
        for index, values in enumerate(self.column(name)):
            part = slice(width - len(values), width) if right else slice(0, len(values))
            matrix[index, part] = torch.tensor(values, dtype=kind)
        return matrix

    def attention(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the attention masks of prompts, padded left, and of responses, padded right."""
        ones = Rollouts(
            [{name: [1] * len(row[name]) for name in ("prompt_ids", "response_ids")}
             for row in self.rows],
            self.prompt_width, self.response_width,
        )  # fmt: skip
        prompts = ones.matrix("prompt_ids", torch.int64, right=True)
        return prompts, ones.matrix("response_ids", torch.int64)


def rollouts(count: int = 8, seed: int = 0, group: int = 2) -> Rollouts:
    """Return rows with tool tokens, the id of padding inside, an empty response and full ones."""
    random = np.random.default_rng(seed)
    rows = []
    for row in range(count):
        size = {0: 0, 1: 12}.get(row, int(random.integers(1, 12)))
        ids = random.integers(0, 150_000, size)
        ids[-1:] = PAD
        mask = (random.random(size) > 0.3).astype(int)
        mask[-2:] = row % 2  # the last tokens of even rows are tool tokens

        def values(scale: float = 1.0, size: int = size) -> list[float]:
            return (-random.exponential(scale, size) - 0.01).astype(np.float32).tolist()

        rows.append(
            {
                "prompt_ids": np.random.default_rng([seed, row // group])
                .integers(0, 150_000, 1 + (row // group) % 6)
                .tolist(),
                "response_ids": ids.tolist(),
                "response_mask": mask.tolist(),
                "group_id": f"uid-{seed}-{row // group}",
                "reward": float(np.float32(random.normal())),
                **{name: values() for name in COLUMNS},
            }
        )
    return Rollouts(rows, 6, 12)


def read(source: Path | str | Sequence[Path], **options: Any) -> tuple[list[dict[str, Any]], Any]:
    """Read a dump; returns its rows and the table."""
    table = open_table(source, **options)
    return [row for batch in table.batches() for row in batch.table.to_pylist()], table


def assert_rows(result: list[dict[str, Any]], truth: list[dict[str, Any]]) -> None:
    """Compare cell by cell; every expected column must be there.

    If log-probs are expected, there must be no others.
    """
    assert len(result) == len(truth)
    for index, (one, other) in enumerate(zip(result, truth, strict=True)):
        for name, value in other.items():
            assert one.get(name) == value, (index, name, one.get(name), value)
        policies = {n for n in other if n.endswith("_log_probs")}
        assert not policies or policies == {n for n in one if n.endswith("_log_probs")}


def only(rows: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{name: row[name] for name in names} for row in rows]
