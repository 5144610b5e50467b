"""Faults where the sampler's weights are not the trainer's."""

from __future__ import annotations

import numpy as np

from tests.faults.other.models import (
    NOT_WEIGHTS,
    Model,
    Weights,
    distributions,
    logits,
    random_weights,
)
from tests.faults.other.registry import kind
from tests.faults.other.sampling import Sample, plain_view, read_hidden, score
from tests.faults.other.tables import SILENT, Columns, Fault, Plan

UMBRELLA = ("weights-differ", "forwards-differ")
LAG = ("stale-weights", "weights-never-synced", "partial-sync")


def head_gradient(
    model: Model, vectors: np.ndarray, tokens: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    """Return the policy gradient d/d head of sum(weight * log-prob), (vocabulary, width)."""
    gradient = np.zeros_like(model.weights["head"])
    chunk = max(16, 2_000_000 // model.vocabulary)
    for begin in range(0, len(tokens), chunk):
        part = slice(begin, begin + chunk)
        p = distributions(logits(model, vectors[part])).p
        p *= -weight[part, None]
        p[np.arange(len(p)), tokens[part]] += weight[part]
        gradient += p.T.astype(np.float32) @ vectors[part]
    return gradient


def interpolation(plan: Plan) -> Weights:
    """Interpolate all matrices towards another random model."""
    own = plan.model.weights
    other = random_weights(plan.rng, plan.vocabulary, experts=plan.experts)
    other["head"] *= own["head"].std() / other["head"].std()
    return {
        name: other[name] - own[name]
        for name in own
        if name not in (*NOT_WEIGHTS, "bias", "norm", "embedding")
    }


def training(plan: Plan) -> Weights:
    """Move weights as training does: the head along a policy gradient, the rest in low rank."""
    rng, own, pilot = plan.rng, plan.model.weights, plan.pilot
    views = plan.pilot_views
    vectors = read_hidden(plan.model, views, rng, SILENT)
    worth = rng.standard_normal(plan.vocabulary)[pilot.tokens]
    gradient = head_gradient(plan.model, vectors, pilot.tokens, worth)
    gradient /= np.sqrt((gradient**2).mean())
    delta = {}
    for name, value in own.items():
        if name in (*NOT_WEIGHTS, "bias", "norm", "embedding"):
            continue
        left = rng.standard_normal((*value.shape[:-1], 2))
        right = rng.standard_normal((*value.shape[:-2], 2, value.shape[-1]))
        move = left @ right / np.sqrt(2.0) + 0.3 * rng.standard_normal(value.shape)
        if name == "head":
            move = gradient + 0.5 * move
        delta[name] = (value.std() * move).astype(np.float32)
    return delta


def moved(model: Model, delta: Weights, scale: float, only: tuple[str, ...] = ()) -> Model:
    return model.with_weights(
        **{
            name: model.weights[name] + np.float32(scale) * change
            for name, change in delta.items()
            if not only or name in only
        }
    )


def drift(plan: Plan) -> Weights:
    return training(plan) if plan.rng.random() < 0.6 else interpolation(plan)


def drifted(plan: Plan, target: float, only: tuple[str, ...] = (), to: Weights | None = None):
    """Return the model after a drift that gives log-ratios of `target` nats rms."""
    delta = to if to is not None else drift(plan)
    scale = plan.solve(lambda s: plan.rms(moved(plan.model, delta, s, only)), target)
    return moved(plan.model, delta, scale, only)


def path(plan: Plan, points: int, target: float) -> list[Model]:
    """Return the weights of successive steps, about `target` nats rms apart."""
    delta = drift(plan)
    scale = plan.solve(lambda s: plan.rms(moved(plan.model, delta, s)), target)
    models = [plan.model]
    for _ in range(points - 1):
        wander = {
            name: (change.std() * plan.rng.standard_normal(change.shape)).astype(np.float32)
            for name, change in delta.items()
        }
        models.append(moved(moved(models[-1], delta, scale), wander, 0.3 * scale))
    return models


def stale(plan: Plan, to: Weights) -> Fault:
    size = plan.graded(0.02, 0.7)
    plan.trainer_models = [drifted(plan, size, to=to)]
    return Fault("stale-weights", "weights", (*UMBRELLA, *LAG), size=size)


@kind("stale-weights, interpolated")
def stale_interpolated(plan: Plan) -> Fault:
    return stale(plan, interpolation(plan))


@kind("stale-weights, trained")
def stale_trained(plan: Plan) -> Fault:
    return stale(plan, training(plan))


@kind("weights-never-synced", steps=6, tokens=14_000, group_size=1)
def never_synced(plan: Plan) -> Fault:
    size = plan.graded(0.02, 0.12)
    plan.trainer_models = path(plan, plan.step_count, size)
    plan.trainer_which = plan.step
    return Fault("weights-never-synced", "weights", (*UMBRELLA, "stale-weights"), size=size)


@kind("sync stopped at a step", steps=6, tokens=14_000, group_size=4)
def sync_stopped(plan: Plan) -> Fault:
    size = plan.graded(0.04, 0.2)
    models = path(plan, plan.step_count, size)
    last = 2
    plan.sampler_models, plan.sampler_which = models[:last], np.minimum(plan.step, last - 1)
    plan.trainer_models, plan.trainer_which = models, plan.step
    return Fault("weights-never-synced", "weights", (*UMBRELLA, "stale-weights"), size=size)


def asynchronous(plan: Plan, lag: np.ndarray, origin: int = 40) -> float:
    size = plan.graded(0.03, 0.15)
    plan.trainer_models = path(plan, plan.step_count + 2, size)
    plan.sampler_models = plan.trainer_models
    plan.trainer_which = plan.step + 2
    plan.sampler_which = plan.step + 2 - lag
    version = plan.step + origin - lag
    plan.edits.append(lambda columns, sample, scores: columns.rows.update(policy_version=version))
    return size


@kind("asynchronous, lag of one", steps=4, tokens=10_000, columns=("step",))
def lag_of_one(plan: Plan) -> Fault:
    size = asynchronous(plan, np.ones(plan.rows, int))
    return Fault("stale-weights", "weights", (*UMBRELLA, "in-flight-update"), size=size)


@kind("asynchronous, mixed lag", steps=4, tokens=10_000, columns=("step",))
def mixed_lag(plan: Plan) -> Fault:
    size = asynchronous(plan, plan.rng.choice([0, 1, 2], plan.rows, p=[0.3, 0.4, 0.3]))
    return Fault("stale-weights", "weights", (*UMBRELLA, "in-flight-update"), size=size)


@kind("asynchronous, one step of mixed lag", steps=1, columns=("step",))
def mixed_lag_one_step(plan: Plan) -> Fault:
    size = asynchronous(plan, plan.rng.choice([0, 2], plan.rows))
    also = (*UMBRELLA, "in-flight-update", "replica-unsynced")
    return Fault("stale-weights", "weights", also, size=size)


@kind("in-flight-update", columns=("step",))
def in_flight(plan: Plan) -> Fault:
    """Weights change while a row is sampled; the trainer has the newer ones."""
    size = plan.graded(0.08, 0.5)
    new = drifted(plan, size)
    plan.sampler_models, plan.trainer_models = [plan.model, new], [new]
    plan.switch = (plan.lengths * plan.rng.uniform(0.1, 0.9, plan.rows)).astype(int)
    switch = plan.switch
    if plan.rng.random() < 0.6:

        def by_token(columns: Columns, sample: Sample, scores) -> None:
            newer = columns.place >= switch[columns.row_of]
            columns.extra["policy_version"] = 39 + newer.astype(np.int64)

        plan.edits.append(by_token)
    return Fault("in-flight-update", "weights", (*UMBRELLA, "stale-weights"), size=size)


@kind("replica-unsynced", engines=4)
def replica(plan: Plan) -> Fault:
    size = plan.graded(0.08, 0.7)
    new = drifted(plan, size)
    plan.sampler_models, plan.trainer_models = [new, plan.model], [new]
    assert plan.engine is not None
    plan.sampler_which = (plan.engine == 1).astype(int)
    return Fault("replica-unsynced", "weights", (), size=size)


@kind("partial-sync")
def partial_sync(plan: Plan) -> Fault:
    inner = [n for n in ("recurrent", "up", "down", "input", "position") if n in plan.model.weights]
    size = plan.graded(0.03, 0.7)
    plan.trainer_models = [drifted(plan, size, only=(str(plan.rng.choice(inner)),))]
    also = (*UMBRELLA, "stale-weights", "shard-wrong", "weights-never-synced")
    return Fault("partial-sync", "weights", also, size=size)


@kind("tied-head-desync")
def head_behind(plan: Plan) -> Fault:
    size = plan.graded(0.05, 0.9)
    plan.trainer_models = [drifted(plan, size, only=("head",), to=training(plan))]
    also = (*UMBRELLA, *LAG)
    return Fault("tied-head-desync", "weights", also, size=size)


@kind("shard-wrong")
def shard_wrong(plan: Plan) -> Fault:
    """One rank's half of the output projection is that of other weights, in the sampler."""
    size = plan.graded(0.05, 0.6)
    value = plan.model.weights["down"]
    change = np.zeros_like(value)
    change[:, : value.shape[1] // 2] = plan.rng.standard_normal((len(value), value.shape[1] // 2))
    plan.trainer_models = [drifted(plan, size, to={"down": value.std() * change})]
    return Fault("shard-wrong", "weights", (*UMBRELLA, *LAG), size=size)


@kind("vocab-shard-wrong", group_size=4)
def vocab_shard(plan: Plan) -> Fault:
    """A block of the head's rows is wrong in the trainer."""
    head = plan.model.weights["head"]
    begin = plan.vocabulary // 4 * int(plan.rng.integers(4))
    block = slice(begin, begin + plan.vocabulary // 4)
    change = np.zeros_like(head)
    change[block] = np.roll(head[block], 1, axis=0) - head[block]
    plan.trainer_models = [drifted(plan, plan.graded(0.1, 1.2), to={"head": change})]
    also = (*UMBRELLA, "shard-wrong", "tied-head-desync", "partial-sync", "stale-weights")
    return Fault("vocab-shard-wrong", "broken", also, ("correctable", "inconclusive"))


@kind("lora-missing")
def lora(plan: Plan) -> Fault:
    """The sampler has no adapter: low-rank updates of the inner matrices and the head."""
    size = plan.graded(0.05, 0.7)
    delta = {}
    for name in ("input", "up", "down", "head"):
        value = plan.model.weights[name]
        a, b = (plan.rng.standard_normal((n, 4)) for n in value.shape)
        delta[name] = (value.std() * a @ b.T / 2.0).astype(np.float32)
    plan.trainer_models = [drifted(plan, size, to=delta)]
    return Fault("lora-missing", "weights", (*UMBRELLA, *LAG, "tied-head-desync"), size=size)


@kind("moe-expert-wrong", experts=8)
def experts_swapped(plan: Plan) -> Fault:
    """Two experts of the sampler in each other's place."""
    order = np.arange(8)
    pair_ = plan.rng.choice(8, 2, replace=False)
    order[pair_] = order[pair_[::-1]]
    plan.trainer_models = [plan.model.with_weights(experts=plan.model.weights["experts"][order])]
    also = (*UMBRELLA, *LAG, "moe-routing")
    size = plan.rms(plan.trainer_models[0])
    return Fault("moe-expert-wrong", "weights", also, ("broken",), size=size)


@kind("reference-as-old")
def reference(plan: Plan) -> Fault:
    """The trainer's column is another policy's: a reference from far before."""
    plan.trainer_models = [drifted(plan, plan.graded(0.3, 1.5))]
    also = (*UMBRELLA, *LAG, "lora-missing")
    # That the weights of the trainer's column are not the trainer's does not show in the table.
    return Fault("reference-as-old", "broken", also, ("correctable", "inconclusive"))


@kind("old-after-update", group_size=8, columns=("advantage",), steps=1)
def after_update(plan: Plan) -> Fault:
    """`old` was computed after a policy-gradient step on these very rows."""
    size = plan.graded(0.02, 0.2)

    def late(plan: Plan, sample: Sample, columns: Columns) -> Model:
        rows = sample.rows(sample.tokens)
        views = [plain_view(p, r) for p, r in zip(plan.prompts, rows, strict=True)]
        weight = (plan.advantage[sample.row_of] * sample.free).astype(np.float32)
        vectors = read_hidden(plan.model, views, plan.rng, SILENT)
        delta = {"head": head_gradient(plan.model, vectors, sample.tokens, weight)}
        delta["head"] /= np.sqrt((delta["head"] ** 2).mean())
        some = views[:: max(1, len(views) // 40)]
        before = score(plan.model, some, plan.rng, SILENT).log_probs

        def rms(scale: float) -> float:
            after = score(moved(plan.model, delta, scale), some, plan.rng, SILENT).log_probs
            return float(np.sqrt(((after - before) ** 2).mean()))

        return moved(plan.model, delta, plan.solve(rms, size))

    plan.late = late
    return Fault("old-after-update", "broken", size=size)
