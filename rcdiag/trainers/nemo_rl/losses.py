"""NeMo-RL's clipped policy-gradient loss: PPO, GSPO, CISPO, REINFORCE, or a ratio of 1.

log_ratio = current - old, in nats, unclamped. Sequences rejected by the filter are removed from the
loss and its denominators. Source: NVIDIA-NeMo/RL commit 7ea279ab,
nemo_rl/algorithms/loss/loss_functions.py, `ClippedPGLossFn`.
"""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.losses import clipped, linear
from rcdiag.losses.aggregation import SEQ_MEAN_TOKEN_MEAN, TOKEN_MEAN, Count
from rcdiag.losses.batch import EPSILON, LossBatch, TokenLosses
from rcdiag.losses.clipped import clip_ratio, dual_clip, ppo
from rcdiag.losses.linear import ON_POLICY
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import PPO_SETTINGS, LossSettings
from rcdiag.losses.tensor import Tensor


def _ppo(batch: LossBatch, settings: LossSettings, ratio: Tensor) -> TokenLosses:
    """Return PPO losses on a ratio; dual clip only if `clip_c` is given."""
    losses, _ = ppo(ratio, batch.advantages, settings)
    losses, _ = dual_clip(losses, batch.advantages, settings)
    return TokenLosses(losses, {"ratio": ratio, "clamped": clip_ratio(ratio, settings)})


def vanilla(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO on the ratio of each token."""
    return _ppo(batch, settings, batch.log_ratio.exp())


def gspo(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO on exp(row mean of log_ratio); the gradient goes through the mean."""
    means = batch.row_sums(batch.log_ratio) / (batch.lengths.double() + EPSILON)
    return _ppo(batch, settings, means[batch.rows].exp())


def cispo(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -stop_gradient(clip(ratio)) A current."""
    ratio = batch.log_ratio.exp()
    bounded = clip_ratio(ratio, settings)
    losses = -batch.advantages * bounded.detach() * batch.current
    return TokenLosses(losses, {"ratio": ratio, "clamped": bounded})


def gpg(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -A current; the trainer logs the log-prob instead of the ratio."""
    losses = -batch.advantages * batch.current
    return TokenLosses(losses, {"ratio": batch.current, "clamped": batch.current})


def on_policy(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -A times a ratio of 1 that carries the gradient."""
    losses = linear.on_policy(batch, settings)
    one = batch.current.new_ones(batch.current.shape)
    return replace(losses, logged={"ratio": one, "clamped": one})


def logged(batch: LossBatch, losses: TokenLosses, settings: LossSettings) -> dict[str, float]:
    """Return what NeMo-RL logs about the ratio, over kept tokens (1e-8 is added to their count)."""
    count = len(batch.kept) + EPSILON
    numbers = {}
    for name, key in (("ratio", "probs_ratio"), ("clamped", "probs_ratio_clamped")):
        values = losses.logged[name].detach()
        numbers[key] = float(values.sum() / count)
        # The trainer logs -1 if there are no tokens.
        numbers[f"{key}_min"] = float(values.min()) if len(values) else -1.0
        numbers[f"{key}_max"] = float(values.max()) if len(values) else -1.0
    current = batch.current.detach()
    sampler = batch.old if batch.rollout is None else batch.rollout
    entropy = (current - sampler).exp() * current
    numbers["approx_entropy"] = float(-entropy.sum() / count)
    return numbers


_FILE = "NVIDIA-NeMo/RL commit 7ea279ab, nemo_rl/algorithms/loss/loss_functions.py"
VANILLA = replace(clipped.VANILLA, function=vanilla, source=_FILE, settings=PPO_SETTINGS)
GSPO = replace(clipped.GSPO, function=gspo, source=_FILE, settings=PPO_SETTINGS)
CISPO = replace(clipped.CISPO, function=cispo, source=_FILE)
GPG = replace(linear.GPG, function=gpg, source=_FILE)
# Rows that the filter keeps; a row without a token is never filtered.
SEQUENCES = Count(
    "sequences",
    lambda batch: float(((batch.kept_counts > 0) | (batch.lengths == 0)).sum()),
    lambda batch: float(len(batch.lengths)),
)
UPDATE = UpdateRules(
    losses=by_name(
        (VANILLA, GSPO, CISPO, GPG, replace(ON_POLICY, function=on_policy, source=_FILE))
    ),
    aggregations=by_name(
        (
            replace(TOKEN_MEAN, epsilon=EPSILON),
            replace(SEQ_MEAN_TOKEN_MEAN, count=SEQUENCES, epsilon=EPSILON),
        )
    ),
    fixed={"gspo": "seq-mean-token-mean", "cispo": "token-mean"},
    prefix="train/",
    logged=logged,
    defaults=LossSettings(own={"clip_c": None}),
)
