"""A hash of 64-bit words, for samples that do not depend on how rows are ordered or cut."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter neighbours by a bijection (the finaliser of SplitMix64, Steele et al. 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return words ^ (words >> np.uint64(31))
