"""Pairwise comparison of presets on the same prompt groups: noise that both share cancels."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.losses.evaluate import LossResult
from rcdiag.results import MetricValue, PairedDifference
from rcdiag.statistics.clusters import cluster_sums
from rcdiag.statistics.intervals import jackknife_interval
from rcdiag.usecases.replay.gradients import PresetGradients, by_group
from rcdiag.usecases.replay.preset import PresetLoss
from rcdiag.usecases.replay.update_batch import ReplayBatch

Array = NDArray[np.float64]
# Relative difference up to which two numbers count as equal: sums in another order differ by this
# much in float64, and numbers of a model in float32. Without it, presets that are equal on one
# processor would be different on another.
FLOAT64, FLOAT32 = 1e-12, 1e-6


class WithoutGroups(Struct, frozen=True):
    """A number of a preset, and its jackknife values without each prompt group, [groups]."""

    value: float
    left_out: Array

    def minus(self, other: WithoutGroups) -> MetricValue:
        """Return the difference with its 95% interval: a jackknife over the groups of both."""
        value, left_out = self.value - other.value, self.left_out - other.left_out
        if not np.isfinite(value):
            return MetricValue(value=None)
        if len(left_out) < 2:
            return MetricValue(value=value)
        low, high = jackknife_interval(value, left_out)
        return MetricValue(value=value, low=low, high=high)


class PresetNumbers(Struct, frozen=True):
    """The numbers by which presets are compared; None for those that a preset lacks."""

    loss: WithoutGroups | None
    grad_norm: WithoutGroups | None = None
    kl_rollout_new: WithoutGroups | None = None


def of_loss(loss: PresetLoss) -> WithoutGroups | None:
    """Return the loss of a preset; its weights and advantages are those of the whole batch."""
    result: LossResult = loss.result
    if result.undefined or not np.isfinite(result.loss):
        return None
    _, index = np.unique(loss.batch.group, return_inverse=True)
    return WithoutGroups(result.loss, result.rows.without_groups(index))


def of_gradient(sketched: PresetGradients, name: str) -> WithoutGroups | None:
    """Return the norm of a preset's gradient; that without each group is by sketches of rows."""
    if name not in sketched.whole:
        return None
    sums = by_group(sketched.sketches[name], sketched.group)
    count = len(sums)
    if count < 2:
        return None
    # The gradient is a mean over rows: without a group the other groups have a larger share.
    left_out = np.linalg.norm(sums.sum(axis=0) - sums, axis=1) * count / (count - 1)
    whole = sketched.whole[name].norm()
    of_sketch = float(np.linalg.norm(sums.sum(axis=0)))
    return WithoutGroups(whole, left_out * whole / of_sketch) if of_sketch else None


def of_k3(batch: ReplayBatch, new: Array) -> WithoutGroups:
    """Return KL(rollout || new) by k3, nats per token; `new` are log-probs after a step."""
    rows = batch.k3_by_row(batch.rollout, new)
    sums, tokens = cluster_sums(batch.group, rows, most=len(rows)).sums.T
    with np.errstate(divide="ignore", invalid="ignore"):
        left_out = (sums.sum() - sums) / (tokens.sum() - tokens)
    return WithoutGroups(float(sums.sum() / tokens.sum()), left_out)


def paired_differences(
    numbers: Mapping[str, PresetNumbers], equal: float = FLOAT64
) -> dict[str, dict[str, PairedDifference]]:
    """Compare all pairs of presets; of presets with equal numbers only the first is compared.

    Numbers count as equal if their relative difference is at most `equal`.
    """
    different: list[str] = []
    for name, own in numbers.items():
        if not any(_same(own, numbers[other], equal) for other in different):
            different.append(name)
    pairs: dict[str, dict[str, PairedDifference]] = {}
    for first, second in combinations(different, 2):
        differences: dict[str, MetricValue | None] = {}
        for name in PresetNumbers.__struct_fields__:
            one, other = getattr(numbers[first], name), getattr(numbers[second], name)
            differences[name] = None if one is None or other is None else one.minus(other)
        pairs.setdefault(first, {})[second] = PairedDifference(**differences)
    return pairs


def _same(one: PresetNumbers, other: PresetNumbers, equal: float) -> bool:
    """Tell whether two presets have equal numbers, with and without the first prompt group."""
    for name in PresetNumbers.__struct_fields__:
        own, others = getattr(one, name), getattr(other, name)
        if own is None or others is None:
            if own is not others:
                return False
            continue
        first = [own.value, *own.left_out[:1]], [others.value, *others.left_out[:1]]
        if not np.allclose(*first, rtol=equal, atol=0.0):
            return False
    return True
