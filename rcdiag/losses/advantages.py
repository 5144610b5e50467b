"""Advantages computed from rewards and prompt groups as trainers do: one number per sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.entry import Entry

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

GRPO_EPSILON = 1e-6
WHITEN_EPSILON = 1e-8


class Advantage(Struct, frozen=True, kw_only=True):
    """A formula that computes advantages from the rewards of a batch."""

    name: str
    says: str
    formula: str
    source: str
    # (rewards, prompt groups, numbers of unmasked tokens), each [rows] -> advantages [rows].
    function: Callable[[Array, NDArray[Any], Integers], Array]
    by_group: bool = True  # the baseline comes from the other sequences of the prompt
    direction: str = "advantages above 0 make tokens more likely"
    see: tuple[str, ...] = ("advantage", "column", "rejected-in-baseline")

    def __call__(self, reward: Array, group: NDArray[Any], lengths: Integers) -> Array:
        """Return advantages from rewards, prompt groups and numbers of unmasked tokens, [rows]."""
        return self.function(reward, group, lengths)

    def entry(self) -> Entry:
        """Answer `rcdiag explain`: what the advantages are, with an example of three sequences."""
        values = self(np.array([1.0, 0.0, 0.0]), np.zeros(3), np.array([2, 2, 2]))
        numbers = ", ".join(f"{value:.4g}" for value in values)
        return Entry(
            what=f"{self.says} It is the same for all tokens of a sequence. Source: {self.source}.",
            formula=self.formula,
            direction=self.direction,
            example=f"rewards 1, 0, 0 of one prompt, two tokens each: {numbers}",
            see=self.see,
        )


def _groups(group: NDArray[Any], reward: Array) -> tuple[Integers, Array, Array]:
    """Return each row's group index, the size of the group and its mean reward, all [rows]."""
    _, index = np.unique(group, return_inverse=True)
    sizes = np.bincount(index)
    means = np.bincount(index, weights=reward) / sizes
    return index, sizes[index].astype(np.float64), means[index]


def grpo(reward: Array, group: NDArray[Any], lengths: Integers) -> Array:
    """Return (r - mean) / (std + 1e-6) within the group; for a group of one, mean 0 and std 1."""
    index, sizes, means = _groups(group, reward)
    squares = np.bincount(index, weights=np.square(reward - means))[index]
    alone = sizes < 2
    spread = np.where(alone, 1.0, np.sqrt(squares / np.where(alone, 1.0, sizes - 1.0)))
    return np.where(alone, reward, reward - means) / (spread + GRPO_EPSILON)


GRPO = Advantage(
    name="grpo",
    says="Reward minus the mean of its prompt group, divided by the group's standard deviation; "
    "a group of one keeps its reward.",
    formula="(reward - mean) / (std + 1e-6), std with n - 1",
    source="arXiv 2402.03300, section 4.1; verl/trainer/ppo/core_algos.py, "
    "compute_grpo_outcome_advantage",
    function=grpo,
)


def rloo(reward: Array, group: NDArray[Any], lengths: Integers) -> Array:
    """Return the reward minus the mean of the group's others: n / (n - 1) (r - mean).

    A group of one keeps its reward.
    """
    _, sizes, means = _groups(group, reward)
    alone = sizes < 2
    factor = sizes / np.where(alone, 1.0, sizes - 1.0)
    return np.where(alone, reward, factor * (reward - means))


RLOO = Advantage(
    name="rloo",
    says="Reward minus the mean of the others in its prompt group; a group of one keeps its "
    "reward.",
    formula="n / (n - 1) (reward - mean)",
    source="arXiv 2402.14740",
    function=rloo,
)


def reinforce_plus_plus(reward: Array, group: NDArray[Any], lengths: Integers) -> Array:
    """Return rewards whitened over all tokens, with variance over N - 1 and discount 1.

    The outcome reward is at the last token, so every token's return is that reward.
    """
    total = lengths.sum()
    mean = (reward * lengths).sum() / total
    variance = (np.square(reward - mean) * lengths).sum() / max(total - 1, 1)
    whitened: Array = (reward - mean) / np.sqrt(variance + WHITEN_EPSILON)
    return whitened


REINFORCE_PLUS_PLUS = Advantage(
    name="reinforce++",
    says="Reward whitened over all tokens of the batch, whatever the group.",
    formula="(reward - mean over tokens) / sqrt(variance over tokens + 1e-8)",
    source="arXiv 2501.03262",
    function=reinforce_plus_plus,
    by_group=False,
)
