"""What a trainer's user can set of the loss; the defaults are verl's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rcdiag.errors import RcdiagError

# kept: rejected tokens, and rows without any other, are left out. all: they are counted.
# constant: a number that is given, of what the aggregation counts.
Denominator = Literal["kept", "all", "constant"]


@dataclass(frozen=True, slots=True)
class SlimeSettings:
    """Options of slime's own loss, by their default off."""

    tis_high: float | None = None  # --tis-clip, 2 there; None: without --use-tis
    tis_low: float = 0.0  # --tis-clip-low
    tis_outside: Literal["clamp", "zero"] = "clamp"  # zero: `icepop_function`
    opsm_delta: float | None = None  # --opsm-delta, 1e-4 there; None: without --use-opsm
    bypass: bool = False  # --use-rollout-logprobs


@dataclass(frozen=True, slots=True)
class LossSettings:
    """Of all losses together; each reads its own."""

    clip_low: float = 0.2  # the ratio's range is [1 - clip_low, 1 + clip_high]
    clip_high: float = 0.2
    clip_c: float | None = 3.0  # dual clip; None, which is slime's default: off
    tau_pos: float = 1.0  # sapo
    tau_neg: float = 1.05
    kl_cov_ratio: float = 2e-4  # share of tokens
    ppo_kl_coef: float = 0.1
    dro_beta: float | None = None
    aggregation: str = "token-mean"
    scale_factor: float | None = None  # of seq-mean-token-sum-norm; None: the padded width
    denominator: Denominator | None = None  # None: what the trainer's loss itself divides by
    constant: float | None = None  # the denominator of that name: tokens or sequences
    slime: SlimeSettings = field(default_factory=SlimeSettings)


def dual_clip_bound(settings: LossSettings) -> float:
    """`clip_c` where there must be one."""
    if settings.clip_c is None:
        raise RcdiagError("clip_c: this loss needs a number", "verl's default is 3.0")
    return settings.clip_c


def above_one(bound: float) -> float:
    """Trainers stop on a dual clip of 1 or less."""
    if not bound > 1.0:
        raise RcdiagError(f"clip_c: {bound:g} is not above 1", "verl's default is 3.0")
    return bound
