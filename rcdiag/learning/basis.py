"""Which coefficient vectors need a backward pass of their own: a basis of their span."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError

# Relative to a vector's own norm, and far below the rounding of float32 gradients.
TOLERANCE = 1e-9


class Basis(Struct, frozen=True):
    """A few of the vectors [K], of which the others are linear combinations."""

    rows: NDArray[np.int64]  # [rank] which of the K
    combine: NDArray[np.float64]  # [K, rank]


def basis_of(coefficients: NDArray[np.float64]) -> Basis:
    """Write C [K, tokens] as combine [K, rank] @ C[rows], by a rank-revealing QR.

    With the vectors scaled to norm 1, C' P = Q R by column pivoting; the first `rank` columns are
    those with |R_ii| > 1e-9, and the rest are Q R_12 = (Q R_11) (R_11^-1 R_12). Gradients are
    linear in the coefficients, so the same combination holds for them. A vector of zeros takes
    part in nothing. Source: Golub and Van Loan 2013, Matrix Computations, 4th edition,
    section 5.4.2.
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
