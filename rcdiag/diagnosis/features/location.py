"""Which rows, steps, engines and token ids have the largest log-ratios."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Array, Case, Counts, Flags
from rcdiag.diagnosis.features.log_ratios import ENGINE_NOISE, LARGE_MISMATCH, LogRatios
from rcdiag.diagnosis.thresholds import (
    BY_ITS_ERROR,
    FEWEST_OF_PATTERN,
    FEWEST_ROWS,
    LARGER,
    MANY_TIMES,
    MOST,
    MUCH_LARGER,
    PART,
    RARE,
    TINY,
)

# k3 of a step, nats per token, is not large below that of two bfloat16 engines: half of the squared
# log-ratio.
LARGE_K3 = ENGINE_NOISE**2 / 2.0
MOST_PARTS = 2000  # at most this many steps or engines are compared
# Lower bound of a row's rms log-ratio: smaller ones count as this.
SMALLEST = LARGE_MISMATCH / MANY_TIMES  # nats rms


class MismatchByGroup(Struct, frozen=True):
    """The mismatch of a table by one property, such as the step or the engine."""

    labels: list[str]
    rows: Counts  # [parts]
    rms: Array  # [parts] rms log-ratio, nats
    k3: Array  # [parts] nats per token


# A trend needs FEWEST_OF_TREND values. Where these are too few for a significant rank correlation,
# it must be at least ALMOST_MONOTONIC: of eight values two neighbours may be exchanged (0.976; 8 of
# the 40,320 orders are as monotonic), of fewer none.
FEWEST_OF_TREND, ALMOST_MONOTONIC = 5, 0.97


class Onset(Struct, frozen=True):
    """The step from which on a table's mismatch is large, with k3 of large and other steps."""

    steps: MismatchByGroup
    first: int  # index of the first large step
    before: float  # median k3 of the other steps, nats per token
    after: float  # median k3 of the large steps, nats per token
    last: int | None = None  # index of the last large step; None: all later steps are large

    @property
    def step(self) -> int:
        """Return the value in column `step`."""
        return int(self.steps.labels[self.first])

    @property
    def last_step(self) -> int | None:
        """Return the value in column `step` of the last large step; None: all later are large."""
        return None if self.last is None else int(self.steps.labels[self.last])

    @property
    def within(self) -> str:
        """Name the large steps: "from step 8 on", "in steps 4 to 6"."""
        if self.last_step is None:
            return f"from step {self.step} on"
        one = self.last_step == self.step
        return f"in step {self.step}" if one else f"in steps {self.step} to {self.last_step}"

    @property
    def times(self) -> float:
        """Return the factor by which k3 grows."""
        return self.after / max(self.before, TINY)


def _median(values: Array) -> float:
    return float(np.median(values))


