"""Faults that put the right log-probs at the wrong tokens, or hold those of other tokens."""

from __future__ import annotations

import numpy as np

from tests.faults.other.models import EOS, PAD
from tests.faults.other.registry import kind
from tests.faults.other.sampling import View, plain_view
from tests.faults.other.tables import Columns, Fault, Plan


def shifted(row: np.ndarray, by: int, fill: float) -> np.ndarray:
    out = np.full_like(row, fill)
    if by > 0:
        out[by:] = row[:-by]
    else:
        out[:by] = row[-by:]
    return out


def edit_rows(plan: Plan, change, side: str) -> None:
    """Apply `change(row index, log-probs of the row)` to a column."""

    def edit(columns: Columns, sample, scores) -> None:
        pieces = columns.split(getattr(columns, side))
        new = [change(row, piece) for row, piece in enumerate(pieces)]
        setattr(columns, side, np.concatenate(new))

    plan.edits.append(edit)


def side(plan: Plan) -> str:
    return str(plan.rng.choice(["rollout", "old"]))


@kind("shift-by-one", tools=False)
def shift(plan: Plan) -> Fault:
    by = int(plan.rng.choice([-1, 1]))
    edit_rows(plan, lambda row, x: shifted(x, by, 0.0), side(plan))
    return Fault("shift-by-one", "broken")


@kind("shift-some-rows", tools=False)
def shift_some(plan: Plan) -> Fault:
    by = int(plan.rng.choice([-1, 1]))
    chosen = plan.rng.random(plan.rows) < plan.graded(0.05, 0.5)
    chosen[:2] = True
    edit_rows(plan, lambda row, x: shifted(x, by, 0.0) if chosen[row] else x, side(plan))
    return Fault("shift-some-rows", "broken")


@kind("shift-after-tool", tools=True)
def shift_after_tool(plan: Plan) -> Fault:
    forced = plan.forced
    assert forced is not None

    def change(row: int, x: np.ndarray) -> np.ndarray:
        tool = np.flatnonzero(forced[row, : len(x)] >= 0)
        if not len(tool) or tool[-1] + 1 >= len(x):
            return x
        after = tool[-1] + 1
        return np.concatenate([x[:after], shifted(x[after:], 1, x[after - 1])])

    edit_rows(plan, change, side(plan))
    return Fault("shift-after-tool", "broken", ("shift-some-rows",))


@kind("rows-swapped", tools=False)
def swapped(plan: Plan) -> Fault:
    """Permute a share of one column's rows, cropped or filled to each row's length."""
    share = float(plan.rng.choice([0.1, 0.3, 1.0]))
    which = side(plan)

    def edit(columns: Columns, sample, scores) -> None:
        pieces = columns.split(getattr(columns, which))
        chosen = plan.rng.permutation(len(pieces))[: max(4, int(share * len(pieces)))]
        # Swap rows of similar length, as when a sort by length was not undone.
        chosen = chosen[np.argsort(columns.lengths[chosen], kind="stable")]
        new = list(pieces)
        for to, source in zip(chosen, np.roll(chosen, 1), strict=True):
            new[to] = np.resize(pieces[source], len(pieces[to]))
        setattr(columns, which, np.concatenate(new))

    plan.edits.append(edit)
    return Fault("rows-swapped", "broken")


@kind("logits-not-shifted")
def not_shifted(plan: Plan) -> Fault:
    def view(row: int, prompt: np.ndarray, response: np.ndarray) -> View:
        plain = plain_view(prompt, response)
        plain.read = plain.read + 1
        return plain

    plan.view = view
    return Fault("logits-not-shifted", "broken")


@kind("mask-includes-tool, zeros", tools=True)
def mask_zeros(plan: Plan) -> Fault:
    def edit(columns: Columns, sample, scores) -> None:
        columns.rollout = np.where(sample.free, columns.rollout, 0.0)
        columns.mask = np.ones_like(columns.mask)

    plan.edits.append(edit)
    return Fault("mask-includes-tool", "broken", ("zero-placeholder",))


@kind("mask-includes-tool, scored again", tools=True)
def mask_scored(plan: Plan) -> Fault:
    def edit(columns: Columns, sample, scores) -> None:
        columns.mask = np.ones_like(columns.mask)

    plan.edits.append(edit)
    # Both columns hold the models' log-probs of the tool's tokens, so it hardly shows.
    also = ("engine-noise", "healthy", "forwards-differ", "batch-noise", "moe-routing")
    return Fault("mask-includes-tool", "open", also, ("broken",))


@kind("eos-one-sided", hazard=0.05, tools=False)
def end_token(plan: Plan) -> Fault:
    def view(row: int, prompt: np.ndarray, response: np.ndarray) -> View:
        plain = plain_view(prompt, response)
        plain.targets = np.where(response == EOS, PAD, response)
        return plain

    plan.view = view
    return Fault("eos-one-sided", "broken", ("special-token-ids", "mask-drops-last"))


@kind("special-token-ids")
def special_ids(plan: Plan) -> Fault:
    """Replace two common ids by two others in the trainer's vocabulary."""
    pilot = plan.pilot.tokens
    ids, counts = np.unique(pilot[pilot > 3], return_counts=True)
    common = ids[np.argsort(-counts)][1:3]
    mapped = np.arange(plan.vocabulary)
    mapped[common] = plan.rng.integers(4, plan.vocabulary, len(common))

    def view(row: int, prompt: np.ndarray, response: np.ndarray) -> View:
        return plain_view(mapped[prompt], mapped[response])

    plan.view = view
    also = ("retokenised", "eos-one-sided", "vocab-shard-wrong")
    return Fault("special-token-ids", "broken", also)


@kind("retokenised")
def retokenised(plan: Plan) -> Fault:
    """Let the trainer read two other tokens for the same text at some places."""
    share, rng = plan.graded(0.01, 0.05), plan.rng

    def view(row: int, prompt: np.ndarray, response: np.ndarray) -> View:
        response = response.copy()
        for at in np.flatnonzero(rng.random(len(response) - 1) < share):
            response[at : at + 2] = rng.integers(4, plan.vocabulary, 2)
        return plain_view(prompt, response)

    plan.view = view
    also = ("special-token-ids", "context-differs", "forwards-differ")
    return Fault("retokenised", "broken", also)
