"""Storage: properties of the values of one column, whatever the policies are."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct

from rcdiag.diagnosis.case import Array, Case, Counts, Flags
from rcdiag.diagnosis.thresholds import (
    CERTAIN,
    EQUAL,
    FEWEST,
    FEWEST_OF_PATTERN,
    FEWEST_OF_ROW,
    HALF,
    NEARLY_ALL,
    RARE,
    SURE,
    TINY,
)
from rcdiag.statistics.extremes import LARGEST_LOG_PROB

# Decimals are counted of values above DECIMALS_FROM, nats; more than MOST_DECIMALS are no rounding.
DECIMALS_FROM, MOST_DECIMALS = -8.0, 5
LOG_BASES = {2: 1 / np.log(2.0), 10: 1 / np.log(10.0)}


class Grid(Struct, frozen=True):
    """The numbers that a column's storage format can represent."""

    slug: str  # of its cause: stored-bfloat16, stored-float16 or stored-rounded
    name: str  # "bfloat16", "3 decimals"
    decimals: int = 0

    def step(self, values: Array) -> Array:
        """Return the spacing of the grid at some values, nats."""
        if self.slug == "stored-rounded":
            return np.full(len(values), 10.0**-self.decimals)
        bits = 8 if self.slug == "stored-bfloat16" else 11
        with np.errstate(divide="ignore"):
            size = np.log2(np.abs(np.nan_to_num(values, posinf=0.0, neginf=0.0)))
        return np.asarray(2.0 ** (np.floor(size) + 1 - bits))

    def rounding_error(self, values: Array) -> float:
        """Return the rms rounding error, nats: the spacing over sqrt(12)."""
        finite = values[np.isfinite(values) & (values != 0)]
        return float(np.sqrt(np.mean(self.step(finite) ** 2) / 12.0))


