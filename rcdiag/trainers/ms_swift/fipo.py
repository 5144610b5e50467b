"""ms-swift's FIPO weighs PPO losses by how far the policy moves on the rest of the response.

log_ratio = current - old, in nats. Source: ms-swift 4.6.0, swift/rlhf_trainers/grpo_trainer.py,
`_compute_fipo_influence`.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.policy_loss import CLIPPED_TO, SYMBOLS, PolicyLoss
from rcdiag.losses.settings import LossSetting, LossSettings
from rcdiag.losses.tensor import Tensor
from rcdiag.trainers.trl import losses as trl

DECAY_RATE = LossSetting(
    name="fipo_decay_rate",
    says="Half-life of fipo's look ahead: a token this many tokens later counts half.",
    default=32.0,
    above=0.0,
    example="32: gamma = 2^(-1/32)",
    see=("fipo",),
)
CLIP_RANGE = LossSetting(
    name="fipo_clip_range",
    says="How far fipo's weight of a token may be from 1; 0 leaves it unbounded.",
    default=0.2,
    can_be_off=True,
    example="0.2: weights from 1 to 1.2, or from 0.8 with fipo_clip_high_only=false",
    see=("fipo", "fipo_clip_high_only"),
)
CLIP_HIGH_ONLY = LossSetting(
    name="fipo_clip_high_only",
    says="Whether fipo's weights are never below 1.",
    default=True,
    example="--loss fipo --loss-setting fipo_clip_high_only=false",
    see=("fipo", "fipo_clip_range"),
)
SAFETY_THRESHOLD = LossSetting(
    name="fipo_safety_threshold",
    says="Ratio above which a token of negative advantage has a fipo weight of 0.8 to 1.",
    default=4.0,
    above=0.0,
    can_be_off=True,
    example="--loss fipo --loss-setting fipo_safety_threshold=off",
    see=("fipo",),
)


def future_sums(batch: LossBatch, values: Tensor, gamma: float) -> Tensor:
    """Return for each token the sum of its own value and later ones of its row, [tokens].

    A value that stands `n` places later in the response counts gamma^n times; places that the mask
    leaves out are places too.
    """
    positions = batch.positions
    if positions is None:
        ends = batch.lengths.cumsum(0)
        positions = batch.rows.new_ones(len(values)).cumsum(0) - 1
        positions = positions - (ends - batch.lengths)[batch.rows]
    summed = values.detach().clone()
    sums = summed.numpy()
    steps = -np.diff(positions.numpy(), append=0)
    decay = gamma ** np.maximum(-steps, 0).astype(np.float64)
    # The last token of every row first, then its neighbour: all rows of the batch at once.
    last = batch.lengths.cumsum(0).numpy()[batch.lengths.numpy() > 0] - 1
    first = last + 1 - batch.lengths.numpy()[batch.lengths.numpy() > 0]
    for back in range(1, int(batch.lengths.max()) if len(batch.lengths) else 0):
        at = (last - back)[last - back >= first]
        sums[at] += decay[at] * sums[at + 1]
    return summed


def influence(
    batch: LossBatch, settings: LossSettings, ratio: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log and value of fipo's weight of each token, and where it is not held down.

    All are [tokens] and constants of the gradient. The log is that before any bound.
    """
    moved = batch.log_ratio.detach()
    if (delta := settings.value(trl.DELTA)) is not None:
        moved = moved.where(ratio.detach() <= delta, moved.new_zeros(()))
    future = future_sums(batch, moved, 2.0 ** (-1.0 / settings.value(DECAY_RATE)))
    weights = future.exp()
    if bound := settings.value(CLIP_RANGE):
        low = 1.0 if settings.value(CLIP_HIGH_ONLY) else 1.0 - bound
        weights = weights.clamp(low, 1.0 + bound)
    safe = batch.kept.new_ones(batch.kept.shape)
    if (threshold := settings.value(SAFETY_THRESHOLD)) is not None:
        safe = ~((batch.advantages < 0) & (ratio.detach() > threshold))
        weights = weights.where(safe, weights.clamp(0.8, 1.0))
    return future, weights, safe


def fipo(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO losses times fipo's weight of each token."""
    ratio = trl.ppo_ratio(batch, settings)
    future, weights, safe = influence(batch, settings, ratio)
    losses = trl.vanilla(batch, settings)
    logged = {"future_kl": future, "influence_weight": weights, "safety_keep": safe}
    return replace(losses, values=losses.values * weights, logged={**losses.logged, **logged})


FIPO = PolicyLoss(
    name="fipo",
    says="PPO, each token weighed by how much likelier the update makes the rest of its response: "
    "near tokens count more, and the weight is a constant of the gradient.",
    formula="w max(-A r, -A clip(r)), w = exp(sum over j >= i of gamma^(j - i) d_j) within [1, "
    f"1.2], gamma = 2^(-1/32); within [0.8, 1] where A < 0 and r > 4; {CLIPPED_TO}; {SYMBOLS}",
    source="ms-swift 4.6.0, swift/rlhf_trainers/grpo_trainer.py, _compute_fipo_influence",
    function=fipo,
    settings=(*trl.PPO_SETTINGS, DECAY_RATE, CLIP_RANGE, CLIP_HIGH_ONLY, SAFETY_THRESHOLD),
    see=("vanilla", "fipo_decay_rate", "token-mean"),
)
