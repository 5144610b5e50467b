"""ms-swift's REAL classifies the responses of a prompt into good and bad ones.

log_ratio = current - old, in nats. Source: ms-swift 4.6.0, swift/rlhf_trainers/grpo_trainer.py,
`_compute_loss_and_metrics`, loss_type real.
"""

from __future__ import annotations

from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.policy_loss import SYMBOLS, PolicyLoss
from rcdiag.losses.settings import LossSetting, LossSettings
from rcdiag.losses.tensor import Tensor

REAL_TAU = LossSetting(
    name="real_tau",
    says="Temperature of the loss real: a response pulls with 1 / real_tau at most.",
    default=0.5,
    above=0.0,
    example="--loss real --loss-setting real_tau=1",
    see=("real",),
)


def _row_means(batch: LossBatch, values: Tensor) -> Tensor:
    """Return the mean of `values` over the kept tokens of each row, [rows]; 0 without one."""
    kept = values.where(batch.kept, values.new_zeros(()))
    return batch.row_sums(kept) / batch.kept_counts.clamp(min=1.0)


def _log_one_plus_sum(scores: Tensor, rows: Tensor, prompts: Tensor, count: int) -> Tensor:
    """Return log(1 + sum of exp(scores) over the chosen rows of each prompt), [prompts]."""
    chosen, owner = scores[rows], prompts[rows]
    highest = chosen.new_zeros(count).scatter_reduce(0, owner, chosen.detach(), "amax")
    shares = (chosen - highest[owner]).exp()
    return highest + ((-highest).exp().index_add(0, owner, shares)).log()


def real(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return for each prompt log(1 + sum e^s) of its bad and log(1 + sum e^-s) of its good rows.

    s is the row's mean log-ratio over real_tau; a row is good where its advantage is above 0.
    Prompts with responses of one kind alone have the loss 0. The loss of a prompt is spread over
    the tokens of its rows. No IS weight reaches it.
    """
    known = batch.prompts >= 0
    prompts = batch.prompts[known]
    count = int(prompts.max()) + 1
    scores = _row_means(batch, batch.log_ratio)[known] / settings.value(REAL_TAU)
    good = _row_means(batch, batch.advantages)[known] > 0
    has_good, has_bad = good.new_zeros(count), good.new_zeros(count)
    has_good[prompts[good]], has_bad[prompts[~good]] = True, True
    of_prompts = _log_one_plus_sum(scores, ~good, prompts, count)
    of_prompts = of_prompts + _log_one_plus_sum(-scores, good, prompts, count)
    of_prompts = of_prompts.where(has_good & has_bad, of_prompts.new_zeros(()))
    tokens = batch.prompt_sums(batch.current.new_ones(batch.current.shape))
    of_tokens = (of_prompts / tokens.clamp(min=1.0))[batch.prompts[batch.rows]]
    return TokenLosses(of_tokens, {}, weighted=True)


REAL = PolicyLoss(
    name="real",
    says="The responses of a prompt are classified into good and bad by their mean log-ratio; the "
    "size of an advantage does not count, IS weights and importance_sampling_level do nothing.",
    formula="mean over prompts of log(1 + sum over A <= 0 of e^(s / tau)) + log(1 + sum over A > 0 "
    f"of e^(-s / tau)), s = mean d of a response, tau = real_tau = 0.5; {SYMBOLS}",
    source="ms-swift 4.6.0, swift/rlhf_trainers/grpo_trainer.py, _compute_loss_and_metrics",
    function=real,
    settings=(REAL_TAU,),
    given="one prompt",
    see=("real_tau", "prompt-mean-token-sum"),
)
