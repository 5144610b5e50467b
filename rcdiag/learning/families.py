"""Decide which coefficient vectors need a backward pass: a basis, grouped into families.

Gradients are linear in the coefficients, so the gradients of a basis determine all others. Sequence
weights and sequence rejection multiply all coefficients of a row by one number, and therefore also
d loss / d output of every layer at that row. So one backward pass through the decoder serves all
such vectors; each needs only its own products of inputs and scaled output gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.trajectories import segment_sum

Array = NDArray[np.float64]

# Relative to a vector's norm; far below the rounding error of float32 gradients.
TOLERANCE = 1e-9


class Basis(Struct, frozen=True):
    """A subset of the vectors [K] of which all others are linear combinations."""

    rows: NDArray[np.int64]  # [rank] indices of the basis among the K vectors
    combine: NDArray[np.float64]  # [K, rank]


def basis_of(coefficients: NDArray[np.float64]) -> Basis:
    """Write C [K, tokens] as combine [K, rank] @ C[rows], by a rank-revealing QR.

    With the vectors scaled to norm 1, C' P = Q R by column pivoting; the first `rank` columns are
    those with |R_ii| > 1e-9, and the rest are Q R_12 = (Q R_11) (R_11^-1 R_12). Gradients are
    linear in the coefficients, so the same combination holds for them. Zero vectors get zero
    combinations. Source: Golub and Van Loan 2013, Matrix Computations, 4th edition, section 5.4.2.
    """
    from scipy.linalg import qr, solve_triangular

    not_finite = np.flatnonzero(~np.isfinite(coefficients).all(axis=1))
    if len(not_finite):
        raise RcdiagError(
            f"coefficient vector {not_finite[0]} has a NaN or an infinity: it has no gradient",
            hint="leave out presets whose loss is undefined",
        )
    norms = np.linalg.norm(coefficients, axis=1)
    used = np.flatnonzero(norms)
    combine = np.zeros((len(coefficients), 0))
    if not len(used):
        return Basis(used, combine)
    unit = coefficients[used] / norms[used, None]
    triangle, order = qr(unit.T, mode="r", pivoting=True)
    triangle = triangle[: len(used)]
    rank = int((np.abs(np.diag(triangle)) > TOLERANCE).sum())
    shares = solve_triangular(triangle[:rank, :rank], triangle[:rank])
    rows = used[order[:rank]]
    combine = np.zeros((len(coefficients), rank))
    combine[used[order]] = shares.T * norms[used[order], None] / norms[rows]
    combine[rows] = np.eye(rank)
    return Basis(rows, combine)


class VectorFamily(Struct, frozen=True):
    """Coefficient vectors with c_k = factor_k(row) * leader at all tokens of each row."""

    leader: Array  # [tokens]
    own: int | None  # index of the vector that equals the leader, None if there is none
    members: tuple[int, ...]  # indices of the other vectors
    factors: Array  # [members, rows]


def separate_families(coefficients: Array) -> list[VectorFamily]:
    """Return each vector [K, tokens] as a family of its own."""
    none = np.zeros((0, 0))
    return [VectorFamily(vector, number, (), none) for number, vector in enumerate(coefficients)]


def families_of(coefficients: Array, lengths: Sequence[int]) -> list[VectorFamily]:
    """Group the vectors [K, tokens] into families; `lengths` [rows] are tokens per row.

    Two vectors belong together if in every row one is a multiple of the other, to within 1e-9 of
    its norm.
    """
    tokens = np.asarray(lengths, np.int64)
    sizes = np.stack([_squares(vector, tokens) for vector in coefficients])
    leaders: list[Array] = []
    numbers: list[list[int]] = []
    # Vectors with zero rows come last, so that leaders are usually nonzero in all rows.
    for number in np.argsort(-(sizes > 0).sum(axis=1), kind="stable").tolist():
        vector = coefficients[number]
        for index, leader in enumerate(leaders):
            if _is_proportional(leader, vector, tokens):
                leaders[index] = np.where(
                    np.repeat(_squares(leader, tokens) > 0, tokens), leader, vector
                )
                numbers[index].append(number)
                break
        else:
            leaders.append(vector)
            numbers.append([number])
    families = []
    for leader, chosen in zip(leaders, numbers, strict=True):
        own = next((n for n in chosen if np.array_equal(coefficients[n], leader)), None)
        members = tuple(number for number in chosen if number != own)
        factors = [_factors(leader, coefficients[number], tokens) for number in members]
        none = np.zeros((0, 0))
        families.append(VectorFamily(leader, own, members, np.stack(factors) if factors else none))
    return families


def _squares(vector: Array, lengths: NDArray[np.int64]) -> Array:
    return np.asarray(segment_sum(vector * vector, lengths))


def _factors(leader: Array, vector: Array, lengths: NDArray[np.int64]) -> Array:
    """Return for each row the multiple of the leader that is nearest to the vector, [rows]."""
    size = _squares(leader, lengths)
    product = segment_sum(leader * vector, lengths)
    multiple: Array = np.divide(product, size, out=np.zeros(len(size)), where=size > 0)
    return multiple


def _is_proportional(leader: Array, vector: Array, lengths: NDArray[np.int64]) -> bool:
    """Tell whether a vector is a multiple of the leader in every row where neither is zero."""
    apart = vector - np.repeat(_factors(leader, vector, lengths), lengths) * leader
    both = _squares(leader, lengths) > 0
    left, size = _squares(apart, lengths)[both], _squares(vector, lengths)[both]
    return bool(np.all(left <= TOLERANCE**2 * size))
