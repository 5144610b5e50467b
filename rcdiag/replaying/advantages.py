"""Advantages from rewards and groups, as trainers compute them: one per sequence.

To add one: a function and one line in ADVANTAGES. All take rewards [rows], the group of each row
[rows] and its number of unmasked tokens [rows], and give [rows].
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

GRPO_EPSILON = 1e-6
WHITEN_EPSILON = 1e-8


def _groups(group: NDArray, reward: Array) -> tuple[Integers, Array, Array]:
    """Index of each row's group, its size and its mean reward, both [rows]."""
    _, index = np.unique(group, return_inverse=True)
    sizes = np.bincount(index)
    means = np.bincount(index, weights=reward) / sizes
    return index, sizes[index].astype(np.float64), means[index]


def grpo(reward: Array, group: NDArray, lengths: Integers) -> Array:
    """(r - mean) / (std + 1e-6) within the group, std with n - 1; of one row: mean 0, std 1.

    As verl's compute_grpo_outcome_advantage. Source: DeepSeekMath 2402.03300, 4.1.
    """
    index, sizes, means = _groups(group, reward)
    squares = np.bincount(index, weights=np.square(reward - means))[index]
    alone = sizes < 2
    spread = np.where(alone, 1.0, np.sqrt(squares / np.where(alone, 1.0, sizes - 1.0)))
    return np.where(alone, reward, reward - means) / (spread + GRPO_EPSILON)


def rloo(reward: Array, group: NDArray, lengths: Integers) -> Array:
    """Reward less the mean of the others of the group; a group of one keeps its reward.

    = n / (n - 1) (r - mean). Source: Ahmadian et al. 2402.14740.
    """
    _, sizes, means = _groups(group, reward)
    alone = sizes < 2
    factor = sizes / np.where(alone, 1.0, sizes - 1.0)
    return np.where(alone, reward, factor * (reward - means))


def reinforce_plus_plus(reward: Array, group: NDArray, lengths: Integers) -> Array:
    """Rewards whitened over all tokens of the batch, variance with N - 1, discount 1.

    Source: Hu 2501.03262; the outcome reward is at the last token, so every token's return is it.
    """
    total = lengths.sum()
    mean = (reward * lengths).sum() / total
    variance = (np.square(reward - mean) * lengths).sum() / max(total - 1, 1)
    return (reward - mean) / np.sqrt(variance + WHITEN_EPSILON)


ADVANTAGES: dict[str, Callable[[Array, NDArray, Integers], Array]] = {
    "grpo": grpo,
    "rloo": rloo,
    "reinforce++": reinforce_plus_plus,
}
