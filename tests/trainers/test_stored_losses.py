"""Losses, what is logged of them and their gradients, beside numbers of the trainers' own code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rcdiag.errors import RcdiagError
from rcdiag.statistics.extremes import NonFinite
from rcdiag.table.tokens import sampled_tokens
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.plan import plan_corrections
from rcdiag.usecases.replay.batch import ReplayBatch
from rcdiag.usecases.replay.preset import PresetLoss, loss_of_preset
from rcdiag.usecases.replay.update import Update
from tests.trainers.answers import Settings, Updated, read_answers
from tests.trainers.batches import BATCHES
from tests.trainers.test_stored_answers import STORED, near
from tests.trainers.update_settings import UPDATES

# loss_type of TRL and of trainers that follow it: our loss, and how it is reduced.
LOSS_TYPES = {
    "grpo": ("vanilla", "seq-mean-token-mean"),
    "bnpo": ("vanilla", "token-mean"),
    "dapo": ("vanilla", "token-mean"),
    "dr_grpo": ("vanilla", "seq-mean-token-sum-norm"),
    "luspo": ("vanilla", "seq-mean-token-sum"),
    "cispo": ("cispo", "token-mean"),
    "sapo": ("sapo", "seq-mean-token-mean"),
    "vespo": ("vespo", "token-mean"),
}
DEFAULT_TYPES = {"trl": "dapo", "axolotl": "dapo", "ms-swift": "grpo"}
NAMES = {
    "epsilon": "clip_low",
    "eps_clip_low": "clip_low",
    "eps_clip_high": "clip_high",
    "dual_clip": "clip_c",
    "sapo_temperature_pos": "tau_pos",
    "sapo_temperature_neg": "tau_neg",
    "max_completion_length": "scale_factor",
}


def of_loss(trainer: str, settings: Settings) -> dict[str, Any]:
    """The loss of a case in our names: `loss`, `aggregation`, settings."""
    if (family := TRAINERS[trainer].family) in UPDATES:
        return UPDATES[family](settings)
    own = {name: value for name, value in settings.items() if name not in of_correction(trainer)}
    if TRAINERS[trainer].family == "openrlhf":
        kind = own.pop("policy_loss_type", "ppo")
        loss, aggregation = ("vanilla" if kind == "ppo" else kind), own.pop("loss_agg_mode", None)
    else:
        kind = own.pop("loss_type", DEFAULT_TYPES[TRAINERS[trainer].family])
        loss, aggregation = LOSS_TYPES[kind]
        if kind == "bnpo":
            own["denominator"] = "kept" if trainer.startswith("ms-swift") else None
    if (high := own.pop("epsilon_high", None)) is not None:
        own["epsilon_high" if loss == "cispo" else "clip_high"] = high
    given = {NAMES.get(name, name): value for name, value in own.items()}
    return given | {"loss": loss} | ({"aggregation": aggregation} if aggregation else {})


def of_correction(trainer: str) -> set[str]:
    of_loss = {"policy_loss_type"} if TRAINERS[trainer].family == "openrlhf" else set()
    return TRAINERS[trainer].settings.keys() - of_loss


def replayed(trainer: str, case: Updated) -> PresetLoss:
    """The update of a stored case, under its correction."""
    config = {name: case.settings[name] for name in of_correction(trainer) & case.settings.keys()}
    given = of_loss(trainer, case.settings)
    loss = given.pop("loss")
    rules = TRAINERS[trainer].update
    assert given.keys() - {"aggregation", "scale_factor", "denominator"} <= {
        setting.name for setting in rules.losses[loss].settings
    }
    update = Update(
        plan=plan_corrections(TRAINERS[trainer], {"it": config}),
        loss=loss,
        settings=rules.defaults.changed(**given),
        advantage="column",
    )
    tokens = sampled_tokens(BATCHES[case.batch].trajectories(), ("rollout", "old", "current"))
    bad = NonFinite.of(tokens)
    batch = ReplayBatch(step=None, tokens=tokens, parts=[], non_finite=bad)
    assert tokens.advantage is not None
    of_tokens = np.repeat(tokens.advantage, tokens.lengths)
    return loss_of_preset("it", batch.with_advantages(of_tokens), update)


def differences(trainer: str, case: Updated) -> list[str]:
    ours = replayed(trainer, case)
    logged = {**ours.effect.metrics, **ours.result.metrics}
    lines = [f"only one has {key}" for key in case.metrics.keys() - logged.keys()]
    lines += [f"only ours has {key}" for key in ours.result.metrics.keys() - case.metrics.keys()]
    pairs = {key: (value, logged[key]) for key, value in case.metrics.items() if key in logged}
    pairs["loss"] = case.loss, ours.result.loss
    pairs |= {
        f"gradient {at}": pair
        for at, pair in enumerate(zip(case.gradient, ours.coefficients, strict=True))
    }
    lines += [
        f"{name}: {theirs!r}, ours {float(value)!r}"
        for name, (theirs, value) in pairs.items()
        if not near(theirs, float(value), 1e-9)
    ]
    return [f"{case.batch} {case.settings}: {line}" for line in lines]


def test_vespo_takes_no_weights_of_sequences() -> None:
    """TRL stops on these settings."""
    case = Updated(batch="mild", settings={"loss_type": "vespo"}, loss=0.0, metrics={}, gradient=[])
    with pytest.raises(RcdiagError, match="vespo takes weights of tokens"):
        replayed("trl-1.16", case)


@pytest.mark.parametrize("trainer", STORED)
def test_losses_are_those_of_the_trainer(trainer: str) -> None:
    cases = read_answers(STORED[trainer]).losses
    assert [line for case in cases for line in differences(trainer, case)] == []
