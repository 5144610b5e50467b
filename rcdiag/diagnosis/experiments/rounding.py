"""The rounding of a bfloat16 engine, measured by a pass of the same weights in bfloat16.

Another engine rounds other sums, but its residuals have the same size and tail, and depend as
little on the token id. Residuals beyond that are no rounding.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from rcdiag.diagnosis.case import Counts
from rcdiag.diagnosis.experiments.fit import Residual
from rcdiag.diagnosis.experiments.thresholds import FEWEST_OF_ID, UNSURE
from rcdiag.diagnosis.thresholds import PART

LEAST, MOST = 1e-3, 0.3  # noise of logits that is never less, and never more
# Two engines in bfloat16 leave .75 to 1.1 times what the model's own pass does; other kernels, and
# few rows to measure it on, are given room.
ROOM = 1.6
FEWEST = 300  # unsure tokens that tell what follows the token's id
CLIPPED = 8.0  # scales beyond which one token says no more of its id
# The tail that any rounding may have, and times the tail of rounding, from which on few tokens are
# off for another reason.
LIGHTEST, TAILS = 2.0, 2.0


class Rounding(Struct, frozen=True, kw_only=True):
    """How the model's own pass in bfloat16 differs from the one in float32."""

    scale: float  # of the logit noise
    tail: float  # rms of unsure tokens in units of the scale
    by_token: float | None  # share of the squares that follows the token's id; None: too few

    @property
    def noise(self) -> float:
        """Return the scale of logit noise up to which a column is an engine's rounding."""
        return float(np.clip(ROOM * self.scale, LEAST, MOST))

    def is_heavier_in(self, residual: Residual) -> bool:
        """Tell whether few tokens of a column are off by more than rounding puts them off."""
        return residual.tail > TAILS * max(self.tail, LIGHTEST)

    def follows_ids_in(self, residual: Residual, token: Counts, owner: Counts) -> bool:
        """Tell whether more of what is left follows the token's id than of rounding does."""
        mine = by_token(residual, token, owner)
        return mine is not None and mine > (self.by_token or 0.0) + PART


def rounding_of(residual: Residual, token: Counts, owner: Counts) -> Rounding:
    """Describe what a pass in bfloat16 leaves of the one in float32."""
    return Rounding(
        scale=residual.scale, tail=residual.tail, by_token=by_token(residual, token, owner)
    )


def by_token(residual: Residual, token: Counts, owner: Counts) -> float | None:
    """Return the share of the squares of unsure tokens' residuals that follows the token's id.

    The means of one half of the rows are compared with those of the other half, so that chance adds
    nothing. None where too few ids stand in both.
    """
    unsure = residual.sensitivity > UNSURE
    if unsure.sum() < FEWEST:
        return None
    width = residual.scale * residual.sensitivity[unsure] + residual.resolution[unsure]
    values = np.clip(residual.values[unsure] / width, -CLIPPED, CLIPPED)
    _, ids = np.unique(token[unsure], return_inverse=True)
    rows = np.unique(owner)
    late = owner[unsure] >= rows[len(rows) // 2]
    size = int(ids.max()) + 1
    counts = [np.bincount(ids[half], minlength=size) for half in (~late, late)]
    sums = [np.bincount(ids[half], values[half], size) for half in (~late, late)]
    both = (counts[0] >= FEWEST_OF_ID) & (counts[1] >= FEWEST_OF_ID)
    if both.sum() < FEWEST_OF_ID:
        return None
    means = [sums[half][both] / counts[half][both] for half in (0, 1)]
    weight = (counts[0] + counts[1])[both]
    squares = float(np.mean(values[both[ids]] ** 2))
    if squares <= 0.0:
        return None
    return float(np.clip(np.average(means[0] * means[1], weights=weight) / squares, 0.0, 1.0))
