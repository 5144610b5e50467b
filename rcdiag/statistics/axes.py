"""What tokens are sorted by in profiles. To add a profile: one entry in `PROFILES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rcdiag.statistics.block import Block
from rcdiag.statistics.ratios import Array

PROBABILITIES = (1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9, 0.99)
ENTROPIES = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
POSITIONS = tuple(2**power for power in range(18))
TURNS = tuple(range(2, 11))


@dataclass(frozen=True, slots=True)
class Axis:
    """What tokens are sorted by: `values` of a block, None where the block has none."""

    title: str
    unit: str
    edges: tuple[float, ...]  # bins are [edge, next edge), and what lies below and above
    # [tokens], or [sequences] where all tokens of a sequence share it
    values: Callable[[Block], NDArray | None]
    about: str
    logarithmic: bool = False  # values are logs of what the edges say
    whole_from: int | None = None  # values are whole numbers, of which this is the least

    def labels(self) -> list[str]:
        """Of every bin, len(edges) + 1."""
        if self.whole_from is None:
            inner = [f"{a:g}-{b:g}" for a, b in pairwise(self.edges)]
            return [f"< {self.edges[0]:g}", *inner, f">= {self.edges[-1]:g}"]
        starts = [self.whole_from, *map(int, self.edges)]
        inner = [f"{a}" if a == b - 1 else f"{a}-{b - 1}" for a, b in pairwise(starts)]
        return [*inner, f"{starts[-1]}+"]


def _mean_log_prob(block: Block) -> Array:
    return 0.5 * (block.values.behavior + block.values.target)


def _turn(block: Block) -> NDArray:
    return np.ones(len(block.lengths), np.int64) if block.turn is None else block.turn


def _reward_sign(block: Block) -> Array | None:
    return None if block.reward is None else np.sign(block.reward)


def _entropy(block: Block) -> Array | None:
    """Of the policy that trains if it is there: it is listed last."""
    return list(block.entropy.values())[-1] if block.entropy else None


PROFILES: dict[str, Axis] = {
    "position": Axis(
        "position in the response",
        "tokens before",
        POSITIONS,
        lambda block: block.position,
        "Growth with the position points at attention, position encoding or cache; noise is flat.",
        whole_from=0,
    ),
    "length": Axis(
        "sampled tokens of the sequence",
        "tokens",
        tuple(2**power for power in range(4, 18)),
        lambda block: block.lengths,
        "Longer sequences collect more log-ratio; per token it should not depend on the length.",
        whole_from=1,
    ),
    "behavior_probability": Axis(
        "probability under the behavior policy",
        "",
        PROBABILITIES,
        lambda block: block.values.behavior,
        "Rounding shows at low probabilities. A bin of low behavior probabilities holds more than "
        "its share of tokens that this policy underrates, which lifts the mean log-ratio there.",
        logarithmic=True,
    ),
    "target_probability": Axis(
        "probability under the target policy",
        "",
        PROBABILITIES,
        lambda block: block.values.target,
        "The same by the target's probability: here selection lowers the mean of low bins.",
        logarithmic=True,
    ),
    "mean_probability": Axis(
        "geometric mean of both probabilities",
        "",
        PROBABILITIES,
        _mean_log_prob,
        "Symmetric in both policies, so free of that selection: believe this one.",
        logarithmic=True,
    ),
    "entropy": Axis(
        "entropy of the next-token distribution",
        "nats",
        ENTROPIES,
        _entropy,
        "Where the model hesitates numerical noise shows, where it is sure it does not.",
    ),
    "turn": Axis(
        "turn",
        "",
        TURNS,
        _turn,
        "Turns after a tool's answer see text that the policy did not write.",
        whole_from=1,
    ),
    "reward": Axis(
        "sign of the reward",
        "",
        (0.0, 1.0),
        _reward_sign,
        "A difference between signs biases the gradient even where the mean mismatch is small.",
    ),
}
LABELS = {"reward": ["negative", "zero", "positive"]}