def trend(values: Array) -> float:
    """Return the growth factor of a series; 1 where it has no significant trend.

    The factor is the median of the last third over the median of the first third.
    Spearman's rank correlation of n values without a trend is normal about 0 with the variance
    1 / (n - 1). Fewer than ten values must be almost monotonic.
    """
    count = len(values)
    if count < FEWEST_OF_TREND:
        return 1.0
    order = np.arange(count)
    rank = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    correlation = float(np.corrcoef(order, rank)[0, 1])
    if abs(correlation) * np.sqrt(count - 1) < min(
        BY_ITS_ERROR, ALMOST_MONOTONIC * np.sqrt(count - 1)
    ):
        return 1.0
    third = max(count // 3, 1)
    first, last = _median(values[:third]), _median(values[-third:])
    return last / max(first, TINY) if (last > first) == (correlation > 0) else 1.0


def resets_of(values: Array) -> list[int]:
    """Return the indices at which a series that grew falls back to its first values.

    It must become LARGER over five values or more, then fall by as much in one step, to less than
    LARGER times its first values.
    """
    found, began = [], 0
    for at in range(FEWEST_OF_TREND, len(values)):
        grown, fallen = values[began:at], LARGER * values[at]
        start = _median(grown[: max(len(grown) // 3, 1)])
        if fallen < grown[-1] and values[at] < LARGER * start and trend(grown) > LARGER:
            found.append(at)
            began = at
    return found


def _apart(large: float, small: float) -> bool:
    """Tell whether a k3 is large, and more than 5 times another one."""
    return large > max(MANY_TIMES * small, LARGE_K3)


def large_steps(k3: Array) -> Iterator[Counts]:
    """Yield the indices of steps whose k3 is large, and more than 5 times that of all others.

    Where several sets of steps are, the largest set comes first.
    """
    for low, high in pairwise(np.sort(k3)):
        if _apart(high, low):
            yield np.flatnonzero(k3 >= high)


class IdOutlier(Struct, frozen=True):
    """A token id at which rows begin to differ."""

    token_id: int
    tokens: int
    mean: float  # nats
    share_last: float  # share of its tokens that end their response


class OutlierRows(Struct, frozen=True):
    """Rows with a much larger mismatch than all others: those of some engines, or any rows."""

    rows: Flags  # [rows]
    engines: list[str]  # empty where the rows are not those of some engines
    rms: float  # rms log-ratio of these rows, nats
    rms_of_others: float  # rms log-ratio of the others

    @property
    def which(self) -> str:
        """Name the engines of these rows: `engine 3`, `engines 0, 2`."""
        return f"engine{'s' * (len(self.engines) > 1)} {', '.join(self.engines)}"


class MismatchLocation(Struct, frozen=True, dict=True):
    """Where in a table the log-ratios are large."""

    case: Case
    log_ratios: LogRatios

    @cached_property
    def rms_of_rows(self) -> Array:
        """Return the rms log-ratio of each row, nats, [rows]; NaN without a token."""
        tokens = self.log_ratios.tokens
        with np.errstate(invalid="ignore"):
            return np.sqrt(tokens.row_sums(self.log_ratios.values**2) / tokens.per_row)

    @cached_property
    def by_step(self) -> MismatchByGroup | None:
        """Return the mismatch of each training step, ascending; None without several steps."""
        step = self.case.facts.step
        return None if step is None else self._parts(step)

    @cached_property
    def resets(self) -> list[int]:
        """Return the indices of steps at which a mismatch that had grown falls back."""
        return [] if self.by_step is None else resets_of(self.by_step.k3)

    @cached_property
    def onset(self) -> Onset | None:
        """Return the consecutive steps whose k3 is more than 5 times that of all others.

        They begin after the first step, and go on to the last step or end before it. A single row
        does not count: k3 must still be that large without the row with the largest sum.
        """
        parts = self.by_step
        if parts is None:
            return None
        k3, count = parts.k3, len(parts.k3)
        for large in large_steps(k3):
            first, end = int(large[0]), int(large[-1]) + 1
            if first == 0 or len(large) != end - first:
                continue
            if self._large_without_one_row(parts, first, end):
                last = end - 1 if end < count else None
                others = np.delete(k3, large)
                return Onset(parts, first, _median(others), _median(k3[large]), last)
        return None

    def _large_without_one_row(self, parts: MismatchByGroup, first: int, end: int) -> bool:
        """Tell whether the k3 of steps `first` to `end` stays large without their largest row."""
        step, tokens = self.case.facts.step, self.log_ratios.tokens
        assert step is not None
        values = np.expm1(self.log_ratios.values) - self.log_ratios.values
        within = (step >= int(parts.labels[first])) & (step <= int(parts.labels[end - 1]))
        rows = np.flatnonzero(within & (tokens.per_row > 0))
        if len(rows) < 2:
            return False
        sums, counts = tokens.row_sums(values)[rows], tokens.per_row[rows]
        kept = np.arange(len(rows)) != int(np.argmax(sums))
        others = np.delete(parts.k3, np.s_[first:end])
        return _apart(float(sums[kept].sum() / counts[kept].sum()), float(others.max()))

    @cached_property
    def by_engine(self) -> MismatchByGroup | None:
        """Return the mismatch of each replica of the sampler; None without several."""
        engine = self.case.facts.engine
        return None if engine is None else self._parts(np.asarray(engine, dtype=object))

    @cached_property
    def outlier_rows(self) -> OutlierRows | None:
        """Return the rows with a much larger mismatch than the others.

        These are the rows of some engines, or the upper one of two separate clusters of the rows'
        rms. None where there are no such rows.
        """
        return self._outlier_engines() or self._outlier_cluster()

    def _outlier_engines(self) -> OutlierRows | None:
        parts, engine = self.by_engine, self.case.facts.engine
        if parts is None or engine is None:
            return None
        small = float(np.min(parts.rms))
        # A single row can dominate the rms of its engine; a fault of the engine shows in the median
        # row.
        names = np.asarray(engine, dtype=str)
        typical = np.array([np.nanmedian(self.rms_of_rows[names == one]) for one in parts.labels])
        large = (parts.rms > max(MUCH_LARGER * small, ENGINE_NOISE)) & (
            typical > LARGER * np.nanmin(typical)
        )
        if not large.any() or large.all():
            return None
        engines = [label for label, flag in zip(parts.labels, large, strict=True) if flag]
        largest = float(np.max(parts.rms[large]))
        return OutlierRows(np.isin(names, engines), engines, largest, small)

    def _outlier_cluster(self) -> OutlierRows | None:
        rms = self.rms_of_rows
        known = np.isfinite(rms)
        sizes = np.sort(rms[known])
        # Rows of near-certain tokens have almost no mismatch: the lower bound keeps them from
        # forming a cluster.
        order = np.log(np.maximum(sizes, SMALLEST))
        if len(order) < 2 * FEWEST_ROWS:
            return None
        # Otsu's split: the variance between the two clusters is largest.
        count = np.arange(1, len(order))
        sums, total = np.cumsum(order)[:-1], order.sum()
        between = (sums - count * total / len(order)) ** 2 / (count * (len(order) - count))
        split = int(np.argmax(between)) + 1
        below, above = sizes[:split], sizes[split:]
        small, large = float(np.median(below)), float(np.median(above))
        if min(len(below), len(above)) < FEWEST_ROWS or large < max(
            MANY_TIMES * small, LARGE_MISMATCH
        ):
            return None
        if np.quantile(above, PART) < LARGER * np.quantile(below, MOST):
            return None
        outliers = known & (rms >= above[0])
        per_unit = rms / self._rounding_of_rows
        if np.median(per_unit[outliers]) < MUCH_LARGER * np.median(per_unit[known & ~outliers]):
            return None  # these rows are only less certain, and rounding is larger there
        return OutlierRows(outliers, [], large, small)

    @property
    def _rounding_of_rows(self) -> Array:
        """Return what the rms of rounding is proportional to, sqrt(E[(1 - p)^2]), [rows]."""
        tokens = self.log_ratios.tokens
        unsure = np.expm1(np.minimum(np.minimum(tokens.sampler, tokens.trainer), 0.0)) ** 2
        mean = tokens.row_sums(unsure) / np.maximum(tokens.per_row, 1)
        expected: Array = np.sqrt(np.maximum(mean, TINY))
        return expected

    def _parts(self, label: NDArray[Any]) -> MismatchByGroup | None:
        own = label.astype(str) if label.dtype == object else label
        labels, index = np.unique(own, return_inverse=True)
        if len(labels) < 2 or len(labels) > MOST_PARTS:
            return None
        tokens, log_ratio = self.log_ratios.tokens, self.log_ratios.values
        of_token = index[tokens.owner]
        count = np.bincount(of_token, minlength=len(labels))
        squares = np.bincount(of_token, log_ratio**2, len(labels)) / np.maximum(count, 1)
        k3 = np.bincount(of_token, np.expm1(log_ratio) - log_ratio, len(labels))
        rows = np.bincount(index, minlength=len(labels))
        usable = count > 0
        return MismatchByGroup(
            [str(name) for name in labels[usable]],
            rows[usable],
            np.sqrt(squares[usable]),
            (k3 / np.maximum(count, 1))[usable],
        )

    @cached_property
    def id_outliers(self) -> list[IdOutlier]:
        """Return the token ids, if a few, at which most rows begin to differ, the commonest first.

        They are at most FEWEST_OF_PATTERN ids. In MOST of the rows that have a log-ratio as large
        as the surprisal of a rare token, the first such token has one of them, and the id's own
        log-ratios are all that large, with little spread. After a wrong id the context is another
        one, so that later tokens of any id may differ as much.
        """
        tokens, log_ratio = self.log_ratios.tokens, self.log_ratios.values
        far = np.flatnonzero(np.abs(log_ratio) > -RARE)
        first = far[np.unique(tokens.owner[far], return_index=True)[1]]
        ids, rows = np.unique(tokens.token_id[first], return_counts=True)
        named = np.isin(tokens.token_id, ids)
        ends_row = np.append(np.diff(tokens.owner) != 0, True)
        place = np.searchsorted(ids, tokens.token_id[named])
        count, sums, squares, last = (
            np.bincount(place, values[named], len(ids))
            for values in (np.ones(len(tokens)), log_ratio, log_ratio**2, ends_row)
        )
        means = sums / np.maximum(count, 1.0)
        spread = np.sqrt(np.maximum(squares / np.maximum(count, 1.0) - means**2, 0.0))
        alike = (count >= FEWEST_OF_PATTERN) & (np.abs(means) > -RARE)
        alike &= MUCH_LARGER * spread < np.abs(means)
        chosen = np.argsort(-rows * alike, kind="stable")[:FEWEST_OF_PATTERN]
        chosen = chosen[alike[chosen]]
        if rows[chosen].sum() < max(MOST * len(first), FEWEST_OF_PATTERN):
            return []
        return [
            IdOutlier(int(ids[i]), int(count[i]), float(means[i]), float(last[i] / count[i]))
            for i in chosen
        ]
