"""Losses, logged metrics and gradients against stored numbers of the trainers' own code."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from rcdiag.errors import RcdiagError
from rcdiag.statistics.extremes import NonFinite
from rcdiag.table.token_batch import sampled_tokens
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.plan import plan_corrections
from rcdiag.usecases.replay.preset import PresetLoss, loss_of_preset
from rcdiag.usecases.replay.update_batch import ReplayBatch
from tests.trainers.answers import Updated, read_answers
from tests.trainers.batches import BATCHES
from tests.trainers.test_stored_answers import STORED, near
from tests.trainers.update_settings import document_of, update_of


def of_correction(trainer: str) -> set[str]:
    of_loss = {"policy_loss_type"} if TRAINERS[trainer].family == "openrlhf" else set()
    return TRAINERS[trainer].settings.keys() - of_loss


def replayed(trainer: str, case: Updated) -> PresetLoss:
    """Replay the update of a stored case with its correction."""
    config = {name: case.settings[name] for name in of_correction(trainer) & case.settings.keys()}
    plan = plan_corrections(TRAINERS[trainer], {"it": config})
    update = update_of(replace(plan, document=document_of(trainer, case.settings)))
    tokens = sampled_tokens(BATCHES[case.batch].trajectories(), ("rollout", "old", "current"))
    bad = NonFinite.of(tokens)
    # One prompt group, as in the stored case.
    tokens = replace(tokens, cluster=np.zeros_like(tokens.cluster))
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


def test_vespo_refuses_sequence_weights() -> None:
    """TRL refuses these settings."""
    case = Updated(batch="mild", settings={"loss_type": "vespo"}, loss=0.0, metrics={}, gradient=[])
    with pytest.raises(RcdiagError, match="vespo takes token weights"):
        replayed("trl-1.16", case)


@pytest.mark.parametrize("trainer", STORED)
def test_losses_are_those_of_the_trainer(trainer: str) -> None:
    cases = read_answers(STORED[trainer]).losses
    assert [line for case in cases for line in differences(trainer, case)] == []
