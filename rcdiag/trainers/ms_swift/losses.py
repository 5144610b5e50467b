"""ms-swift's policy losses: PPO, CISPO and SAPO as in TRL, FIPO and REAL.

log_ratio = current - old, in nats. Rejected sequences are left out of all losses. FIPO weights PPO
losses by how far the policy moves on the rest of the response; REAL classifies the responses of a
prompt as good or bad. Source: ms-swift 4.6.0, swift/rlhf_trainers/grpo_trainer.py
(`_compute_loss_and_metrics`, `_compute_fipo_influence`).
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from rcdiag.losses.aggregation import PROMPT_MEAN_TOKEN_SUM
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.policy_loss import CLIPPED_TO, SYMBOLS, PolicyLoss
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import LossSettings
from rcdiag.losses.tensor import Tensor
from rcdiag.trainers.settings_table import read_loss_settings
from rcdiag.trainers.trl import losses as trl

_OWN = read_loss_settings("rcdiag.trainers.ms_swift")


def future_sums(batch: LossBatch, values: Tensor, gamma: float) -> Tensor:
    """Return for each token the discounted sum of its own and later values of its row, [tokens].

    A value `n` positions later in the response is multiplied by gamma^n; masked positions count as
    positions too.
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
    # From the end of every row backwards, for all rows of the batch at once.
    last = batch.lengths.cumsum(0).numpy()[batch.lengths.numpy() > 0] - 1
    first = last + 1 - batch.lengths.numpy()[batch.lengths.numpy() > 0]
    for back in range(1, int(batch.lengths.max()) if len(batch.lengths) else 0):
        at = (last - back)[last - back >= first]
        sums[at] += decay[at] * sums[at + 1]
    return summed


def influence(
    batch: LossBatch, settings: LossSettings, ratio: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the log and value of fipo's weight of each token, and where it is not limited.

    All are [tokens] and constant in the gradient. The log is taken before any bound.
    """
    moved = batch.log_ratio.detach()
    if (delta := settings.value(trl.DELTA)) is not None:
        moved = moved.where(ratio.detach() <= delta, moved.new_zeros(()))
    future = future_sums(batch, moved, 2.0 ** (-1.0 / settings.value(_OWN["fipo_decay_rate"])))
    weights = future.exp()
    if bound := settings.value(_OWN["fipo_clip_range"]):
        low = 1.0 if settings.value(_OWN["fipo_clip_high_only"]) else 1.0 - bound
        weights = weights.clamp(low, 1.0 + bound)
    safe = batch.kept.new_ones(batch.kept.shape)
    if (threshold := settings.value(_OWN["fipo_safety_threshold"])) is not None:
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
    says="PPO, each token weighted by how much likelier the update makes the rest of its response: "
    "near tokens count more, and the weight is constant in the gradient.",
    formula="w max(-A r, -A clip(r)), w = exp(sum over j >= i of gamma^(j - i) d_j) within [1, "
    f"1.2], gamma = 2^(-1/32); within [0.8, 1] where A < 0 and r > 4; {CLIPPED_TO}; {SYMBOLS}",
    source="ms-swift 4.6.0, swift/rlhf_trainers/grpo_trainer.py, _compute_fipo_influence",
    function=fipo,
    settings=(
        *trl.PPO_SETTINGS,
        _OWN["fipo_decay_rate"],
        _OWN["fipo_clip_range"],
        _OWN["fipo_clip_high_only"],
        _OWN["fipo_safety_threshold"],
    ),
    see=("vanilla", "fipo_decay_rate", "token-mean"),
)


def _log_one_plus_sum(scores: Tensor, rows: Tensor, prompts: Tensor, count: int) -> Tensor:
    """Return log(1 + sum of exp(scores) over selected rows of each prompt), [prompts]."""
    chosen, owner = scores[rows], prompts[rows]
    highest = chosen.new_zeros(count).scatter_reduce(0, owner, chosen.detach(), "amax")
    shares = (chosen - highest[owner]).exp()
    return highest + ((-highest).exp().index_add(0, owner, shares)).log()


def real(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return for each prompt log(1 + sum e^s) over bad plus log(1 + sum e^-s) over good rows.

    s is the row's mean log-ratio divided by real_tau; a row is good if its advantage is above 0. A
    prompt with only good or only bad responses has a loss of 0. The loss of a prompt is spread over
    the tokens of its rows. IS weights have no effect.
    """
    known = batch.prompts >= 0
    prompts = batch.prompts[known]
    count = int(prompts.max()) + 1
    scores = batch.kept_row_means(batch.log_ratio)[known] / settings.value(_OWN["real_tau"])
    good = batch.kept_row_means(batch.advantages)[known] > 0
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
    says="The responses of a prompt are classified as good or bad by their mean log-ratio; the "
    "size of an advantage, IS weights and importance_sampling_level have no effect.",
    formula="mean over prompts of log(1 + sum over A <= 0 of e^(s / tau)) + log(1 + sum over A > 0 "
    f"of e^(-s / tau)), s = mean d of a response, tau = real_tau = 0.5; {SYMBOLS}",
    source="ms-swift 4.6.0, swift/rlhf_trainers/grpo_trainer.py, _compute_loss_and_metrics",
    function=real,
    settings=(_OWN["real_tau"],),
    given="one prompt",
    see=("real_tau", "prompt-mean-token-sum"),
)


_FILE = "ms-swift 4.6.0, swift/rlhf_trainers/grpo_trainer.py, _compute_loss_and_metrics"


def _own(loss: PolicyLoss) -> PolicyLoss:
    settings = (*(each for each in loss.settings if each.name != "importance_sampling_level"),)
    return replace(loss, source=_FILE, settings=(*settings, _OWN["importance_sampling_level"]))


def logged(batch: LossBatch, losses: TokenLosses, settings: LossSettings) -> dict[str, float]:
    """Return what ms-swift logs of a loss: shares of kept tokens, at every level."""
    by_token = settings.changed(importance_sampling_level="token")
    of_fipo = {
        "fipo/future_kl_mean": "future_kl",
        "fipo/influence_weight_mean": "influence_weight",
        "fipo/safety_keep_ratio": "safety_keep",
    }
    clipped = {name: flags for name, flags in losses.logged.items() if name not in of_fipo.values()}
    shares = trl.clip_shares(batch, replace(losses, logged=clipped), by_token, batch.kept)
    count = batch.kept.double().sum().clamp(min=1.0)
    shares |= {
        key: float((losses.logged[name] * batch.kept).sum() / count)
        for key, name in of_fipo.items()
        if name in losses.logged
    }
    return shares | trl.extremes_of_one_process(shares)


# By loss_type: grpo (the default) is seq-mean-token-mean; dapo, cispo and fipo token-mean over all
# tokens, bnpo over kept ones.
UPDATE = UpdateRules(
    losses=by_name((*map(_own, (trl.VANILLA, trl.CISPO, trl.SAPO, FIPO)), REAL)),
    aggregations={
        **{
            name: trl.AGGREGATIONS[name]
            for name in ("seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm")
        },
        PROMPT_MEAN_TOKEN_SUM.name: replace(PROMPT_MEAN_TOKEN_SUM, default="all"),
    },
    fixed={
        "cispo": "token-mean",
        "sapo": "seq-mean-token-mean",
        "fipo": "token-mean",
        "real": PROMPT_MEAN_TOKEN_SUM.name,
    },
    sees_rejected=True,
    logged=logged,
    defaults=LossSettings(aggregation="seq-mean-token-mean", scale_factor=512.0),
)
