"""The rounding of a bfloat16 engine, measured by a pass of the same weights in bfloat16.

Another engine rounds other sums, but its residuals have the same size and tail, and depend equally
little on the token id. Larger residuals are more than rounding.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from rcdiag.diagnosis.case import Counts
from rcdiag.diagnosis.experiments.fit import Residual
from rcdiag.diagnosis.experiments.thresholds import OUTLYING, SENSITIVE
from rcdiag.diagnosis.features.log_ratios import cross_fitted
from rcdiag.diagnosis.thresholds import ENOUGH, FEWEST_OF_PATTERN, LARGER, PART, ROUNDING

# Largest scale of logit noise: a pass beyond it, such as one that overflows, does not show what
# rounding explains.
LARGEST_NOISE = 0.3
# A tail is heavier than rounding if it exceeds twice the tail of rounding, which is taken to be at
# least LIGHTEST.
LIGHTEST = 2.0


class Rounding(Struct, frozen=True, kw_only=True):
    """How the model's own pass in bfloat16 differs from the one in float32."""

    scale: float  # of the logit noise
    tail: float  # `Residual.tail`
    by_token: float | None  # share of the squares that token ids explain; None: too few tokens

    @property
    def noise(self) -> float:
        """Return the scale of logit noise up to which engine rounding explains a column.

        Residuals of two bfloat16 engines have .75 to 1.1 times the scale of the model's own pass;
        the margin allows for other kernels, and for the few rows on which the scale is measured.
        """
        return float(np.clip(LARGER * self.scale, ROUNDING, LARGEST_NOISE))

    def is_heavier_in(self, residual: Residual) -> bool:
        """Tell whether a residual has a heavier tail than rounding: a few tokens deviate a lot."""
        return residual.tail > 2.0 * max(self.tail, LIGHTEST)

    def follows_ids_in(self, residual: Residual, token: Counts, owner: Counts) -> bool:
        """Tell whether a residual depends more on the token id than rounding does."""
        mine = by_token(residual, token, owner)
        return mine is not None and mine > (self.by_token or 0.0) + PART


def rounding_of(residual: Residual, token: Counts, owner: Counts) -> Rounding:
    """Describe rounding by the residual of the bfloat16 pass against the float32 pass."""
    return Rounding(
        scale=residual.scale, tail=residual.tail, by_token=by_token(residual, token, owner)
    )


def by_token(residual: Residual, token: Counts, owner: Counts) -> float | None:
    """Return the share of squared residuals of uncertain tokens that the token id explains.

    It is estimated from two halves of the rows (`cross_fitted`). None where too few ids occur in
    both halves.
    """
    unsure = residual.sensitivity > SENSITIVE
    if unsure.sum() < ENOUGH:
        return None
    width = residual.scale * residual.sensitivity[unsure] + residual.resolution[unsure]
    values = np.clip(residual.values[unsure] / width, -OUTLYING, OUTLYING)
    rows = np.unique(owner)
    late = owner[unsure] >= rows[len(rows) // 2]
    agreement = cross_fitted(token[unsure], values, late, least=FEWEST_OF_PATTERN)
    if agreement.labels < FEWEST_OF_PATTERN:
        return None
    return float(np.clip(agreement.explained, 0.0, 1.0))
