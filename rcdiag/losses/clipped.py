"""Losses that bound the ratio: PPO, GSPO, GMPO, CISPO, SAPO.

`log_ratio` = current - old, in nats; ratio = exp(log_ratio). Losses are minimised, and IS weights
are applied later. The code follows core_algos.py of verl 0.9.1.
"""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.losses.batch import EPSILON, LossBatch, TokenLosses
from rcdiag.losses.policy_loss import CLIPPED_TO, SYMBOLS, VERL_FILE, WITHIN_20, PolicyLoss
from rcdiag.losses.settings import (
    CLIP_C,
    CLIP_HIGH,
    CLIP_LOW,
    CLIP_RANGE,
    PPO_SETTINGS,
    LossSetting,
    LossSettings,
    above_one,
    dual_clip_bound,
)
from rcdiag.losses.tensor import Tensor

BOUND = 20.0  # nats


def bounded_log_ratio(tokens: LossBatch) -> Tensor:
    """Return the log-ratio clamped to +-20 nats, [tokens]; the gradient is 0 outside."""
    return tokens.log_ratio.clamp(-BOUND, BOUND)


def clip_ratio(
    ratio: Tensor, settings: LossSettings, clip: tuple[LossSetting, LossSetting] = CLIP_RANGE
) -> Tensor:
    """Return the ratio clipped to [1 - clip_low, 1 + clip_high], [tokens].

    `clip` are the two settings; a loss may have other defaults than PPO. Raising only the upper
    bound is called clip-higher.
    """
    low, high = clip
    return ratio.clamp(1.0 - settings.value(low), 1.0 + settings.value(high))


