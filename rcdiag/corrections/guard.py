"""A guard is what a trainer does to log-ratios before it takes exp of them or of their sums."""

from __future__ import annotations

from typing import Literal, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.corrections.exponentials import exp

T = TypeVar("T", bound=np.floating)

SAFETY_BOUND = 20.0  # nats, of a guard that is not said otherwise


class Guard(Struct, frozen=True):
    """What a trainer does to log-ratios before it takes exp of them or of their sums."""

    bound: float = SAFETY_BOUND  # nats; log-ratios are clamped to +-bound; inf: no clamp
    before_sums: bool = False  # the clamp acts on tokens before they are summed or averaged
    # NaN or infinite: `stays`; `equal` makes the log-ratio 0, `nan_equal` that of a NaN alone,
    # `zero` makes the ratio 0.
    non_finite: Literal["stays", "equal", "nan_equal", "zero"] = "stays"
    epsilon: float = 1e-8  # what it adds to counts of tokens that it divides by
    nan_log_prob: float | None = None  # what takes the place of a log-prob that is NaN

    def exp(self, logs: NDArray[T]) -> NDArray[T]:
        """Return exp of log-ratios that are held within the bound."""
        bounded = logs if np.isinf(self.bound) else np.clip(logs, -self.bound, self.bound)
        return self.finite(exp(bounded))

    def finite(self, ratio: NDArray[T]) -> NDArray[T]:
        """Set ratios that are no finite number to 0 where the guard says so."""
        if self.non_finite != "zero":
            return ratio
        return np.where(np.isfinite(ratio), ratio, ratio.dtype.type(0.0))


UNSAID = Guard()
