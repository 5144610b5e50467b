"""A minimal trainer: token weights with a cap, one key, one loss, configuration in and out."""

from __future__ import annotations

from rcdiag.corrections.apply import applied_weights
from rcdiag.corrections.correction import Correction, Weighting
from rcdiag.corrections.trainer_means import Batch
from rcdiag.losses.aggregation import TOKEN_MEAN
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.policy_loss import PolicyLoss
from rcdiag.losses.rules import UpdateRules
from rcdiag.losses.settings import LossSettings
from rcdiag.trainers.settings_table import Settings, read_loss_settings
from rcdiag.trainers.trainer import Metrics, generation


def read(settings: Settings) -> Correction:
    """Return token weights truncated at the cap; `smallest_off` turns them off."""
    if settings["smallest_off"]:
        return Correction()
    return Correction(Weighting("token", settings["smallest_cap"]))


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return the mean weight, as the trainer logs it."""
    if correction.weighting is None:
        return {}
    return {
        "smallest/capped_mean": batch.token_mean(applied_weights(batch.rows, correction.weighting))
    }


HEAT = read_loss_settings(__name__)["heat"]


def cool(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return -A current / heat."""
    return TokenLosses(-tokens.advantages * tokens.current / settings.value(HEAT), {})


COOL = PolicyLoss(
    name="cool",
    says="Policy gradient, cooled down.",
    formula="-A log p_current / heat",
    source="made up for this test",
    function=cool,
    settings=(HEAT,),
)
SMALLEST = generation(
    "smallest-1.0",
    family="smallest",
    package=__name__,
    presets={"narrow": {"smallest_cap": 1.25}},
    read=read,
    metrics=metrics,
    update=UpdateRules(losses={"cool": COOL}, aggregations={"token-mean": TOKEN_MEAN}),
)
