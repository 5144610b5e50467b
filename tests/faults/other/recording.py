"""Faults where the written value is damaged or not the log-prob."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.faults.other.models import PAD
from tests.faults.other.precision import bfloat16
from tests.faults.other.registry import kind
from tests.faults.other.sampling import Sample, Scores, plain_view, score
from tests.faults.other.tables import SILENT, Columns, Fault, Plan
from tests.faults.other.weights import drifted

SMALL = ("engine-noise", "healthy", "bf16-logits", "stored-bfloat16", "stored-float16",
         "stored-rounded")  # fmt: skip


def on_rollout(plan: Plan, change: Callable[[np.ndarray], np.ndarray]) -> None:
    def edit(columns: Columns, sample: Sample, scores: Scores) -> None:
        columns.rollout = change(columns.rollout)

    plan.edits.append(edit)


def on_a_side(plan: Plan, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Apply the fault to the sampler's column or the trainer's."""
    if plan.rng.random() < 0.6:
        on_rollout(plan, change)
        return

    def edit(columns: Columns, sample: Sample, scores: Scores) -> None:
        columns.old = change(columns.old)

    plan.edits.append(edit)


@kind("top-one-recorded")
def top_one(plan: Plan) -> Fault:
    plan.record = "top_one"
    return Fault("top-one-recorded", "broken")


@kind("entropy-recorded, positive")
def entropy_positive(plan: Plan) -> Fault:
    plan.record = "raw_entropy"
    return Fault("entropy-recorded", "broken")


@kind("entropy-recorded, negative")
def entropy_negative(plan: Plan) -> Fault:
    plan.record = "raw_entropy"
    on_rollout(plan, lambda x: -x)
    return Fault("entropy-recorded", "broken")


@kind("draft-recorded")
def draft(plan: Plan) -> Fault:
    """Record the draft model's log-probs for tokens sampled from the target model."""
    small = drifted(plan, plan.graded(0.3, 1.5))

    def edit(columns: Columns, sample: Sample, scores: Scores) -> None:
        rows = sample.rows(sample.tokens)
        views = [plain_view(p, r) for p, r in zip(plan.prompts, rows, strict=True)]
        columns.rollout = score(small, views, plan.rng, SILENT).log_probs

    plan.edits.append(edit)
    # The tokens are the trainer's; the table cannot show that the recorded model is a draft.
    also = ("forwards-differ", "weights-differ")
    return Fault("draft-recorded", "broken", also, ("inconclusive",))


@kind("columns-identical")
def identical(plan: Plan) -> Fault:
    def edit(columns: Columns, sample: Sample, scores: Scores) -> None:
        columns.rollout = columns.old.copy()

    plan.edits.append(edit)
    return Fault("columns-identical", "alone", verdicts=("inconclusive",))


@kind("duplicated-rows")
def duplicated(plan: Plan) -> Fault:
    count = max(4, int(plan.graded(0.05, 0.5) * plan.rows))
    again = plan.rng.choice(plan.rows, count, replace=False)
    order = plan.rng.permutation(np.concatenate([np.arange(plan.rows), again]))

    def edit(columns: Columns, sample: Sample, scores: Scores) -> None:
        columns.repeat = order
        columns.rows.pop("sample_id", None)

    plan.edits.append(edit)
    return Fault("duplicated-rows", "broken")


@kind("dump merged twice", columns=("group_id",), renumbered=True)
def merged(plan: Plan) -> Fault:
    def edit(columns: Columns, sample: Sample, scores: Scores) -> None:
        columns.rows["group_id"] = plan.group
        columns.repeat = np.tile(np.arange(plan.rows), 2)
        columns.rows.pop("sample_id", None)

    plan.edits.append(edit)
    return Fault("duplicated-rows", "broken")


@kind("nan-log-probs")
def not_a_number(plan: Plan) -> Fault:
    share, rng = plan.graded(0.0005, 0.05), plan.rng
    value = float(rng.choice([np.nan, -np.inf]))
    on_a_side(plan, lambda x: np.where(rng.random(len(x)) < share, value, x))
    return Fault("nan-log-probs", "broken")


