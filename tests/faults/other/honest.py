"""Tables without a fault, and the ordinary noise of engines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.faults.other.registry import kind
from tests.faults.other.tables import SILENT, Fault, Plan

ROUNDING = ("healthy", "bf16-logits", "batch-noise")


def engines(plan: Plan, size: float, **noise: object) -> None:
    """Add noise of `size` nats rms in total, most of it on the sampler."""
    plan.floor = size
    plan.sampler_noise = plan.noise(0.9 * size, **noise)
    plan.trainer_noise = plan.noise(0.436 * size, **noise)


def noisy(size: float, *also: str) -> Fault:
    # From .03 nats the table alone cannot distinguish rounding from a coarser precision.
    coarse = ("quantised-weights", "fp8-weights", "int8-weights", "fp8-kv-cache")
    wide = (*coarse, "forwards-differ", "dropout-in-trainer") if size > 0.03 else ()
    return Fault("engine-noise", "honest", (*ROUNDING, *wide, *also))


@kind("healthy", healthy=True)
def healthy(plan: Plan) -> Fault:
    size = plan.graded(0.003, 0.02)
    engines(plan, size)
    return noisy(size)


@kind("healthy, long rows", healthy=True, vocabulary=192, tokens=50_000, rows=80)
def long_rows(plan: Plan) -> Fault:
    size = plan.graded(0.003, 0.02)
    engines(plan, size)
    return noisy(size)


@kind("healthy, vocabulary of 24", healthy=True, vocabulary=24)
def small_vocabulary(plan: Plan) -> Fault:
    size = plan.graded(0.003, 0.06)
    engines(plan, size)
    return noisy(size)


@kind("healthy at a declared temperature", healthy=True)
def declared(plan: Plan) -> Fault:
    temperature = float(plan.rng.choice([0.6, 0.7, 0.8, 1.2]))
    plan.sampling.temperature = plan.trainer_temperature = temperature
    size = plan.graded(0.003, 0.02)
    engines(plan, size)
    rows = plan.rows
    plan.edits.append(
        lambda columns, sample, scores: columns.rows.update(temperature=np.full(rows, temperature))
    )
    return noisy(size)


@kind("honest noise, larger", healthy=True)
def larger(plan: Plan) -> Fault:
    size = plan.graded(0.02, 0.06)
    engines(plan, size)
    return noisy(size)


@kind("honest noise by row", healthy=True)
def by_row(plan: Plan) -> Fault:
    size = plan.graded(0.005, 0.06)
    scale = np.exp(0.8 * plan.rng.standard_normal(plan.rows))
    engines(plan, size, row_scale=scale / np.sqrt((scale**2).mean()))
    return noisy(size)


@kind("honest noise, heavy tails", healthy=True)
def heavy(plan: Plan) -> Fault:
    size = plan.graded(0.005, 0.06)
    engines(plan, size, tails=3.0)
    return noisy(size, "moe-routing")


@kind("honest noise on the sampler alone", healthy=True, floor=0.0)
def sampler_alone(plan: Plan) -> Fault:
    size = plan.graded(0.005, 0.06)
    plan.floor, plan.sampler_noise = size, plan.noise(size)
    return noisy(size)


@kind("moe-routing", experts=8)
def routing(plan: Plan) -> Fault:
    """Flip experts by a noisy router; the sampler still samples from what it computed."""
    plan.trainer_noise = SILENT
    bulk = plan.noise(plan.floor)
    plan.sampler_noise = replace(bulk, router=plan.graded(0.003, 0.06))
    also = ("engine-noise", "batch-noise", "forwards-differ")
    return Fault("moe-routing", "honest", also)


@kind("batch-noise")
def batches(plan: Plan) -> Fault:
    """Give each row one of a few noise levels, as if it depended on the row's batch."""
    size = plan.graded(0.02, 0.15)
    scale = plan.rng.choice([0.2, 1.0, 3.0], plan.rows)
    plan.floor = size
    plan.trainer_noise = SILENT
    plan.sampler_noise = plan.noise(size, row_scale=scale / np.sqrt((scale**2).mean()))
    also = ("engine-noise", "forwards-differ", "replica-unsynced", "moe-routing")
    return Fault("batch-noise", "honest", also)


@kind("versions from another origin", healthy=True, steps=4, tokens=10_000)
def other_origin(plan: Plan) -> Fault:
    """Make all rows on policy, with versions in optimiser steps or from another start."""
    factor, start = [(1, 117), (4, 0), (1, -40)][int(plan.rng.integers(3))]
    version = factor * (plan.step + 40) + start
    size = plan.graded(0.003, 0.02)
    engines(plan, size)
    plan.edits.append(
        lambda columns, sample, scores: columns.rows.update(
            policy_version=version, step=plan.step + 40
        )
    )
    return noisy(size)


@kind("one policy alone")
def one_policy(plan: Plan) -> Fault:
    dropped = str(plan.rng.choice(["old_log_probs", "rollout_log_probs"]))

    def drop(columns, sample, scores) -> None:
        columns.drop = (dropped,)

    plan.edits.append(drop)
    # Nothing was compared, so any cause that one column cannot show may be named.
    return Fault("*", "alone", verdicts=("inconclusive",))


@kind("one policy alone, rounded")
def one_policy_rounded(plan: Plan) -> Fault:
    decimals = int(plan.rng.integers(3, 5))

    def drop(columns, sample, scores) -> None:
        columns.rollout = np.round(columns.rollout, decimals)
        columns.drop = ("old_log_probs",)

    plan.edits.append(drop)
    return Fault("*", "alone", verdicts=("inconclusive",))
