"""The two forward passes compute other functions of the same weights.

Of most of these the table shows no more than that the two sides differ while the sampler was
honest, so an umbrella and `correctable` are fair.
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
    """Another base of the position features: the difference grows along the row at first."""
    plan.trainer_models = [replace(plan.model, frequency=1.0 + plan.graded(0.003, 0.3))]
    also = (*ALIKE, "position-ids", "context-differs", "fp8-kv-cache", "sliding-window")
    size = plan.rms(plan.trainer_models[0])
    return Fault("rope-theta", "weights", also, ("broken", "inconclusive"), size=size)


@kind("norm-eps")
def epsilon(plan: Plan) -> Fault:
    plan.trainer_models = [replace(plan.model, eps=plan.graded(0.003, 0.2))]
    # A larger epsilon scales the hidden vector down, near to a temperature.
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
    """Padding rows of the head, logits 0, in the trainer's softmax: E[ratio] is below 1."""
    share = plan.graded(0.01, 0.4)
    # So many rows that they take `share` of the probability in the middle context.
    z = logits(plan.model, random_contexts(plan.rng, plan.model, 64))
    rows = share / (1.0 - share) * float(np.exp(np.median(distributions(z).norm)))
    plan.trainer_models = [replace(plan.model, padding_rows=max(1, round(rows)))]
    # Kept mass, banned ids and padding all lower one side's normaliser by context.
    also = ("truncated-law", "top-p-renormalised", "top-k-renormalised", "min-p-renormalised",
            "logit-bias", "penalty", "forwards-differ")  # fmt: skip
    size = plan.rms(plan.trainer_models[0])
    weak = ("healthy", "correctable", "inconclusive") if size < 1.5 * plan.floor else ()
    noise = ("engine-noise",) if size < 1.5 * plan.floor else ()
    return Fault("vocabulary-padding", "broken", (*also, *noise), weak, size=size)