class StoredColumn(Struct, frozen=True, kw_only=True, dict=True):
    """The values of one policy on sampled tokens and those of the other, [tokens]."""

    values: Array
    other: Array  # those of the other policy; NaN where there is no other
    row_of: Counts  # [tokens] index of the row, ascending

    @cached_property
    def finite(self) -> Flags:
        """Flag the values that are numbers."""
        return np.isfinite(self.values)

    @cached_property
    def other_is_informative(self) -> bool:
        """Tell whether the other policy's column can hold log-probs: not constant, not positive."""
        numbers = self.other[np.isfinite(self.other) & (self.other != 0.0)]
        if not len(numbers) or np.ptp(numbers) == 0.0:
            return False
        return float(np.mean(numbers > 0.0)) < NEARLY_ALL

    @cached_property
    def positive(self) -> Flags:
        """Flag finite values that are too large for a log-prob."""
        return self.finite & (self.values > LARGEST_LOG_PROB)

    @cached_property
    def in_positive_rows(self) -> Flags:
        """Flag the tokens of rows in which nearly all values other than 0 are positive.

        One such row has FEWEST_OF_ROW values at least, or all rows together are so.
        """
        rows = int(self.row_of[-1]) + 1 if len(self.row_of) else 0
        positive, others = (
            np.bincount(self.row_of, flags, rows) for flags in (self.values > 0, self.values != 0.0)
        )
        if positive.sum() > NEARLY_ALL * max(others.sum(), 1.0):
            return np.ones(len(self.values), np.bool_)
        rows_of_them = positive > NEARLY_ALL * np.maximum(others, 1.0)
        flags: Flags = rows_of_them[self.row_of] & (others[rows_of_them] >= FEWEST_OF_ROW).any()
        return flags

    @cached_property
    def negative_values(self) -> Array:
        """Return the values below CERTAIN; values near 0 are on many grids."""
        return self.values[self.finite & (self.values < CERTAIN)]

    @cached_property
    def bfloat16(self) -> float:
        """Return the share of values that bfloat16 represents exactly."""
        bits = self.negative_values.astype(np.float32).view(np.uint32)
        return _share((bits & 0xFFFF) == 0)

    @cached_property
    def float16(self) -> float:
        """Return the share of values that float16 represents exactly."""
        values = self.negative_values
        single = values[values > np.finfo(np.float16).min].astype(np.float32)
        return _share(single.astype(np.float16).astype(np.float32) == single)

    @cached_property
    def decimals(self) -> int | None:
        """Return the number of decimals that values were rounded to, 1 to 5, or None."""
        values = self.negative_values[self.negative_values > DECIMALS_FROM]
        if len(values) < FEWEST:
            return None
        for places in range(1, MOST_DECIMALS + 1):
            scaled = values * 10.0**places
            error = np.abs(scaled - np.round(scaled))
            # float32 represents a number near 8 to within 5e-7.
            if _share(error < EQUAL * 10.0**places) > NEARLY_ALL:
                return places
        return None

    @cached_property
    def grid(self) -> Grid | None:
        """Return the grid on which all values lie; None without one, or with too few values."""
        if len(self.negative_values) < FEWEST or self.constant_rows > HALF:
            return None
        if self.bfloat16 > NEARLY_ALL:
            return Grid("stored-bfloat16", "bfloat16")
        if self.float16 > NEARLY_ALL:
            return Grid("stored-float16", "float16")
        if self.decimals is not None and self.decimals < MOST_DECIMALS:
            places = self.decimals
            return Grid("stored-rounded", f"{places} decimal{'s' if places > 1 else ''}", places)
        return None

    @cached_property
    def mode(self) -> tuple[float, int]:
        """Return the most frequent value other than 0, and how often it occurs."""
        values = self.values[self.finite & (self.values != 0.0)]
        if not len(values):
            return 0.0, 0
        distinct, counts = np.unique(values, return_counts=True)
        best = int(np.argmax(counts))
        return float(distinct[best]), int(counts[best])

    @cached_property
    def least(self) -> tuple[float, int]:
        """Return the smallest value, and how often it occurs."""
        values = self.values[self.finite]
        if not len(values):
            return 0.0, 0
        least = float(values.min())
        return least, int((values == least).sum())

    @property
    def repeats_rare_values(self) -> bool:
        """Tell whether log-probs of rare tokens, apart from the smallest value, are repeated."""
        values = self.values[self.finite]
        rare = values[(values < RARE) & (values > values.min())] if len(values) else values
        return len(np.unique(rare)) < NEARLY_ALL * len(rare) or len(rare) < FEWEST

    @cached_property
    def row_starts(self) -> Counts:
        """Return the index of each row's first token."""
        return np.flatnonzero(np.diff(self.row_of, prepend=-1))

    @cached_property
    def row_lengths(self) -> Counts:
        """Return the number of tokens of each row that has any."""
        return np.diff(np.append(self.row_starts, len(self.values)))

    @cached_property
    def constant_rows(self) -> float:
        """Return the share of rows with at least 8 tokens whose values are all the same."""
        values = np.where(self.finite, self.values, np.nan)
        if not len(values):
            return 0.0
        high = np.maximum.reduceat(values, self.row_starts)
        low = np.minimum.reduceat(values, self.row_starts)
        return self._share_of_long_rows(high - low <= EQUAL * (1 + np.abs(low)))

    @cached_property
    def one_value(self) -> float | None:
        """Return the value that all tokens have, in several rows; None if values differ."""
        numbers = self.values[self.finite]
        same = (
            len(numbers) >= FEWEST_OF_ROW
            and len(self.row_lengths) >= FEWEST_OF_PATTERN
            and np.ptp(numbers) == 0.0
        )
        return float(numbers[0]) if same else None

    @cached_property
    def falling_rows(self) -> float:
        """Return the share of rows with at least 8 tokens in which the values never rise."""
        values = np.where(self.finite, self.values, np.nan)
        if not len(values):
            return 0.0
        rises = np.diff(values, prepend=values[:1]) > EQUAL
        rises[self.row_starts] = False
        return self._share_of_long_rows(~np.logical_or.reduceat(rises, self.row_starts))

    def _share_of_long_rows(self, rows: Flags) -> float:
        return _share(rows[self.row_lengths >= FEWEST_OF_ROW])

    def multiple(self) -> tuple[float, float]:
        """Return k = median(values / other), and rms(values - k * other) / rms(values).

        Both are NaN where there is nothing to divide.
        """
        usable = self.finite & np.isfinite(self.other) & (self.other < SURE)
        values, other = self.values[usable], self.other[usable]
        if len(values) < FEWEST:
            return np.nan, np.nan
        k = float(np.median(values / other))
        residual = values - k * other
        return k, float(np.sqrt(np.mean(residual**2) / max(np.mean(values**2), TINY)))


def stored_column(case: Case, policy: str, other: str | None) -> StoredColumn:
    """Return the values of a policy on the sampled tokens of a case."""
    mask = case.mask
    values = case.log_probs[policy][mask]
    beside = np.full(len(values), np.nan) if other is None else case.log_probs[other][mask]
    return StoredColumn(values=values, other=beside, row_of=case.owner[mask])


def _share(flags: Flags) -> float:
    return float(np.mean(flags)) if len(flags) >= FEWEST else 0.0
