"""Faults where the two sides saw different contexts before the same response tokens."""

from __future__ import annotations

import numpy as np

from tests.faults.other.models import PAD
from tests.faults.other.registry import kind
from tests.faults.other.sampling import View, plain_view
from tests.faults.other.tables import Fault, Plan
from tests.faults.other.weights import drifted

SAME = (
    "context-differs",
    "prompt-template",
    "prompt-truncated",
    "bos-differs",
    "attention-to-padding",
    "position-ids",
    "packing-leak",
)
# For a begin token, positions or packing, often the table shows only that two passes differ.
FAINT_ALSO = (*SAME, "forwards-differ", "weights-differ", "prefix-cache-stale")


def faint(slug: str, *more: str) -> Fault:
    """Return a fault that may look like an ordinary difference of two forward passes."""
    also = tuple(name for name in FAINT_ALSO if name != slug)
    return Fault(slug, "weights", (*also, *more), ("broken", "inconclusive"))


def with_prompt(plan: Plan, change) -> None:
    """Let the trainer read another prompt; the response keeps its positions."""

    def view(row: int, prompt: np.ndarray, response: np.ndarray) -> View:
        other = change(row, prompt)
        plain = plain_view(other, response)
        plain.positions = plain.positions + len(prompt) - len(other)
        return plain

    plan.view = view


@kind("prompt-truncated", prompt_lengths=(10, 60))
def truncated(plan: Plan) -> Fault:
    keep = int(plan.rng.integers(3, 12))
    with_prompt(plan, lambda row, prompt: prompt[-keep:])
    return Fault("prompt-truncated", "broken", SAME, ("inconclusive",))


@kind("another prompt", group_size=4, prompt_lengths=(10, 40))
def another(plan: Plan) -> Fault:
    order = np.roll(np.arange(plan.rows), plan.group_size)
    with_prompt(plan, lambda row, prompt: plan.prompts[order[row]])
    return Fault("context-differs", "broken", (*SAME, "rows-swapped"), ("inconclusive",))


@kind("prompt-template")
def template(plan: Plan) -> Fault:
    """Put a fixed system prompt in front on one side."""
    system = plan.rng.integers(4, plan.vocabulary, int(plan.graded(4, 30)))
    with_prompt(plan, lambda row, prompt: np.concatenate([prompt[:1], system, prompt[1:]]))
    return faint("prompt-template")


@kind("bos-differs", prompt_lengths=(3, 10))
def bos(plan: Plan) -> Fault:
    with_prompt(plan, lambda row, prompt: prompt[1:])
    return faint("bos-differs")


@kind("context-stripped", tools=True)
def stripped(plan: Plan) -> Fault:
    """Leave the tool's output out of the trainer's context of the second turn."""
    forced = plan.forced
    assert forced is not None

    def view(row: int, prompt: np.ndarray, response: np.ndarray) -> View:
        kept = forced[row, : len(response)] < 0
        inputs = np.concatenate([prompt, response[kept]])
        before = np.concatenate([[0], np.cumsum(kept)[:-1]])
        return View(inputs, len(prompt) - 1 + before, response)

    plan.view = view
    also = ("context-differs", "shift-after-tool")
    return Fault("context-stripped", "broken", also, ("inconclusive",))


@kind("position-ids")
def positions(plan: Plan) -> Fault:
    """Start the positions of the response at 0 again."""

    def view(row: int, prompt: np.ndarray, response: np.ndarray) -> View:
        plain = plain_view(prompt, response)
        plain.positions = np.concatenate([np.arange(len(prompt)), np.arange(len(response))])
        return plain

    plan.view = view
    return faint("position-ids")


@kind("attention-to-padding", group_size=4)
def padding(plan: Plan) -> Fault:
    longest = max(len(prompt) for prompt in plan.prompts)

    def view(row: int, prompt: np.ndarray, response: np.ndarray) -> View:
        pads = np.full(longest - len(prompt), PAD)
        plain = plain_view(np.concatenate([pads, prompt]), response)
        real = len(prompt) + len(response)
        plain.positions = np.concatenate([np.zeros(len(pads), int), np.arange(real)])
        return plain

    plan.view = view
    return faint("attention-to-padding")


@kind("packing-leak")
def packing(plan: Plan) -> Fault:
    """Score every second row with the preceding row in its context."""
    last: dict[int, np.ndarray] = {}

    def view(row: int, prompt: np.ndarray, response: np.ndarray) -> View:
        plain = plain_view(prompt, response)
        last[row] = plain.inputs[-60:]
        if row % 2 == 0 or row - 1 not in last:
            return plain
        before = last[row - 1]
        positions = np.concatenate([np.arange(len(before)), plain.positions])
        inputs = np.concatenate([before, plain.inputs])
        return View(inputs, plain.read + len(before), response, positions)

    plan.view = view
    return faint("packing-leak")


@kind("prefix-cache-stale", prompt_lengths=(10, 60))
def prefix(plan: Plan) -> Fault:
    """Compute the sampler's prompt state with older weights; it records what it sampled from."""
    plan.prefix = drifted(plan, 3.0 * plan.graded(0.1, 0.6))
    return faint("prefix-cache-stale", "stale-weights")
