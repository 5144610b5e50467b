"""The smallest trainer: token weights with a cap, one key, one loss, config in and config out."""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.apply import applied_weights
from rcdiag.corrections.bounds import weights_of
from rcdiag.corrections.correction import Correction, Weighting
from rcdiag.corrections.trainer_means import Batch
from rcdiag.losses.aggregation import TOKEN_MEAN
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.policy_loss import PolicyLoss
from rcdiag.losses.rules import UpdateRules
from rcdiag.losses.settings import LossSetting, LossSettings
from rcdiag.trainers.settings_text import Inexpressible, Written, rounded
from rcdiag.trainers.trainer import Claim, Config, ConfigFile, Metrics, Trainer, positive


def read(config: Config) -> Correction:
    """Weights of tokens, truncated at the cap; `smallest_off` turns them off."""
    if config["smallest_off"]:
        return Correction()
    return Correction(Weighting("token", positive(config, "smallest_cap")))


def write(correction: Correction) -> Written:
    """Settings for no correction at all, or for truncated weights of tokens alone."""
    if correction == Correction():
        return Written({"smallest_off": True})
    if correction.weighting is None or correction.rejections or correction.veto is not None:
        raise Inexpressible("rejection")
    weights = weights_of(correction.weighting)
    if weights.level != "token" or weights.zeroes or weights.window.lower > -np.inf:
        raise Inexpressible("weights but those of tokens, truncated")
    return Written({"smallest_cap": rounded(np.exp(weights.window.upper))})


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """The mean weight, as the trainer logs it."""
    if correction.weighting is None:
        return {}
    return {
        "smallest/capped_mean": batch.token_mean(applied_weights(batch.rows, correction.weighting))
    }


HEAT = LossSetting(
    name="heat", says="What the smallest loss is divided by.", default=1.0, above=0.0
)


def cool(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """-A current / heat."""
    return TokenLosses(-tokens.advantages * tokens.current / settings.value(HEAT), {})


COOL = PolicyLoss(
    name="cool",
    says="Policy gradient, cooled down.",
    formula="-A log p_current / heat",
    source="made up for this test",
    function=cool,
    settings=(HEAT,),
)
SMALLEST = Trainer(
    name="smallest-1.0",
    family="smallest",
    package=__name__,
    settings={"smallest_cap": 2.0, "smallest_off": False},
    presets={"narrow": {"smallest_cap": 1.25}},
    read=read,
    quantities=lambda correction: [],
    metrics=metrics,
    update=UpdateRules(losses={"cool": COOL}, aggregations={"token-mean": TOKEN_MEAN}),
    config=ConfigFile(
        path=("training", "weights"),
        claim=lambda settings, document: Claim(1.0) if "smallest_cap" in settings else None,
        write=write,
    ),
)
