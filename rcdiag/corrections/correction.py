"""The canonical form of a correction, the same for all trainers."""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rcdiag.corrections.arithmetic import DEFAULT_GUARD, Guard
from rcdiag.corrections.statistics import STATISTICS, Statistic, place_and_statistic

# A segment is a run of consecutive sampled tokens: one turn of the policy. Its ratio, like that of
# `geometric`, is exp of the mean log_ratio.
Level = Literal["token", "segment", "sequence", "geometric"]
BY_TOKEN = ("token", "segment")  # levels at which tokens of one sequence may differ


class Weighting(Struct, frozen=True):
    """Importance-sampling weights: the level of the ratio, and the treatment outside the bounds."""

    level: Level
    upper: float
    lower: float | None = None  # None: 1 / upper, if a lower bound is needed
    # truncate: min(ratio, upper). clip: into [lower, upper]. zero: 0 outside (IcePop, MIS).
    # mask: ratio unchanged, tokens outside are rejected. floor: the lower bound on either side.
    outside: Literal["truncate", "clip", "zero", "mask", "floor"] = "truncate"
    nan_stays: bool = False  # the trainer zeroes by multiplying with 0, so that NaN stays NaN
    # Sequence ratios are over the tokens that these rejections keep; (): over all tokens.
    over: tuple[Rejection, ...] = ()
    # The bounds only act on sequences that one of these would reject; (): on all.
    only_outside: tuple[Rejection, ...] = ()

    @property
    def by_token(self) -> bool:
        """Whether tokens of one sequence may have different weights."""
        return self.level in BY_TOKEN

    @property
    def zeroes_tokens(self) -> bool:
        """Whether single tokens may have weight 0."""
        return self.by_token and self.outside == "zero"

    @property
    def lower_or_reciprocal(self) -> float:
        return 1.0 / self.upper if self.lower is None else self.lower


class Rejection(Struct, frozen=True):
    """Tokens or sequences whose statistic is outside [lower, upper] leave the loss mask.

    The statistics `token`, `segment`, `sequence` and `geometric` are ratios. All others consist of
    a place and a name from `rcdiag.corrections.statistics`, such as `token_k1` or `seq_mean_k3`.
    Places are `token`, `segment` (mean over the run), `seq_sum`, `seq_mean`, `seq_max`, `seq_min`.
    Bounds have the unit of the statistic.
    """

    statistic: str
    upper: float
    lower: float | None = None  # None: no lower bound
    # A sequence statistic is over the tokens that these rejections keep; (): over all tokens.
    over: tuple[Rejection, ...] = ()
    # Whether the target of its log_ratio is the current policy (the one being updated), which at
    # the first update equals the trainer's old policy. False: the target is the old policy.
    of_current: bool = False

    @property
    def least(self) -> float:
        """The lower bound, -inf if there is none."""
        return -np.inf if self.lower is None else self.lower

    @property
    def needs_advantages(self) -> bool:
        """Whether its statistic depends on the advantages of tokens."""
        return self.reads.needs_advantages or any(one.needs_advantages for one in self.over)

    @property
    def leaves_denominators(self) -> bool:
        """Whether rejected tokens count as masked afterwards, also in denominators."""
        return self.reads.before_everything

    @property
    def needs_whole_batch(self) -> bool:
        """Whether its statistic compares a token with all others of the batch."""
        return self.reads.needs_whole_batch or any(one.needs_whole_batch for one in self.over)

    @property
    def reads(self) -> Statistic:
        """The token statistic that it uses."""
        return STATISTICS[place_and_statistic(self.statistic)[1]]

    @property
    def of_each_token(self) -> str:
        """The name of the statistic that a token- or segment-level rejection uses (`k1`)."""
        by_segment = self.statistic.startswith("segment")
        return self.statistic if by_segment else place_and_statistic(self.statistic)[1]

    @property
    def of_ratio(self) -> bool:
        return self.statistic in (*BY_TOKEN, "sequence", "geometric")

    @property
    def of_tokens(self) -> bool:
        """Whether it acts on tokens or segments, not on whole sequences."""
        return self.statistic.startswith(BY_TOKEN)


