"""VESPO: the policy gradient, weighted by a smooth function of the sequence ratio.

log_ratio = current - old, in nats. The code follows TRL 1.16.0.
"""

from __future__ import annotations

import math

from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.policy_loss import SYMBOLS, PolicyLoss
from rcdiag.losses.settings import LossSetting, LossSettings
from rcdiag.losses.tensor import Tensor

# Bounds in nats of the log of a weight and of the log-ratio of a sequence.
LOWEST, HIGHEST = math.log(1e-8), 20.0


def _setting(name: str, says: str, default: float) -> LossSetting:
    return LossSetting(name=name, says=says, default=default, above=0.0, see=("vespo",))


K_POS = _setting(
    "vespo_k_pos", "Power of the sequence ratio in vespo's weight where the advantage is >= 0.", 2.0
)
LAMBDA_POS = _setting(
    "vespo_lambda_pos",
    "Decay of vespo's weight with the sequence ratio where the advantage is >= 0.",
    3.0,
)
K_NEG = _setting(
    "vespo_k_neg", "Power of the sequence ratio in vespo's weight where the advantage is < 0.", 3.0
)
LAMBDA_NEG = _setting(
    "vespo_lambda_neg",
    "Decay of vespo's weight with the sequence ratio where the advantage is < 0.",
    2.0,
)


def sequence_log_ratio(tokens: LossBatch) -> Tensor:
    """Return the log-ratio of current to rollout of each row, clamped, in nats, [rows].

    It is the row's sum of log_ratio clamped to +-20, plus the sum of the log IS weights if there
    are any; a weight of 0 counts as 1e-8.
    """
    sums = tokens.row_sums(tokens.log_ratio.detach().clamp(-HIGHEST, HIGHEST))
    if tokens.weights is not None:
        sums = sums + tokens.row_sums(tokens.weights.log().clamp(LOWEST, HIGHEST))
    return sums.clamp(LOWEST, HIGHEST)


def vespo(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -phi(W) A current, [tokens]; W is the row's ratio, without gradient."""
    log_ratio = sequence_log_ratio(tokens)[tokens.rows]
    positive = tokens.advantages >= 0
    ones = log_ratio.new_ones(log_ratio.shape)
    power = (ones * settings.value(K_POS)).where(positive, settings.value(K_NEG))
    decay = (ones * settings.value(LAMBDA_POS)).where(positive, settings.value(LAMBDA_NEG))
    decay = decay.clamp(min=1e-4)
    phi = (decay + power * log_ratio - decay * log_ratio.exp()).exp()
    phi = phi.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    losses = -phi * tokens.advantages * tokens.current
    return TokenLosses(losses * tokens.kept, {"phi": phi}, weighted=True)


VESPO = PolicyLoss(
    name="vespo",
    says="The policy gradient, weighted by a smooth function of the whole sequence's ratio, which "
    "is 1 at ratio 1. IS weights of tokens enter that ratio instead of multiplying the loss.",
    formula="-phi(W) A log p_current, phi = e^lambda W^k e^(-lambda W), W = prod r w of the "
    "sequence's tokens, w the IS weight, without gradient; k = 2 and lambda = 3 where "
    f"A >= 0, else 3 and 2; log W within [log 1e-8, 20]; {SYMBOLS}",
    source="trl 1.16.0, trl/trainer/grpo_trainer.py, get_gamma_weights",
    function=vespo,
    settings=(K_POS, LAMBDA_POS, K_NEG, LAMBDA_NEG),
    see=("cispo", "sequence"),
    weights_of_tokens=True,
)
