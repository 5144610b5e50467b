"""The two sides saw other contexts before the same response tokens."""

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
# A begin token, positions, packing: often the table shows only that two passes differ.
FAINT_ALSO = (*SAME, "forwards-differ", "weights-differ", "prefix-cache-stale")


def faint(slug: str, *more: str) -> Fault:
    """A fault that a table may show as a difference of two honest passes and no more."""
    also = tuple(name for name in FAINT_ALSO if name != slug)
    return Fault(slug, "weights", (*also, *more), ("broken", "inconclusive"))


def with_prompt(plan: Plan, change) -> None:
    """The trainer read another prompt; the response keeps its positions, as relative ones do."""

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
    """A fixed system prompt in front on one side."""
    system = plan.rng.integers(4, plan.vocabulary, int(plan.graded(4, 30)))
    with_prompt(plan, lambda row, prompt: np.concatenate([prompt[:1], system, prompt[1:]]))
    return faint("prompt-template")


@kind("bos-differs", prompt_lengths=(3, 10))
def bos(plan: Plan) -> Fault:
    with_prompt(plan, lambda row, prompt: prompt[1:])
    return faint("bos-differs")


@kind("context-stripped", tools=True)
def stripped(plan: Plan) -> Fault:
    """The tool's output is not in the trainer's context of the second turn."""
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
    """The positions of the response begin at 0 again."""

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
    """Every second row is scored with the row before it in its context."""
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
    """The sampler's state of the prompt was made by older weights; it recorded honestly."""
    plan.prefix = drifted(plan, 3.0 * plan.graded(0.1, 0.6))
    return faint("prefix-cache-stale", "stale-weights")
