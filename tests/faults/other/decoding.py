"""Faults where the recorded distribution did not sample, or is not what the trainer scores."""

from __future__ import annotations

import numpy as np

from tests.faults.other.models import distributions, logits, random_contexts
from tests.faults.other.registry import kind
from tests.faults.other.sampling import NEVER
from tests.faults.other.tables import Fault, Plan

PADDING_ALIKE = ("truncated-law", "vocabulary-padding", "penalty")
SOFT = ("correctable",)  # the recorded distribution sampled, and excludes no token


def round_temperature(plan: Plan) -> float:
    return float(plan.rng.choice([0.5, 0.6, 0.7, 0.8, 0.9, 1.2, 1.3]))


def declare(plan: Plan, always: bool = False, **values: float) -> bool:
    """Write the sampling parameters as columns in some tables."""
    if not always and plan.rng.random() < 0.6:
        return False
    rows = plan.rows
    plan.edits.append(
        lambda columns, sample, scores: columns.rows.update(
            {name: np.full(rows, value) for name, value in values.items()}
        )
    )
    return True


@kind("temperature-raw-recorded")
def raw(plan: Plan) -> Fault:
    plan.sampling.temperature = plan.trainer_temperature = round_temperature(plan)
    plan.record = "raw"
    declare(plan, temperature=plan.trainer_temperature)
    return Fault("temperature-raw-recorded", "broken", faint=True)


@kind("temperature-raw-recorded on one replica", engines=4)
def raw_on_one(plan: Plan) -> Fault:
    temperature = float(plan.rng.choice([0.6, 0.7, 0.8]))
    plan.sampling.temperature = plan.trainer_temperature = temperature
    assert plan.engine is not None
    on_one = plan.engine == 2

    def edit(columns, sample, scores) -> None:
        columns.rollout = np.where(on_one[columns.row_of], sample.raw, columns.rollout)

    plan.edits.append(edit)
    declare(plan, temperature=temperature)
    return Fault("temperature-raw-recorded", "broken", ("replica-unsynced",), faint=True)


@kind("trainer-without-temperature")
def trainer_without(plan: Plan) -> Fault:
    plan.sampling.temperature = temperature = round_temperature(plan)
    declared = declare(plan, temperature=temperature)
    # When undeclared, T on one side and 1/T on the other give the same pair of columns.
    also = () if declared else ("sampler-ignores-temperature",)
    return Fault("trainer-without-temperature", "broken", also, faint=True)


@kind("sampler-ignores-temperature")
def sampler_ignores(plan: Plan) -> Fault:
    plan.trainer_temperature = temperature = round_temperature(plan)
    declared = declare(plan, temperature=temperature)
    also = () if declared else ("trainer-without-temperature",)
    return Fault("sampler-ignores-temperature", "broken", also, faint=True)


def silent(plan: Plan, slug: str, other: str) -> Fault:
    plan.record = "raw"
    # An entropy column shows that the tokens are too likely; without one nothing shows.
    if "old_entropy" in plan.fixed.get("columns", ()):
        return Fault(slug, "entropy", (other,), ("broken",))
    return Fault(slug, "open", (other, "engine-noise", "healthy"), ("broken",))


@kind("temperature-silent", no_rollout_entropy=True)
def temperature_silent(plan: Plan) -> Fault:
    plan.sampling.temperature = float(plan.rng.choice([0.6, 0.7, 0.8]))
    return silent(plan, "temperature-silent", "top-p-silent")


@kind("temperature-silent, entropy recorded", columns=("old_entropy",), no_rollout_entropy=True)
def temperature_silent_entropy(plan: Plan) -> Fault:
    return temperature_silent(plan)


@kind("top-p-silent", vocabulary=4096, tokens=6_000, no_rollout_entropy=True)
def top_p_silent(plan: Plan) -> Fault:
    plan.sampling.top_p = float(plan.rng.choice([0.8, 0.9, 0.95]))
    return silent(plan, "top-p-silent", "temperature-silent")


@kind("top-p-silent, entropy recorded", vocabulary=192, columns=("old_entropy",), entropy=1.5,
      no_rollout_entropy=True)  # fmt: skip
