"""Coefficient vectors that are one vector but for a factor of each row share a backward pass.

What weighs or rejects whole sequences scales a row's coefficients by one number, and with them all
that flows back through the row: d loss / d output of every layer. So one backward pass through the
body serves all such vectors, and each has only its own products of inputs and output gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.learning.basis import TOLERANCE
from rcdiag.table.segments import segment_sum

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
    """Gather the vectors [K, tokens] of rows with these numbers of tokens in families.

    Vectors belong together where no row's part of one is further from a multiple of the other's
    than 1e-9 of its norm.
    """
    tokens = np.asarray(lengths, np.int64)
    sizes = np.stack([_squares(vector, tokens) for vector in coefficients])
    leaders: list[Array] = []
    numbers: list[list[int]] = []
    # Vectors that leave out rows come last: leaders then have all rows, as a rule.
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