class Correction(Struct, frozen=True):
    """The weights, rejections and veto that a trainer applies to a batch before the loss."""

    weighting: Weighting | None = None
    rejections: tuple[Rejection, ...] = ()
    veto: float | None = None  # a token with a smaller ratio rejects its whole sequence
    veto_on_weights: bool = False  # True: the veto zeroes weights and does not change the mask
    batch_normalize: bool = False
    weights_applied: bool = True  # False: weights are logged but not used in the loss
    mode: Literal["decoupled", "bypass"] = "decoupled"
    loss: str = "ppo_clip"  # in bypass mode; "": the loss that the update uses anyway
    # Outside of these bounds weights are 0 and the loss mask is unchanged. For statistics other
    # than the weight's own ratio, for which there is `Weighting.outside` = `zero`.
    zeroing: tuple[Rejection, ...] = ()
    guard: Guard = DEFAULT_GUARD
    # Whether the policy loss computes these weights itself (current policy over rollout), so that
    # they must not be multiplied in again.
    weights_in_loss: bool = False
    logging: str = ""  # one of the trainer's settings that only changes what it logs

    @property
    def loss_weighting(self) -> Weighting | None:
        """Return the weights that are used in the loss; None if they are only logged."""
        return self.weighting if self.weights_applied else None

    @property
    def discards_tokens(self) -> bool:
        """Whether single tokens may be rejected, or have weight 0."""
        weighting = self.loss_weighting
        zeroes = weighting is not None and weighting.zeroes_tokens
        return zeroes or any(one.of_tokens for one in (*self.rejections, *self.zeroing))

    @property
    def discards_sequences(self) -> bool:
        """Whether whole sequences may be rejected, by a bound or a veto, or have weight 0."""
        weighting = self.loss_weighting
        zeroes = weighting is not None and not weighting.by_token and weighting.outside == "zero"
        return (
            zeroes
            or self.veto is not None
            or any(not one.of_tokens for one in (*self.rejections, *self.zeroing))
        )

    @property
    def rejects(self) -> bool:
        """Whether tokens or sequences may be rejected, or have their weights zeroed by a veto."""
        return bool(self.rejections) or self.veto is not None

    @property
    def leaves_loss_alone(self) -> bool:
        """Whether the loss is unchanged: no weight, no rejection, no mismatch in the PPO ratio."""
        return self.loss_weighting is None and not self.rejects and not self.ratio_corrects

    @property
    def decides(self) -> bool:
        """Whether a tiny change of a ratio near a bound can change the effect discontinuously.

        Rejection and zeroing do; truncation changes a weight no more than its ratio.
        """
        weighting = self.loss_weighting
        zeroes = weighting is not None and weighting.outside in ("zero", "mask")
        return zeroes or bool(self.zeroing) or self.rejects

    @property
    def needs_advantages(self) -> bool:
        """Whether it depends on the advantages of tokens, in addition to log-probs."""
        return any(test.needs_advantages for test in self._tests)

    @property
    def needs_whole_batch(self) -> bool:
        """Whether it compares a token with all others of the batch."""
        return any(test.needs_whole_batch for test in self._tests)

    @property
    def _tests(self) -> tuple[Rejection, ...]:
        own = self.weighting
        of_weights = () if own is None else (*own.over, *own.only_outside)
        return (*self.rejections, *self.zeroing, *of_weights)

    @property
    def has_own_loss(self) -> bool:
        """Whether the correction brings the policy loss along, in place of the trainer's."""
        return self.weights_in_loss or (self.mode == "bypass" and self.loss != "")

    @property
    def ratio_corrects(self) -> bool:
        """Whether the PPO ratio is relative to the rollout policy, and so includes the mismatch."""
        return self.weights_in_loss or (self.mode == "bypass" and self.loss in ("ppo_clip", ""))

    @property
    def ratio_alone_corrects(self) -> bool:
        """Whether the PPO ratio includes the mismatch, without weights or rejection."""
        return self.ratio_corrects and self.loss_weighting is None and not self.rejects

    @property
    def counts_mismatch_twice(self) -> bool:
        """Whether weights multiply a PPO ratio that already corrects the mismatch."""
        return self.ratio_corrects and self.weighting is not None and not self.weights_in_loss


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(np.float32(value))


def in_float32(correction: Correction) -> Correction:
    """Return the correction with bounds rounded to float32, in which trainers compare them."""
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
