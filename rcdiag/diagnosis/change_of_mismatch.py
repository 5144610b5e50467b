"""Decomposes a change of the mismatch between two parts of a run into the factors that changed.

The mean k3 of a token is a sum over cells: the share of tokens at a position, times the share of
tokens of an uncertainty among them, times the mean k3 in the cell. Each factor may change: longer
responses have more late tokens, less peaked distributions more uncertain ones, and an engine with
more noise has a larger k3 on tokens of the same cell. What one factor contributes is the change of
the mean when it alone changes, averaged over the orders in which all may change (Kitagawa 1955,
Components of a difference between two rates, JASA 50; Das Gupta 1993, Standardization and
Decomposition of Rates, for three factors). The contributions add up to the change.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Array, Flags, PairTokens
from rcdiag.diagnosis.thresholds import FEW, FEWEST_ROWS
from rcdiag.diagnosis.validity import LARGEST
from rcdiag.results.base import MetricValue
from rcdiag.results.diagnosis import ChangeOfMismatch
from rcdiag.statistics.intervals import standard_error, t_quantile

FACTORS = ("length", "peakiness", "noise")
# Edges of positions in the response, and of uncertainties in nats: finer where most tokens are.
POSITIONS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
UNCERTAINTIES = (0.001, 0.01, 0.03, 0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
BLOCKS = 40  # of prompt groups, one of which is left out for each value of the jackknife


def change_of_mismatch(
    tokens: PairTokens, uncertainty: Array, later: Flags, cluster: NDArray[np.integer], step: int
) -> ChangeOfMismatch | None:
    """Decompose the change of the mean k3 from the earlier to the later rows.

    `uncertainty` [tokens] is the sampler's entropy, or where none is recorded the surprisal, nats;
    `later` [rows] flags the rows from `step` on, and `cluster` [rows] tells prompt groups.
    Intervals are those of a jackknife over blocks of prompt groups. None where a part has no token,
    or groups are too few for an interval.
    """
    log_ratio = np.clip(tokens.log_ratio, -LARGEST, LARGEST)
    k3 = np.expm1(log_ratio) - log_ratio
    cells = len(POSITIONS) + 1, len(UNCERTAINTIES) + 1
    place = np.searchsorted(POSITIONS, tokens.position, "right")
    uncertain = np.searchsorted(UNCERTAINTIES, uncertainty, "right")
    _, group = np.unique(cluster, return_inverse=True)
    if group.max(initial=-1) + 1 < FEWEST_ROWS:
        return None
    shape = min(BLOCKS, int(group.max()) + 1), 2, *cells
    index = np.ravel_multi_index(
        (
            (group % shape[0])[tokens.owner],
            later[tokens.owner].astype(np.int64),
            place,
            uncertain,
        ),
        shape,
    )
    size = int(np.prod(shape))
    count = np.bincount(index, minlength=size).reshape(shape).astype(np.float64)
    total = np.bincount(index, k3, size).reshape(shape)
    if not np.all(count.sum(axis=(0, 2, 3)) > 0):
        return None
    whole = _contributions(count.sum(axis=0), total.sum(axis=0))
    left_out = np.array(
        [
            _contributions(count.sum(axis=0) - tokens_of_one, total.sum(axis=0) - k3_of_one)
            for tokens_of_one, k3_of_one in zip(count, total, strict=True)
        ]
    )
    if not np.isfinite(left_out).all():
        return None
    reach = t_quantile(shape[0])
    parts = {}
    for name, value, values in zip(FACTORS, whole, left_out.T, strict=True):
        error = float(standard_error(values)) * reach
        parts[name] = MetricValue(
            value=_rounded(value), low=_rounded(value - error), high=_rounded(value + error)
        )
    before, after = total.sum(axis=(0, 2, 3)) / count.sum(axis=(0, 2, 3))
    return ChangeOfMismatch(
        changed_at=step,
        k3_before=_rounded(before),
        k3_after=_rounded(after),
        k3_error=_rounded(standard_error(left_out.sum(axis=1))),
        **parts,
    )


def _rounded(value: float) -> float:
    """Round to the digits that do not depend on the order of the rows."""
    return float(f"{value:.10g}")


def _contributions(count: Array, total: Array) -> Array:
    """Return what length, peakiness and noise contribute to the change, nats per token, [3].

    `count` and `total` k3 are [earlier or later, positions, uncertainties]. A cell that is empty
    in one part takes the other part's mean k3, so that it contributes by its share of tokens only.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        at = count.sum(axis=2)
        length = at / at.sum(axis=1, keepdims=True)
        peakiness = _filled(count / at[:, :, None])
        noise = _filled(total / count)
    factors = (length, peakiness, noise)
    gained = np.zeros(3)
    orders = list(permutations(range(3)))
    for order in orders:
        chosen = [0, 0, 0]
        before = _mean(factors, chosen)
        for factor in order:
            chosen[factor] = 1
            after = _mean(factors, chosen)
            gained[factor] += (after - before) / len(orders)
            before = after
    return gained


def _filled(both: Array) -> Array:
    """Fill NaN of one part with the number of the other part, or with 0 where both are NaN."""
    filled: Array = np.nan_to_num(np.where(np.isnan(both), both[::-1], both))
    return filled


def _mean(factors: tuple[Array, Array, Array], chosen: list[int]) -> float:
    """Return the mean k3 with each factor taken from its chosen part: 0 earlier, 1 later."""
    length, peakiness, noise = (one[part] for one, part in zip(factors, chosen, strict=True))
    return float(np.sum(length[:, None] * peakiness * noise))


# What is said of each factor.
WORDS = {"length": "lengths", "peakiness": "peakiness", "noise": "noise on similar tokens"}


def sentence(change: ChangeOfMismatch) -> str:
    """Say what each factor contributes to a change of k3_kl, in percent, the largest first.

    The largest one is named only if its interval excludes 0. No factor contributes more than 100%
    unless another works against the change.
    """
    whole = change.k3_after - change.k3_before
    parts = [(WORDS[name], getattr(change, name)) for name in FACTORS]
    (first, most), *others = sorted(parts, key=lambda part: -abs(part[1].value))
    low, high = sorted((most.low / whole, most.high / whole))
    if low <= 0.0 <= high:
        return f"what makes k3 change at step {change.changed_at} cannot be told from these rows"
    # A small negative share is chance.
    opposed = any(part.value / whole < -FEW for _, part in parts)

    def percent(share: float) -> str:
        within = share if opposed else min(max(share, 0.0), 1.0)
        return f"{round(100 * within) + 0}%"  # + 0: no minus before 0

    rest = ", ".join(f"{percent(one.value / whole)} from {words}" for words, one in others)
    return (
        f"{percent(most.value / whole)} ({percent(low)} to {percent(high)}) of the change in k3 "
        f"at step {change.changed_at} comes from {first}, {rest}"
    )