def top_p_silent_entropy(plan: Plan) -> Fault:
    return top_p_silent(plan)


@kind("log-probs-divided")
def divided(plan: Plan) -> Fault:
    plan.sampling.temperature = temperature = round_temperature(plan)

    def edit(columns, sample, scores) -> None:
        columns.old = columns.old / temperature

    plan.edits.append(edit)
    declare(plan, temperature=temperature)
    return Fault("log-probs-divided", "broken")


@kind("log-probs-divided, sampled at 1")
def divided_at_one(plan: Plan) -> Fault:
    temperature = round_temperature(plan)

    def edit(columns, sample, scores) -> None:
        columns.old = columns.old / temperature

    plan.edits.append(edit)
    return Fault("log-probs-divided", "broken")


@kind("top-p-renormalised", vocabulary=4096, tokens=7_000)
def top_p(plan: Plan) -> Fault:
    plan.sampling.top_p = float(plan.rng.choice([0.8, 0.9, 0.95, 0.98]))
    declare(plan, top_p=plan.sampling.top_p)
    return Fault("top-p-renormalised", "broken", ("truncated-law",), faint=True)


@kind("top-k-renormalised", entropy=2.0)
def top_k(plan: Plan) -> Fault:
    plan.sampling.top_k = int(plan.rng.choice([5, 10, 20]))
    declare(plan, top_k=plan.sampling.top_k)
    also = ("truncated-law", "vocabulary-padding")
    return Fault("top-k-renormalised", "broken", also, faint=True)


@kind("min-p-renormalised")
def min_p(plan: Plan) -> Fault:
    plan.sampling.min_p = plan.graded(0.02, 0.2)
    declare(plan, min_p=plan.sampling.min_p)
    also = ("truncated-law", "vocabulary-padding")
    return Fault("min-p-renormalised", "broken", also, faint=True)


@kind("repetition-penalty")
def repetition(plan: Plan) -> Fault:
    plan.sampling.repetition = plan.graded(1.03, 1.4)
    also = ("penalty", "presence-penalty")
    return Fault("repetition-penalty", "broken", also, SOFT, faint=True)


@kind("presence-penalty")
def presence(plan: Plan) -> Fault:
    plan.sampling.presence = plan.graded(0.1, 1.5)
    also = ("penalty", "repetition-penalty")
    return Fault("presence-penalty", "broken", also, SOFT, faint=True)


def common_ids(plan: Plan) -> np.ndarray:
    """Return ids by descending mean probability, without special ids."""
    z = logits(plan.model, random_contexts(plan.rng, plan.model, 64))
    mean = distributions(z).p.mean(0)
    mean[:4] = 0.0
    return np.argsort(-mean)


@kind("logit-bias")
def bias(plan: Plan) -> Fault:
    push = np.zeros(plan.vocabulary, np.float32)
    ids = common_ids(plan)[: int(plan.rng.integers(2, 6))]
    push[ids] = plan.rng.choice([-1.0, 1.0]) * plan.graded(0.3, 3.0)
    plan.sampling.bias = push
    # A bias on the head's rows in one side's weights gives the same columns.
    also = ("penalty", "weights-differ", "tied-head-desync", "forwards-differ")
    return Fault("logit-bias", "broken", also, (*SOFT, "inconclusive"), faint=True)


@kind("banned ids")
def banned(plan: Plan) -> Fault:
    ban = np.zeros(plan.vocabulary, np.float32)
    ids = common_ids(plan)
    ban[ids[2 : 2 + int(plan.graded(2, 12))]] = NEVER
    plan.sampling.bias = ban
    return Fault("logit-bias", "broken", PADDING_ALIKE, faint=True)


@kind("min-tokens", hazard=0.03, tools=False)
def min_tokens(plan: Plan) -> Fault:
    plan.lengths = np.maximum(plan.lengths, 60)
    plan.sampling.min_tokens = int(plan.rng.integers(16, 48))
    also = (*PADDING_ALIKE, "logit-bias")
    return Fault("min-tokens", "broken", also, faint=True)
