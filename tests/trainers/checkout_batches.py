"""Small batches for which numbers of trainers are stored: log-probs, masks, advantages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.corrections.builders import Padded

Rows = list[list[float]]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of unequal lengths; masked positions are 0, as samplers store at tool tokens."""

    old: Rows
    rollout: Rows
    mask: list[list[int]]
    advantages: list[float]  # one per row

    @property
    def lengths(self) -> list[int]:
        return [len(row) for row in self.mask]

    def grid(self, rows: Rows | list[list[int]]) -> NDArray[np.float64]:
        """Return rows as [rows, longest], 0 at padding."""
        filled = np.zeros((len(rows), max(map(len, rows))))
        for index, row in enumerate(rows):
            filled[index, : len(row)] = row
        return filled

    def padded(self) -> Padded:
        """Return the log-probs and the mask [rows, longest]."""
        mask = self.grid(self.mask) > 0
        return Padded(self.grid(self.old), self.grid(self.rollout), mask)


TOY = Batch(
    old=[[-0.5, -1.0, -2.0], [-0.1, -0.2, -0.3, -0.1, -5.0, -0.2]],
    rollout=[[-0.4, -1.1, -1.0], [-0.1, -0.25, -0.2, 0.0, -2.0, -0.2]],
    mask=[[1, 1, 1], [1, 1, 1, 0, 1, 1]],
    advantages=[1.0, -1.0],
)


def drawn(seed: int, lengths: list[int], sd: float, bias: float = 0.0) -> Batch:
    """Draw log-probs of six decimals; a sixth of the tokens is masked, advantages sum to 0."""
    random = np.random.default_rng(seed)
    old, rollout, mask = [], [], []
    for length in lengths:
        sampled = -random.exponential(1.0, length) - 0.001
        trained = np.minimum(sampled + random.normal(bias, sd, length), -0.0001)
        unmasked = random.random(length) > 1 / 6
        unmasked[0] = True
        old.append(np.round(np.where(unmasked, trained, -0.3), 6).tolist())
        rollout.append(np.round(np.where(unmasked, sampled, 0.0), 6).tolist())
        mask.append(unmasked.astype(int).tolist())
    advantages = np.round(random.normal(0.0, 1.0, len(lengths)), 3)
    return Batch(old, rollout, mask, np.round(advantages - advantages.mean(), 3).tolist())


def _with(batch: Batch, row: int, at: int, value: float) -> Batch:
    """Return the batch with a different sampler log-prob at one unmasked token."""
    rollout = [list(values) for values in batch.rollout]
    assert batch.mask[row][at]
    rollout[row][at] = value
    return Batch(batch.old, rollout, batch.mask, batch.advantages)


MILD = drawn(11, [7, 3, 12, 5, 9, 1], sd=0.08)
WILD = drawn(12, [4, 11, 8, 2, 15], sd=0.9, bias=-0.2)
BATCHES = {
    "toy": TOY,
    "mild": MILD,
    "wild": WILD,
    "advantage 0": Batch(WILD.old, WILD.rollout, WILD.mask, [0.0, 0.7, -0.4, 0.0, -0.3]),
    "a row without a token": Batch(
        [*TOY.old, [-0.4, -0.9]],
        [*TOY.rollout, [0.0, 0.0]],
        [*TOY.mask, [0, 0]],
        [1.0, -1.0, 0.5],
    ),
    "a log-prob that is NaN": _with(MILD, 2, 0, float("nan")),
}


def moved(batch: Batch, seed: int) -> Rows:
    """Draw log-probs of a policy that differs from the old one by an update."""
    random = np.random.default_rng(seed)
    return [
        np.round(np.minimum(np.array(row) + random.normal(0.0, 0.25, len(row)), -1e-4), 6).tolist()
        for row in batch.old
    ]


# Batches for which losses of an update are stored, with current log-probs.
CURRENT = {"toy": moved(TOY, 21), "wild": moved(WILD, 22), "advantage 0": moved(WILD, 22)}
