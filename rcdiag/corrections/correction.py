"""The canonical form of a correction, the same for all trainers."""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rcdiag.corrections.arithmetic import DEFAULT_GUARD, Guard
from rcdiag.corrections.statistics import STATISTICS, Statistic, place_and_statistic

# A segment is a run of neighbouring sampled tokens: one turn of the policy. Its ratio, like that of
# `geometric`, is exp of a mean of log-ratios.
Level = Literal["token", "segment", "sequence", "geometric"]
BY_TOKEN = ("token", "segment")  # levels at which tokens of one sequence may have other values


class Weighting(Struct, frozen=True):
    """Importance-sampling weights: the ratio at a level, and what happens outside the bounds."""

    level: Level
    upper: float
    lower: float | None = None  # None: 1 / upper where a lower bound is asked for
    # truncate: min(ratio, upper). clip: into [lower, upper]. zero: 0 outside (IcePop, MIS).
    # mask: the ratio as it is, tokens outside are rejected. floor: the lower bound on either side.
    outside: Literal["truncate", "clip", "zero", "mask", "floor"] = "truncate"
    nan_stays: bool = False  # zeroing by a product with 0, which leaves a NaN what it is
    # Ratios of sequences are taken over the tokens that these rejections leave; () over all.
    over: tuple[Rejection, ...] = ()
    # The bounds act on sequences alone that one of these would reject; () on all.
    only_outside: tuple[Rejection, ...] = ()

    @property
    def by_token(self) -> bool:
        """Whether tokens of one sequence may have different weights."""
        return self.level in BY_TOKEN

    @property
    def lower_or_reciprocal(self) -> float:
        return 1.0 / self.upper if self.lower is None else self.lower


class Rejection(Struct, frozen=True):
    """Tokens or sequences whose statistic lies outside [lower, upper] leave the loss mask.

    Statistics: `token`, `segment`, `sequence`, `geometric` are ratios. Others are a place and a
    name of `rcdiag.corrections.statistics`, such as `token_k1` or `seq_mean_k3`: the places are
    `token`, `segment` (mean over the run), `seq_sum`, `seq_mean`, `seq_max`, `seq_min`; bounds have
    the unit of the statistic.
    """

    statistic: str
    upper: float
    lower: float | None = None  # None: no lower bound
    # A statistic of sequences is taken over the tokens that these rejections leave; () over all.
    over: tuple[Rejection, ...] = ()
    # The target of its log-ratio is the policy that is being updated, which at the first update is
    # the trainer's policy before it; else that policy.
    of_current: bool = False

    @property
    def least(self) -> float:
        """The lower bound, -inf without one."""
        return -np.inf if self.lower is None else self.lower

    @property
    def needs_advantages(self) -> bool:
        """Whether its statistic looks at the advantage of tokens."""
        return self.reads.needs_advantages or any(one.needs_advantages for one in self.over)

    @property
    def leaves_denominators(self) -> bool:
        """Whether what it drops counts as masked from then on, so that no denominator has it."""
        return self.reads.before_everything

    @property
    def needs_whole_batch(self) -> bool:
        """Whether its statistic compares a token with all others of the batch."""
        return self.reads.needs_whole_batch or any(one.needs_whole_batch for one in self.over)

    @property
    def reads(self) -> Statistic:
        """The statistic of tokens that it reads."""
        return STATISTICS[place_and_statistic(self.statistic)[1]]

    @property
    def of_each_token(self) -> str:
        """The name of what a rejection by token or segment compares: `token_k1` compares k1."""
        by_segment = self.statistic.startswith("segment")
        return self.statistic if by_segment else place_and_statistic(self.statistic)[1]

    @property
    def of_ratio(self) -> bool:
        return self.statistic in (*BY_TOKEN, "sequence", "geometric")

    @property
    def of_tokens(self) -> bool:
        """Whether it looks at tokens or their segments, and not at whole sequences."""
        return self.statistic.startswith(BY_TOKEN)