@kind("zero-placeholder")
def zeros(plan: Plan) -> Fault:
    share, rng = plan.graded(0.02, 0.5), plan.rng
    on_rollout(plan, lambda x: np.where(rng.random(len(x)) < share, 0.0, x))
    return Fault("zero-placeholder", "broken")


@kind("zeros at the first tokens")
def zeros_first(plan: Plan) -> Fault:
    count = int(plan.rng.integers(1, 6))

    def edit(columns: Columns, sample: Sample, scores: Scores) -> None:
        columns.rollout = np.where(columns.place < count, 0.0, columns.rollout)

    plan.edits.append(edit)
    return Fault("zero-placeholder", "broken")


@kind("sentinel")
def sentinel(plan: Plan) -> Fault:
    share, rng = plan.graded(0.001, 0.1), plan.rng
    value = float(rng.choice([-9999.0, -100.0, -1000.0, 1.0]))
    on_a_side(plan, lambda x: np.where(rng.random(len(x)) < share, value, x))
    return Fault("sentinel", "broken")


@kind("floor-clip", entropy=1.5)
def clipped(plan: Plan) -> Fault:
    floor = -plan.graded(7.0, 2.0)
    on_a_side(plan, lambda x: np.maximum(x, floor))
    return Fault("floor-clip", "broken")


def rounded(plan: Plan, slug: str, change: Callable[[np.ndarray], np.ndarray]) -> Fault:
    def edit(columns: Columns, sample: Sample, scores: Scores) -> None:
        columns.rollout = change(columns.rollout)
        if both:
            columns.old = change(columns.old)

    both = plan.rng.random() < 0.4
    plan.edits.append(edit)
    # It counts as a fault only above the engines' noise.
    return Fault(slug, "honest", SMALL, ("healthy", "broken"))


@kind("stored-bfloat16")
def stored_bfloat16(plan: Plan) -> Fault:
    return rounded(plan, "stored-bfloat16", bfloat16)


@kind("stored-float16")
def stored_float16(plan: Plan) -> Fault:
    return rounded(plan, "stored-float16", lambda x: x.astype(np.float16).astype(np.float64))


@kind("stored-rounded")
def stored_rounded(plan: Plan) -> Fault:
    decimals = int(plan.rng.integers(1, 5))
    return rounded(plan, "stored-rounded", lambda x: np.round(x, decimals))


@kind("log-base")
def base(plan: Plan) -> Fault:
    scale = float(plan.rng.choice([np.log(2.0), np.log(10.0)]))
    on_a_side(plan, lambda x: x / scale)
    return Fault("log-base", "broken")


@kind("probabilities-stored")
def probabilities(plan: Plan) -> Fault:
    on_a_side(plan, np.exp)
    return Fault("probabilities-stored", "broken")


@kind("sign-flipped")
def flipped(plan: Plan) -> Fault:
    on_a_side(plan, np.negative)
    return Fault("sign-flipped", "broken")


@kind("cumulative-stored")
def cumulative(plan: Plan) -> Fault:
    means = plan.rng.random() < 0.4

    def edit(columns: Columns, sample: Sample, scores: Scores) -> None:
        pieces = columns.split(columns.rollout)
        columns.rollout = np.concatenate(
            [np.full(len(p), p.mean()) if means else np.cumsum(p) for p in pieces]
        )

    plan.edits.append(edit)
    return Fault("cumulative-stored", "broken")


@kind("padding in the rows")
def padded(plan: Plan) -> Fault:
    """Pad rows to one length and count the padding (id 2, both log-probs 0) as response."""

    def edit(columns: Columns, sample: Sample, scores: Scores) -> None:
        longest = int(np.median(columns.lengths))
        extra = np.maximum(longest - columns.lengths, 0)
        ends = np.repeat(columns.offsets[1:], extra)
        columns.tokens = np.insert(columns.tokens, ends, PAD)
        columns.mask = np.insert(columns.mask, ends, 1)
        columns.rollout = np.insert(columns.rollout, ends, 0.0)
        columns.old = np.insert(columns.old, ends, 0.0)
        columns.extra = {name: np.insert(flat, ends, 0) for name, flat in columns.extra.items()}
        columns.lengths = columns.lengths + extra

    plan.edits.append(edit)
    return Fault("zero-placeholder", "broken", ("mask-includes-tool",))
