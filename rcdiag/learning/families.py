"""Coefficient vectors that differ by one factor per row share a backward pass.

Sequence weights and sequence rejection scale all coefficients of a row by one number, and with them
d loss / d output of every layer at that row. So one backward pass through the body serves all such
vectors; each only needs its own products of inputs and scaled output gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.learning.basis import TOLERANCE
from rcdiag.table.trajectories import segment_sum

Array = NDArray[np.float64]


class Family(Struct, frozen=True):
    """Coefficient vectors c_k with c_k = factor_k(row) leader at all tokens of a row."""

    leader: Array  # [tokens]
    own: int | None  # number of the vector that is the leader itself; None where none is
    members: tuple[int, ...]  # numbers of the other vectors
    factors: Array  # [members, rows]


def alone(coefficients: Array) -> list[Family]:
    """Return each vector [K, tokens] as a family of its own."""
    none = np.zeros((0, 0))
    return [Family(vector, number, (), none) for number, vector in enumerate(coefficients)]


def families_of(coefficients: Array, lengths: Sequence[int]) -> list[Family]:
    """Group the vectors [K, tokens] into families; `lengths` [rows] are the tokens of each row.

    Two vectors belong together if in every row one is a multiple of the other, to within 1e-9 of
    its norm.
    """
    tokens = np.asarray(lengths, np.int64)
    sizes = np.stack([_squares(vector, tokens) for vector in coefficients])
    leaders: list[Array] = []
    numbers: list[list[int]] = []
    # Vectors with zero rows come last, so that leaders usually have coefficients in every row.
    for number in np.argsort(-(sizes > 0).sum(axis=1), kind="stable").tolist():
        vector = coefficients[number]
        for index, leader in enumerate(leaders):
            if _alike(leader, vector, tokens):
                leaders[index] = np.where(
                    np.repeat(_squares(leader, tokens) > 0, tokens), leader, vector
                )
                numbers[index].append(number)
                break
        else:
            leaders.append(vector)
            numbers.append([number])
    return [
        _family(leader, chosen, coefficients, tokens)
        for leader, chosen in zip(leaders, numbers, strict=True)
    ]


def _family(
    leader: Array, numbers: list[int], coefficients: Array, lengths: NDArray[np.int64]
) -> Family:
    own = next((n for n in numbers if np.array_equal(coefficients[n], leader)), None)
    members = tuple(number for number in numbers if number != own)
    factors = [_factors(leader, coefficients[number], lengths) for number in members]
    return Family(leader, own, members, np.stack(factors) if factors else np.zeros((0, 0)))


def _squares(vector: Array, lengths: NDArray[np.int64]) -> Array:
    return np.asarray(segment_sum(vector * vector, lengths))


def _factors(leader: Array, vector: Array, lengths: NDArray[np.int64]) -> Array:
    """Return the multiple of the leader that is nearest to a vector in each row, [rows]."""
    size = _squares(leader, lengths)
    product = segment_sum(leader * vector, lengths)
    multiple: Array = np.divide(product, size, out=np.zeros(len(size)), where=size > 0)
    return multiple


def _alike(leader: Array, vector: Array, lengths: NDArray[np.int64]) -> bool:
    """Tell whether a vector is a multiple of the leader in every row that both have."""
    apart = vector - np.repeat(_factors(leader, vector, lengths), lengths) * leader
    both = _squares(leader, lengths) > 0
    left, size = _squares(apart, lengths)[both], _squares(vector, lengths)[both]
    return bool(np.all(left <= TOLERANCE**2 * size))