class Correction(Struct, frozen=True):
    """The weights, rejections and veto by which a trainer changes a batch before the loss."""

    weighting: Weighting | None = None
    rejections: tuple[Rejection, ...] = ()
    veto: float | None = None  # a token with a smaller ratio takes its whole sequence out
    veto_on_weights: bool = False  # then the veto zeroes weights and leaves the mask alone
    batch_normalize: bool = False
    weights_applied: bool = True  # False: the trainer logs them and leaves the loss alone
    mode: Literal["decoupled", "bypass"] = "decoupled"
    loss: str = "ppo_clip"  # of bypass mode; "" is the loss that the update has in any case
    # Outside of their bounds weights are 0 and the loss mask stays: statistics other than the
    # weight itself, for which `Weighting.outside` is `zero`.
    zeroing: tuple[Rejection, ...] = ()
    guard: Guard = DEFAULT_GUARD
    # The policy loss of this name makes these weights itself, of the current policy and the
    # rollout: they are not multiplied in once more.
    weights_in_loss: bool = False
    logging: str = ""  # a choice among its settings that changes what it logs and nothing else

    @property
    def loss_weighting(self) -> Weighting | None:
        """Return the weights that reach the loss; None where weights are logged only."""
        return self.weighting if self.weights_applied else None

    @property
    def rejects(self) -> bool:
        """Whether tokens or sequences may leave the loss mask, or by a veto lose their weights."""
        return bool(self.rejections) or self.veto is not None

    @property
    def leaves_loss_alone(self) -> bool:
        """Whether the loss has no weight, no rejection and no mismatch in its PPO ratio."""
        return self.loss_weighting is None and not self.rejects and not self.ratio_corrects

    @property
    def decides(self) -> bool:
        """Whether a token or a sequence just beside a bound fares otherwise than one just inside.

        Truncation moves a weight by as little as its ratio moves; rejection and zeroing do not.
        """
        weighting = self.loss_weighting
        zeroes = weighting is not None and weighting.outside in ("zero", "mask")
        return zeroes or bool(self.zeroing) or self.rejects

    @property
    def needs_advantages(self) -> bool:
        """Whether it looks at the advantage of tokens, and not at log-probs alone."""
        return any(test.needs_advantages for test in self._tests)

    @property
    def needs_whole_batch(self) -> bool:
        """Whether a token is compared with all others of the batch, so that no part will do."""
        return any(test.needs_whole_batch for test in self._tests)

    @property
    def _tests(self) -> tuple[Rejection, ...]:
        own = self.weighting
        of_weights = () if own is None else (*own.over, *own.only_outside)
        return (*self.rejections, *self.zeroing, *of_weights)

    @property
    def ratio_corrects(self) -> bool:
        """Whether the PPO ratio is taken against the rollout, so that the mismatch is in it."""
        return self.weights_in_loss or (self.mode == "bypass" and self.loss in ("ppo_clip", ""))

    @property
    def counts_mismatch_twice(self) -> bool:
        """Whether weights multiply a PPO ratio that corrects the mismatch already."""
        return self.ratio_corrects and self.weighting is not None and not self.weights_in_loss


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(np.float32(value))


def in_float32(correction: Correction) -> Correction:
    """Return the correction with its bounds rounded as a trainer compares them in float32."""
    weighting = correction.weighting
    if weighting is not None:
        upper = float(np.float32(weighting.upper))
        weighting = replace(
            weighting,
            upper=upper,
            lower=_rounded(weighting.lower),
            over=tuple(map(_bounds_in_float32, weighting.over)),
            only_outside=tuple(map(_bounds_in_float32, weighting.only_outside)),
        )
    return replace(
        correction,
        weighting=weighting,
        zeroing=tuple(map(_bounds_in_float32, correction.zeroing)),
        rejections=tuple(map(_bounds_in_float32, correction.rejections)),
    )


def _bounds_in_float32(rejection: Rejection) -> Rejection:
    return replace(
        rejection,
        upper=float(np.float32(rejection.upper)),
        lower=_rounded(rejection.lower),
        over=tuple(map(_bounds_in_float32, rejection.over)),
    )
