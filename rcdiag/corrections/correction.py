"""A correction has one canonical form for all trainers, which this module defines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

Level = Literal["token", "sequence", "geometric"]


@dataclass(frozen=True, slots=True)
class Weighting:
    """Importance-sampling weights: the ratio at a level, and what happens outside the bounds."""

    level: Level
    upper: float
    lower: float | None = None  # None: 1 / upper where a lower bound is asked for
    # truncate: min(ratio, upper). clip: into [lower, upper]. zero: 0 outside (IcePop, MIS).
    # mask: the ratio as it is, tokens outside are rejected.
    outside: Literal["truncate", "clip", "zero", "mask"] = "truncate"
    nan_stays: bool = False  # zeroing by a product with 0, which leaves a NaN what it is

    @property
    def lower_or_reciprocal(self) -> float:
        return 1.0 / self.upper if self.lower is None else self.lower


@dataclass(frozen=True, slots=True)
class Rejection:
    """Tokens or sequences whose statistic lies outside [lower, upper] leave the loss mask.

    Statistics: `token`, `sequence`, `geometric` are ratios; `{token,seq_sum,seq_mean,seq_max}_{k}`
    are k1 = -log_ratio, k2, k3 in nats, and their bounds are in nats too.
    """

    statistic: str
    upper: float
    lower: float | None = None  # None: no lower bound

    @property
    def of_ratio(self) -> bool:
        return self.statistic in ("token", "sequence", "geometric")

    @property
    def of_tokens(self) -> bool:
        return self.statistic.startswith("token")


@dataclass(frozen=True, slots=True)
class Correction:
    """The weights, rejections and veto by which a trainer changes a batch before the loss."""

    weighting: Weighting | None = None
    rejections: tuple[Rejection, ...] = ()
    veto: float | None = None  # a token with a smaller ratio takes its whole sequence out
    veto_on_weights: bool = False  # then the veto zeroes weights and leaves the mask alone
    batch_normalize: bool = False
    weights_applied: bool = True  # False: the trainer logs them and leaves the loss alone
    mode: Literal["decoupled", "bypass"] = "decoupled"
    loss: str = "ppo_clip"

    @property
    def loss_weighting(self) -> Weighting | None:
        """Return the weights that reach the loss; None where weights are logged only."""
        return self.weighting if self.weights_applied else None

    @property
    def leaves_loss_alone(self) -> bool:
        """Whether the loss has no weight, no rejection and no mismatch in its PPO ratio."""
        rejects = bool(self.rejections) or self.veto is not None
        return self.loss_weighting is None and not rejects and not self.ratio_corrects

    @property
    def ratio_corrects(self) -> bool:
        """Whether the PPO ratio is taken against the rollout, so that the mismatch is in it."""
        return self.mode == "bypass" and self.loss == "ppo_clip"

    @property
    def counts_mismatch_twice(self) -> bool:
        """Whether weights stand on top of a PPO ratio that corrects already."""
        return self.ratio_corrects and self.weighting is not None


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(np.float32(value))


def in_float32(correction: Correction) -> Correction:
    """Return the correction with its bounds rounded as a trainer compares them in float32."""
    weighting = correction.weighting
    if weighting is not None:
        upper = float(np.float32(weighting.upper))
        weighting = replace(weighting, upper=upper, lower=_rounded(weighting.lower))
    rejections = tuple(
        replace(
            rejection, upper=float(np.float32(rejection.upper)), lower=_rounded(rejection.lower)
        )
        for rejection in correction.rejections
    )
    return replace(correction, weighting=weighting, rejections=rejections)
