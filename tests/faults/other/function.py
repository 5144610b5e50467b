"""Faults where the two forward passes compute different functions of the same weights.

For most of these the table shows only that the two sides differ while the recorded log-probs
are right, so a general cause and `correctable` are acceptable.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.faults.other.models import distributions, logits, random_contexts
from tests.faults.other.registry import kind
from tests.faults.other.tables import Fault, Plan

ALIKE = ("forwards-differ", "weights-differ", "stale-weights", "partial-sync")


@kind("rope-theta")
def frequencies(plan: Plan) -> Fault:
    """Change the base of the position features; the difference first grows along the row."""
    plan.trainer_models = [replace(plan.model, frequency=1.0 + plan.graded(0.003, 0.3))]
    also = (*ALIKE, "position-ids", "context-differs", "fp8-kv-cache", "sliding-window")
    size = plan.rms(plan.trainer_models[0])
    return Fault("rope-theta", "weights", also, ("broken", "inconclusive"), size=size)


@kind("norm-eps")
def epsilon(plan: Plan) -> Fault:
    plan.trainer_models = [replace(plan.model, eps=plan.graded(0.003, 0.2))]
    # A larger epsilon scales the hidden vector down, much like a temperature.
    also = (*ALIKE, "trainer-without-temperature", "sampler-ignores-temperature", "logit-softcap")
    size = plan.rms(plan.trainer_models[0])
    return Fault("norm-eps", "weights", also, ("broken", "inconclusive"), size=size)


@kind("logit-softcap")
def softcap(plan: Plan) -> Fault:
    largest = float(np.abs(logits(plan.model, random_contexts(plan.rng, plan.model, 64))).max())
    plan.trainer_models = [replace(plan.model, softcap=largest * plan.graded(4.0, 0.8))]
    also = (*ALIKE, "trainer-without-temperature", "sampler-ignores-temperature")
    size = plan.rms(plan.trainer_models[0])
    return Fault("logit-softcap", "weights", also, ("broken", "inconclusive"), size=size)


@kind("vocabulary-padding")
def padding(plan: Plan) -> Fault:
    """Add the head's padding rows (logits 0) to the trainer's softmax; E[ratio] is below 1."""
    share = plan.graded(0.01, 0.4)
    # Enough rows to take `share` of the probability in the median context.
    z = logits(plan.model, random_contexts(plan.rng, plan.model, 64))
    rows = share / (1.0 - share) * float(np.exp(np.median(distributions(z).norm)))
    plan.trainer_models = [replace(plan.model, padding_rows=max(1, round(rows)))]
    # Kept mass, banned ids and padding all change one side's normaliser by context.
    also = ("truncated-law", "top-p-renormalised", "top-k-renormalised", "min-p-renormalised",
            "logit-bias", "penalty", "forwards-differ")  # fmt: skip
    size = plan.rms(plan.trainer_models[0])
    weak = ("healthy", "correctable", "inconclusive") if size < 1.5 * plan.floor else ()
    noise = ("engine-noise",) if size < 1.5 * plan.floor else ()
    return Fault("vocabulary-padding", "broken", (*also, *noise), weak, size=size)