def ppo(ratio: Tensor, advantages: Tensor, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """Return max(-A ratio, -A clip(ratio)), and whether the clipped term is larger, [tokens]."""
    free = -advantages * ratio
    clipped = -advantages * clip_ratio(ratio, settings)
    return free.maximum(clipped), clipped > free


def dual_clip(losses: Tensor, advantages: Tensor, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """Return min(losses, -A clip_c) where A < 0, and whether it binds, [tokens]. arXiv 1912.09729.

    If `clip_c` is off, losses are unchanged.
    """
    negative = advantages < 0
    if (bound := settings.value(CLIP_C)) is None:
        return losses, negative.new_zeros(negative.shape)
    ceiling = -advantages * above_one(bound)
    limited = ceiling.minimum(losses).where(negative, losses)
    return limited, (losses > ceiling) & negative


def vanilla(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO with dual clip on each token's ratio; in bypass mode `old` is the rollout."""
    log_ratio = bounded_log_ratio(tokens)
    losses, clipped = ppo(log_ratio.exp(), tokens.advantages, settings)
    dual_clip_bound(settings)  # raises without a number: verl cannot turn dual clip off
    losses, lower = dual_clip(losses, tokens.advantages, settings)
    logged = {"pg_clipfrac": clipped, "ppo_kl": -log_ratio, "pg_clipfrac_lower": lower}
    return TokenLosses(losses, logged)


VANILLA = PolicyLoss(
    name="vanilla",
    alias="ppo_clip",
    says="PPO with dual clip on the ratio of each token. Results call it ppo_clip. IS weights "
    "multiply the clipped loss.",
    formula="M = max(-A r, -A clip(r)); where A < 0 min(M, -A c); "
    f"{CLIPPED_TO}; c = clip_c = 3; {SYMBOLS}, {WITHIN_20}",
    direction="minimised; in bypass mode old is the rollout policy",
    source=f"arXiv 1707.06347, 1912.09729; {VERL_FILE}, loss_mode vanilla",
    function=vanilla,
    settings=PPO_SETTINGS,
    see=("ppo_clip", "clip_low", "clip_c", "actor/pg_clipfrac"),
)


def single_clip(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO without dual clip; the log-ratio is not clamped before the clip."""
    losses, _ = ppo(tokens.log_ratio.exp(), tokens.advantages, settings)
    return TokenLosses(losses, {})


# For trainers whose PPO has no dual clip and logs no metrics of it.
SINGLE_CLIP = replace(
    VANILLA,
    says="PPO on the ratio of each token, without dual clip.",
    formula=f"max(-A r, -A clip(r)); {CLIPPED_TO}; {SYMBOLS}",
    function=single_clip,
    settings=CLIP_RANGE,
)


def gspo(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return PPO on s = exp(row mean of log_ratio), without dual clip. arXiv 2507.18071.

    The gradient of s goes through the token's own log-prob only: d s / d current = s.
    """
    log_ratio = tokens.log_ratio.detach()
    means = tokens.row_means(log_ratio)
    log_s = tokens.current - tokens.current.detach() + means[tokens.rows]
    losses, clipped = ppo(log_s.clamp(max=10.0).exp(), tokens.advantages, settings)
    never = clipped.new_zeros(clipped.shape)
    return TokenLosses(
        losses, {"pg_clipfrac": clipped, "ppo_kl": -log_ratio, "pg_clipfrac_lower": never}
    )


GSPO = PolicyLoss(
    name="gspo",
    says="PPO on one ratio for the whole sequence, the geometric mean over its kept tokens, "
    "without dual clip.",
    formula=f"max(-A s, -A clip(s)), s = exp(mean d), log s at most 10; {CLIPPED_TO}; {SYMBOLS}",
    source=f"arXiv 2507.18071; {VERL_FILE}, loss_mode gspo",
    function=gspo,
    settings=CLIP_RANGE,
    see=("vanilla", "geo_mean", "seq-mean-token-mean"),
)


def cispo(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -stop_gradient(clip(ratio)) A current, [tokens]. arXiv 2506.13585."""
    log_ratio = bounded_log_ratio(tokens)
    ratio = log_ratio.exp()
    clipped = clip_ratio(ratio, settings)
    losses = -clipped.detach() * tokens.advantages * tokens.current
    logged = {"pg_clipfrac": ratio != clipped, "ppo_kl": -log_ratio}
    return TokenLosses(losses, logged | {"pg_clipfrac_lower": ratio.new_zeros(ratio.shape)})


CISPO = PolicyLoss(
    name="cispo",
    says="The clipped ratio as a constant weight on the policy gradient, so that clipped tokens "
    "still contribute to the gradient.",
    formula=f"-sg(clip(r)) A log p_current, sg = stop gradient; {CLIPPED_TO}; "
    f"{SYMBOLS}, {WITHIN_20}",
    source=f"arXiv 2506.13585; {VERL_FILE}, loss_mode cispo",
    function=cispo,
    settings=CLIP_RANGE,
    see=("clip_low", "actor/pg_clipfrac"),
)
TAU_POS = LossSetting(
    name="tau_pos",
    says="Steepness of sapo's soft gate where the advantage is above 0.",
    default=1.0,
    above=0.0,
    example="rcdiag explain sapo",
    see=("sapo",),
)
TAU_NEG = LossSetting(
    name="tau_neg",
    says="Steepness of sapo's soft gate where the advantage is 0 or below.",
    default=1.05,
    above=0.0,
    example="rcdiag explain sapo",
    see=("sapo",),
)


def soft_gate(ratio: Tensor, advantages: Tensor, settings: LossSettings) -> Tensor:
    """Return sigmoid(tau (ratio - 1)) 4 / tau, [tokens]; tau is tau_pos where A > 0, else tau_neg.

    arXiv 2511.20347.
    """
    positive = ratio.new_full(ratio.shape, settings.value(TAU_POS))
    tau = positive.where(advantages > 0, settings.value(TAU_NEG))
    return (tau * (ratio - 1.0)).sigmoid() * 4.0 / tau


def sapo(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -A times the soft gate of the ratio, [tokens]."""
    log_ratio = bounded_log_ratio(tokens)
    losses = -tokens.advantages * soft_gate(log_ratio.exp(), tokens.advantages, settings)
    never = losses.new_zeros(losses.shape)
    return TokenLosses(
        losses, {"pg_clipfrac": never, "ppo_kl": -log_ratio, "pg_clipfrac_lower": never}
    )


SAPO = PolicyLoss(
    name="sapo",
    says="A soft gate on the ratio instead of the clip; verl always aggregates it as "
    "seq-mean-token-mean, whatever is configured.",
    formula="-A sigmoid(tau (r - 1)) 4 / tau, tau = tau_pos = 1 where A > 0, else tau_neg = "
    f"1.05; {SYMBOLS}, {WITHIN_20}",
    source=f"arXiv 2511.20347; {VERL_FILE}, loss_mode sapo",
    function=sapo,
    settings=(TAU_POS, TAU_NEG),
    see=("tau_pos", "tau_neg", "seq-mean-token-mean"),
)


def geo_mean(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return the loss of each row: -mean(A) exp(mean of x). GMPO, arXiv 2507.20673.

    x is the log_ratio, bounded by clip_high from above where A > 0, and by -clip_low from below
    where A < 0, in nats: the side on which PPO clips.
    """
    log_ratio, sign = tokens.log_ratio, tokens.advantages.sign()
    held = log_ratio.clamp(-settings.value(CLIP_LOW), settings.value(CLIP_HIGH))
    x = sign * (sign * log_ratio).minimum(sign * held)
    counts = _counted(tokens)
    ratios = (tokens.row_sums(x) / counts).exp()
    outside = log_ratio != held
    logged = {
        "pg_clipfrac": outside & (tokens.advantages > 0),
        "ppo_kl": -log_ratio,
        "pg_clipfrac_lower": outside & (tokens.advantages < 0),
    }
    return TokenLosses(-tokens.row_sums(tokens.advantages) / counts * ratios, logged, by_row=True)


def _counted(tokens: LossBatch) -> Tensor:
    """Return max(T, 1e-8) for the T tokens of each row, [rows]; verl's T + 1e-8 is T in float32."""
    return tokens.lengths.double().clamp(min=EPSILON)


def geometric_row_weights(tokens: LossBatch, weights: Tensor) -> Tensor:
    """Return exp(row mean of ln(w + 1e-10)), [rows]: verl's weights for the rows of GMPO."""
    return (tokens.row_sums((weights + 1e-10).log()) / _counted(tokens)).exp()


GEO_MEAN = PolicyLoss(
    name="geo_mean",
    says="GMPO: the geometric mean of each row's ratios, each log-ratio bounded by the clip range "
    "in nats. Always a plain mean over all rows.",
    formula="-mean(A) exp(mean x), x = min(d, clip_high) where A > 0, max(d, -clip_low) where "
    f"A < 0, both 0.2 nats; {SYMBOLS}",
    source=f"arXiv 2507.20673; {VERL_FILE}, loss_mode geo_mean",
    function=geo_mean,
    settings=CLIP_RANGE,
    see=("gspo", "clip_low"),
)
