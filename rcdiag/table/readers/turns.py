"""Calls of a model that carry their whole context are joined into trajectories.

A call belongs to the trajectory whose tokens its prompt begins with; the tokens between are those
of tools and templates, which nobody sampled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

Tokens = NDArray[np.int32]


class Turn(Struct, frozen=True):
    """A sampled sequence, with the whole context before it."""

    number: int  # of its record in the file
    call: Any  # sequences of one call start from the same context, and do not follow each other
    prompt: Tokens | None  # None where it is not recorded
    tokens: Tokens
    log_probs: NDArray[np.float32] | None
    columns: dict[str, Any] = field(default_factory=dict)


class Trajectory(Struct):
    """Turns of which each one's prompt begins with the tokens of all before it."""

    turns: list[Turn]

    @property
    def tokens(self) -> Tokens | None:
        """Return all tokens so far, those of the prompt included."""
        last = self.turns[-1]
        return None if last.prompt is None else np.concatenate([last.prompt, last.tokens])

    def goes_on_in(self, turn: Turn) -> bool:
        known = self.tokens
        if known is None or turn.prompt is None or turn.call == self.turns[-1].call:
            return False
        return len(turn.prompt) >= len(known) and np.array_equal(turn.prompt[: len(known)], known)

    def row(self) -> tuple[int, dict[str, Any]]:
        """Return the number of its first record, and a row of the table."""
        first, last = self.turns[0], self.turns[-1]
        prompt = first.prompt
        if prompt is None:
            return first.number, {
                "response_ids": first.tokens,
                "rollout_log_probs": first.log_probs,
                "response_mask": np.ones(len(first.tokens), np.uint8),
            }
        assert last.prompt is not None
        response = np.concatenate([last.prompt[len(prompt) :], last.tokens])
        mask = np.zeros(len(response), np.uint8)
        log_probs = np.zeros(len(response), np.float32)
        for turn in self.turns:
            assert turn.prompt is not None
            start = len(turn.prompt) - len(prompt)
            mask[start : start + len(turn.tokens)] = 1
            if turn.log_probs is not None:
                log_probs[start : start + len(turn.tokens)] = turn.log_probs
        measured = all(turn.log_probs is not None for turn in self.turns)
        return first.number, {
            "prompt_ids": prompt,
            "response_ids": response,
            "response_mask": mask,
            "rollout_log_probs": log_probs if measured else None,
        }


def trajectories(turns: Iterable[Turn]) -> list[Trajectory]:
    """Return turns, in the order in which they were sampled, joined where they go on."""
    out: list[Trajectory] = []
    for turn in turns:
        before = [trajectory for trajectory in out if trajectory.goes_on_in(turn)]
        if before:
            longest = max(before, key=lambda each: 0 if each.tokens is None else len(each.tokens))
            longest.turns.append(turn)
        else:
            out.append(Trajectory([turn]))
    return out
