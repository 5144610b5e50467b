"""Losses that are linear or quadratic in the log-probs: policy gradient, REINFORCE, DRO.

`log_ratio` = current - old, in nats. Formulas: verl `core_algos.py`, as in reference/verl.md 3.
"""

from __future__ import annotations

from rcdiag.errors import RcdiagError
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.settings import LossSettings


def gpg(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """-A current; no metrics."""
    return TokenLosses(-tokens.advantages * tokens.current, {})


def reinforce(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """-A current; `old` is the rollout's and only logged. The weights are constants.

    verl's loss_type `reinforce` in bypass mode, and `rollout_correction` of 0.6.1.
    """
    return TokenLosses(-tokens.advantages * tokens.current, {"ppo_kl": -tokens.log_ratio})


def dro(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """-A current + beta / 2 log_ratio^2."""
    beta = settings.dro_beta
    if beta is None or not beta > 0:
        raise RcdiagError(
            "dro_beta: this loss needs a number above 0", "verl has no default for it"
        )
    losses = -tokens.advantages * tokens.current + 0.5 * beta * tokens.log_ratio.square()
    return TokenLosses(losses, {"ppo_kl": -tokens.log_ratio})
