"""prime-rl's policy losses: A times the ratio at kept tokens, and a quadratic term.

The ratio is trained policy / sampler. Dropped tokens keep the quadratic term, and count in the
denominator. Sources: prime-rl commit 559b4477, src/prime_rl/trainer/rl/loss.py, and its pull
requests #3526 and #3586.
"""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.losses.aggregation import TOKEN_MEAN
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.policy_loss import SYMBOLS, PolicyLoss
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import LossSettings
from rcdiag.trainers.settings_table import read_loss_settings

_SETTINGS = read_loss_settings("rcdiag.trainers.prime_rl")
ADV_TAU, KL_TAU = _SETTINGS["adv_tau"], _SETTINGS["kl_tau"]


def trust_region(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -keep adv_tau A ratio + kl_tau log_ratio^2, ratio = current / rollout."""
    log_ratio = tokens.log_ratio
    policy = settings.value(ADV_TAU) * tokens.advantages * log_ratio.exp()
    pull = settings.value(KL_TAU) * log_ratio.square()
    return TokenLosses(pull - policy.where(tokens.kept, 0.0), {}, weighted=True)


def icepop(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -keep adv_tau A ratio, ratio = current / rollout, [tokens]."""
    return trust_region(tokens, settings.changed(**{KL_TAU.name: 0.0}))


_FILE = "prime-rl commit 559b4477, src/prime_rl/trainer/rl/loss.py"
_FORMULA = (
    "-adv_tau A r + kl_tau d^2, without the first term at {}; adv_tau = 1, kl_tau = 1e-3; old is "
    f"the sampler; {SYMBOLS}"
)
DPPO_TV = PolicyLoss(
    name="dppo_tv",
    says="Tokens whose probability moved too far in the advantage's direction only leave the "
    "policy term.",
    formula=_FORMULA.format(
        "p - q > dppo_mask_high (A > 0) or p - q < -dppo_mask_low, p current, q old"
    ),
    source=f"arXiv 2602.04879, 2602.02276; {_FILE}, default_loss_fn",
    function=trust_region,
    settings=(ADV_TAU, KL_TAU),
    see=("ipo_tv", "dppo_kl"),
)
IPO = PolicyLoss(
    name="ipo_tv",
    alias="ipo",
    says="Tokens whose probability moved by more than ipo_threshold in either direction only leave "
    "the policy term.",
    formula=_FORMULA.format("|p - q| > ipo_threshold, p current, q old"),
    source=f"{_FILE}, ipo_loss_fn",
    function=trust_region,
    settings=(ADV_TAU, KL_TAU),
    see=("dppo_tv",),
)
ICEPOP = PolicyLoss(
    name="icepop_ratio",
    alias="icepop",
    says="Tokens whose ratio to the sampler is outside of [ratio_low, ratio_high] leave the loss.",
    formula=f"-adv_tau A r, and 0 where r < ratio_low or r > ratio_high, r = current / rollout; "
    f"{SYMBOLS}",
    source="arXiv 2510.18855; prime-rl pull request #3526 of 2026-09-10",
    function=icepop,
    settings=(ADV_TAU,),
    see=("ipo_tv", "icepop_rollout"),
)
UPDATE_OF_AUGUST = UpdateRules(
    losses=by_name((DPPO_TV, IPO)),
    aggregations=by_name((replace(TOKEN_MEAN, default="all"),)),
    sees_rejected=True,
    logged=lambda tokens, losses, settings: {},  # all metrics belong to the correction
)
UPDATE = replace(
    UPDATE_OF_AUGUST,
    losses=by_name((IPO, ICEPOP)),
    defaults=LossSettings(own={KL_TAU.name: 0.0}),
)
