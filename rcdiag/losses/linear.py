"""Losses that are linear or quadratic in log-probs: policy gradient, REINFORCE, DRO.

`log_ratio` = current - old, in nats. The code follows core_algos.py of verl 0.9.1.
"""

from __future__ import annotations

from rcdiag.errors import RcdiagError
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.policy_loss import SYMBOLS, VERL_FILE, PolicyLoss
from rcdiag.losses.settings import LossSetting, LossSettings


def gpg(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -A current, [tokens]; this loss has no metrics."""
    return TokenLosses(-tokens.advantages * tokens.current, {})


GPG = PolicyLoss(
    name="gpg",
    says="Plain policy gradient: no ratio, no clip, no metrics.",
    formula="-A log p_current",
    source=f"arXiv 2504.02546; {VERL_FILE}, loss_mode gpg",
    function=gpg,
    see=("loss.reinforce",),
)


def reinforce(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -A current, [tokens]. `old`, here the rollout's, is only logged.

    It is verl's loss_type `reinforce` in bypass mode, and `rollout_correction` of 0.6.1.
    """
    return TokenLosses(-tokens.advantages * tokens.current, {"ppo_kl": -tokens.log_ratio})


REINFORCE = PolicyLoss(
    name="reinforce",
    says="Policy gradient times the IS weights, without a clip: the loss of bypass mode with "
    "loss_type reinforce.",
    formula="-A w log p_current, w the IS weight, without gradient",
    source=f"{VERL_FILE}, loss_mode bypass_mode",
    function=reinforce,
    see=("reinforce", "gpg", "bypass"),
)


def on_policy(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -A ratio, [tokens], where ratio = exp(current - stop_gradient(current)) = 1."""
    ratio = (tokens.current - tokens.current.detach()).exp()
    return TokenLosses(-tokens.advantages * ratio, {})


ON_POLICY = PolicyLoss(
    name="on_policy",
    says="PPO with its ratio set to 1, so that it needs no old log-probs; its gradient is the "
    "plain policy gradient.",
    formula="-A r, r = exp(log p_current - sg(log p_current)) = 1, sg = stop gradient",
    source="NVIDIA-NeMo/RL commit 7ea279ab, nemo_rl/algorithms/loss/loss_functions.py, "
    "force_on_policy_ratio",
    function=on_policy,
    see=("gpg", "force_on_policy_ratio"),
)
DRO_BETA = LossSetting(
    name="dro_beta",
    says="Strength of dro's quadratic penalty towards the old policy; must be given, above 0.",
    default=None,
    above=0.0,
    example="--loss dro --dro-beta 0.1",
    see=("dro",),
)


def dro(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -A current + beta / 2 log_ratio^2, [tokens]."""
    beta = settings.value(DRO_BETA)
    if beta is None or not beta > 0:
        raise RcdiagError(
            "dro_beta: this loss needs a number above 0", "verl has no default for it"
        )
    losses = -tokens.advantages * tokens.current + 0.5 * beta * tokens.log_ratio.square()
    return TokenLosses(losses, {"ppo_kl": -tokens.log_ratio})


DRO = PolicyLoss(
    name="dro",
    says="Policy gradient with a quadratic penalty on the log-ratio to the old policy. verl raises "
    "an error without dro_beta.",
    formula=f"-A log p_current + beta / 2 d^2, beta = dro_beta > 0; {SYMBOLS}",
    source=f"{VERL_FILE}, loss_mode dro",
    function=dro,
    settings=(DRO_BETA,),
    see=("dro_beta", "gpg"),
    given="dro_beta 0.1",
)
