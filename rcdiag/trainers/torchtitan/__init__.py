"""torchtitan's RL at commit b5bcd76c: no correction; the PPO ratio is relative to the sampler.

Source: torchtitan commit b5bcd76c, torchtitan/experiments/rl/losses/dapo.py and grpo.py.
"""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.corrections.arithmetic import Guard
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import RATIO, bare_log_ratio, finite
from rcdiag.corrections.trainer_means import Batch, Metrics
from rcdiag.losses import clipped
from rcdiag.losses.aggregation import TOKEN_MEAN, Count
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.clipped import clip_ratio, ppo
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import CLIP_RANGE, LossSettings
from rcdiag.losses.tensor import Tensor
from rcdiag.trainers.settings_table import Settings
from rcdiag.trainers.trainer import generation

__all__ = ["GENERATIONS"]

BOUND = 10.0  # nats: log-ratios are clamped to +-10 before exp, and logged unclamped
DIFFERENT = 1e-6  # nats: from here on a token counts as different, and a ratio as clipped


KNOWN = finite(bare_log_ratio)  # tokens without a log-prob of the sampler are left out


def read(settings: Settings) -> Correction:
    """Return bypass mode: the PPO ratio includes the mismatch, and nothing else uses it."""
    return Correction(mode="bypass", loss="ppo_clip", guard=Guard(bound=BOUND))


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return the comparison of both policies at the first update, over tokens with a log-prob."""
    rows = batch.rows
    count = rows.sum(KNOWN).sum()
    if not count:
        return {}
    distance = abs(bare_log_ratio).where(KNOWN)
    return {
        "loss/ratio_mean": float(rows.sum(RATIO.where(KNOWN)).sum() / count),
        "bit_wise/logprob_diff/mean": float(rows.sum(bare_log_ratio.where(KNOWN)).sum() / count),
        "bit_wise/logprob_diff/max": float(rows.max(distance).max()),
        "bit_wise/ratio_tokens_different/mean": float(rows.sum(distance > DIFFERENT).sum() / count),
    }


def _known(batch: LossBatch) -> Tensor:
    return batch.old.isfinite()


def vanilla(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO losses; 0 at tokens without a log-prob of the sampler."""
    log_ratio = batch.log_ratio.where(_known(batch), 0.0).clamp(-BOUND, BOUND)
    losses, _ = ppo(log_ratio.exp(), batch.advantages, settings)
    return TokenLosses(losses * _known(batch), {})


def logged(batch: LossBatch, losses: TokenLosses, settings: LossSettings) -> dict[str, float]:
    """Return what the loss logs about the ratio of current policy to sampler."""
    known_tokens = _known(batch)
    count = float(known_tokens.sum().clamp(min=1))
    distances = batch.log_ratio.detach().where(known_tokens, 0.0)
    ratio = distances.clamp(-BOUND, BOUND).exp()
    held = (ratio - clip_ratio(ratio, settings)).abs() > DIFFERENT
    means = {
        "loss/ratio_mean": ratio * known_tokens,
        "loss/ratio_clipped_frac": held & known_tokens,
        "bit_wise/logprob_diff/mean": distances,
        "bit_wise/ratio_tokens_different/mean": distances.abs() > DIFFERENT,
    }
    found = {name: float(values.double().sum()) / count for name, values in means.items()}
    if len(distances):
        found["bit_wise/logprob_diff/max"] = float(distances.abs().amax())
    return found


VANILLA = replace(
    clipped.VANILLA,
    function=vanilla,
    source="torchtitan commit b5bcd76c, torchtitan/experiments/rl/losses/dapo.py",
    settings=CLIP_RANGE,
)


def _count(batch: LossBatch) -> float:
    return float(_known(batch).sum().clamp(min=1))


GENERATIONS = (
    generation(
        "torchtitan",
        family="torchtitan",
        package=__name__,
        newest=True,
        presets={"default": {}},
        read=read,
        metrics=metrics,
        update=UpdateRules(
            losses=by_name((VANILLA,)),
            aggregations={
                "token-mean": replace(
                    TOKEN_MEAN, count=Count("tokens", _count, _count), default="all"
                )
            },
            sees_rejected=True,
            logged=logged,
        ),
    ),
)
