"""Two policies on the same tokens: the whole domain in one type."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyPair:
    """Log-probs of the policy that sampled and of the policy we want expectations under.

    Flat and already masked: no padding, tool or template token is in here.
    """

    behavior_log_probs: NDArray[np.float64]  # [tokens] nats
    target_log_probs: NDArray[np.float64]  # [tokens] nats
    lengths: NDArray[np.int64]  # [sequences] tokens of each sequence; 0 is allowed

    @property
    def log_ratio(self) -> NDArray[np.float64]:
        """Target - behavior log-prob of each token, nats."""
        # inf - inf is NaN, which is what it is; no warning needed.
        with np.errstate(invalid="ignore"):
            return self.target_log_probs - self.behavior_log_probs
