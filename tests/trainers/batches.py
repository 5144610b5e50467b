"""Batches on which trainers' own numbers are stored: three policies, holes in the mask.

Every log-prob is a multiple of 1/1024, so that float32 holds it exactly, but for the toy's, whose
numbers are written by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rcdiag.table.trajectories import Ragged, Trajectories


@dataclass(frozen=True, slots=True)
class Batch:
    """Log-probs and mask [rows, longest], advantages [rows]; 0 beyond the response."""

    old: np.ndarray  # of the trainer before the update
    rollout: np.ndarray
    current: np.ndarray  # of the trainer in the update
    response: np.ndarray  # mask of the response, tool tokens included
    mask: np.ndarray  # mask of the sampled tokens
    advantages: np.ndarray

    def trajectories(self, rows: slice = slice(None)) -> Trajectories:
        """Convert to trajectories: the whole response, including masked tokens."""
        within = self.response[rows]
        lengths = within.sum(axis=1)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        first, _, _ = rows.indices(len(self.mask))
        return Trajectories(
            first_row=first,
            response_ids=Ragged(np.zeros(within.sum(), np.int32), offsets),
            mask=self.mask[rows][within],
            log_probs={
                name: getattr(self, name)[rows][within] for name in ("rollout", "old", "current")
            },
            advantage=self.advantages[rows],
        )

    @property
    def token_advantages(self) -> np.ndarray:
        return np.broadcast_to(self.advantages[:, None], self.mask.shape).copy()


def toy() -> Batch:
    """Make two rows; the masked token of the second is a tool token with sampler log-prob 0."""
    old = np.array([[-0.5, -1.0, -2.0, 0, 0, 0], [-0.1, -0.2, -0.3, -0.1, -5.0, -0.2]])
    rollout = np.array([[-0.4, -1.1, -1.0, 0, 0, 0], [-0.1, -0.25, -0.2, 0.0, -2.0, -0.2]])
    mask = np.array([[1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 1, 1]], np.bool_)
    response = np.arange(6) < np.array([[3], [6]])
    return Batch(old, rollout, old, response, mask, np.array([1.0, -1.0]))


def drawn(seed: int, lengths: list[int], spread: float, holes: float = 0.2) -> Batch:
    """Draw rows of these lengths, with log-ratios of old to rollout of this spread, nats."""
    draw = np.random.default_rng(seed)
    shape = (len(lengths), max(lengths))
    within = np.arange(shape[1]) < np.array(lengths)[:, None]
    mask = within & (draw.random(shape) >= holes)
    rollout = -draw.exponential(1.0, shape)
    old = np.minimum(rollout + draw.normal(0.0, spread, shape), 0.0)
    current = np.minimum(old + draw.normal(0.0, 0.25, shape), 0.0)
    advantages = np.round(draw.normal(0.0, 1.0, len(lengths)) * 64) / 64
    old, rollout, current = (
        np.where(within, np.round(each * 1024) / 1024, 0.0) for each in (old, rollout, current)
    )
    return Batch(old, rollout, current, within, mask, advantages + 0.0)


def beyond() -> Batch:
    """Make a batch with log-ratios beyond 20 nats, where some trainers clamp, and an empty row."""
    batch = drawn(3, [4, 6, 2, 5], 0.5)
    old, rollout, mask = batch.old.copy(), batch.rollout.copy(), batch.mask.copy()
    old[0, 1], rollout[0, 1], mask[0, 1] = -26.5, -1.25, True
    old[1, 2], rollout[1, 2], mask[1, 2] = -0.5, -22.0, True
    mask[2] = False
    return replace(batch, old=old, rollout=rollout, mask=mask)


def missing() -> Batch:
    """Make a batch with a NaN sampler log-prob in each of two rows."""
    batch = drawn(4, [5, 7, 3], 0.4)
    rollout, mask = batch.rollout.copy(), batch.mask.copy()
    rollout[0, 2], mask[0, 2] = np.nan, True
    rollout[1, 4], mask[1, 4] = np.nan, True
    return replace(batch, rollout=rollout, mask=mask)


def infinite() -> Batch:
    """Make a batch with a sampler log-prob of minus infinity."""
    batch = drawn(5, [4, 6, 5], 0.4)
    rollout, mask = batch.rollout.copy(), batch.mask.copy()
    rollout[1, 3], mask[1, 3] = -np.inf, True
    return replace(batch, rollout=rollout, mask=mask)


BATCHES = {
    "toy": toy(),
    "mild": drawn(1, [9, 4, 12, 7, 1, 10], 0.05),
    "rough": drawn(2, [6, 11, 3, 8, 5], 1.2),
    "beyond": beyond(),
    "missing": missing(),
    "infinite": infinite(),
}
# AReaL refuses infinities, and SkyRL's and NeMo-RL's samplers return a finite floor.
WITHOUT_INFINITY = {name: batch for name, batch in BATCHES.items() if name != "infinite"}
