"""Which checkpoint's weights sampled each row: losses, posterior and switches within rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from msgspec import Struct

from rcdiag.diagnosis.case import Array, Counts, Flags
from rcdiag.diagnosis.experiments.fit import residuals
from rcdiag.diagnosis.experiments.rescored_sample import RescoredSample, Side
from rcdiag.diagnosis.thresholds import DECISIVE, FEWEST_OF_PATTERN, WITH_A_CHOICE
from rcdiag.engines.changes import Change, Forward

EXPLAINED = 1.0  # a row is explained up to engine noise if its mean loss per token is below this


class WeightsByRow(Struct, frozen=True, dict=True):
    """How well the weights of each candidate explain each row of one side's column."""

    names: list[str]  # the trainer's own weights first, then checkpoints
    columns: list[Array]  # [candidates][tokens of the sample] nats, NaN in rows not scored
    rows: Counts  # [rows] index in the case
    losses: Array  # [candidates, rows] summed over tokens
    by_token: Array  # [rows] loss if each token takes the candidate that fits it best
    tokens: Counts  # [rows]
    # Rows whose beginning one candidate explains and whose end another: [rows] token of the
    # switch, -1 without one.
    switch: Counts

    @cached_property
    def posterior(self) -> Array:
        """Return the probability of every candidate for every row, [candidates, rows]."""
        weights = np.exp(-(self.losses - self.losses.min(axis=0)))
        values: Array = weights / weights.sum(axis=0)
        return values

    @cached_property
    def best(self) -> Counts:
        """Return the likeliest candidate of every row, [rows]."""
        counts: Counts = np.argmin(self.losses, axis=0)
        return counts

    @cached_property
    def explained(self) -> Flags:
        """Flag rows that their likeliest candidate explains up to engine noise, [rows]."""
        flags: Flags = self.losses.min(axis=0) < EXPLAINED * np.maximum(self.tokens, 1)
        return flags

    @property
    def by_other_weights(self) -> Flags:
        """Flag rows that weights other than the trainer's explain, at least in part, [rows]."""
        better = self.losses[0] - self.losses[1:].min(axis=0) > DECISIVE
        of_tokens = self.by_token < EXPLAINED * np.maximum(self.tokens, 1)
        flags: Flags = (better & of_tokens) | (self.switch >= 0)
        return flags

    @property
    def mixed(self) -> float:
        """Return the share of rows that only a mix of candidates, token by token, explains."""
        mixed = self.by_token < EXPLAINED * np.maximum(self.tokens, 1)
        return float((mixed & ~self.explained).mean())


def weights_by_row(
    sample: RescoredSample,
    side: Side,
    forward: Forward,
    changes: Mapping[str, Change],
    rows: Counts | None = None,
) -> WeightsByRow:
    """Score rows under every change of the weights and compare the side's column with each.

    `changes` are by name; without `rows` all are scored.
    """
    rows = sample.rows if rows is None else rows
    temperature = {
        int(row): float(t) for row, t in zip(sample.owner, side.temperature, strict=True)
    }
    passages = [sample.passage(int(row), temperature[int(row)]) for row in rows]
    columns = [side.expected]
    for change in changes.values():
        column = np.full(len(sample), np.nan)
        column[sample.tokens_of(rows)] = forward.log_probs(passages, change)
        columns.append(column)
    at = side.known_at[np.isin(sample.owner[side.known_at], rows)]
    sensitivity = side.sensitivity[at]
    width = sample.noise * sensitivity + side.resolution[at]
    losses = np.stack(
        [np.log1p((residuals(side.recorded[at], column[at]) / width) ** 2) for column in columns]
    )
    row = np.searchsorted(rows, sample.owner[at])
    count = len(rows)
    summed = np.stack([_by_row(row, loss, count) for loss in losses])
    tokens = np.bincount(row, minlength=count)
    return WeightsByRow(
        names=["the trainer's", *changes],
        columns=columns,
        rows=rows,
        losses=summed,
        by_token=_by_row(row, losses.min(axis=0), count),
        tokens=tokens,
        switch=_switches(losses, row, count),
    )


def _by_row(row: Counts, values: Array, count: int) -> Array:
    """Add values up by row, [rows]."""
    return np.bincount(row, values, minlength=count).astype(np.float64)


def _switches(losses: Array, row: Counts, count: int) -> Counts:
    """Return the token [rows] at which a row switches from one candidate to another, -1 without.

    At least FEWEST_OF_PATTERN tokens lie on either side of it.
    """
    switch = np.full(count, -1)
    ends = np.searchsorted(row, np.arange(count + 1))
    for index in range(count):
        part = losses[:, ends[index] : ends[index + 1]]
        size = part.shape[1]
        if size < 2 * FEWEST_OF_PATTERN:
            continue
        sums = np.concatenate([np.zeros((len(part), 1)), np.cumsum(part, axis=1)], axis=1)
        whole = sums[:, -1].min()
        first = sums.min(axis=0)
        last = (sums[:, -1:] - sums).min(axis=0)
        inner = slice(FEWEST_OF_PATTERN, size - FEWEST_OF_PATTERN + 1)
        total = (first + last)[inner]
        best = int(np.argmin(total))
        if whole - total[best] > WITH_A_CHOICE:
            switch[index] = best + FEWEST_OF_PATTERN
    return switch
