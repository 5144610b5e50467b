"""Replayed updates against verl's own code: correction and loss together, on drawn batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rcdiag.losses.settings import LossSettings
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.replay.preset import loss_of_preset
from rcdiag.usecases.replay.update import TrainerUpdate
from tests.corrections.builders import Padded
from tests.losses.batches import SMALL, PaddedLoss, _grid, padded_losses
from tests.losses.rules import loss_settings
from tests.losses.verl_code import Answer
from tests.losses.verl_code import ask as ask_loss
from tests.oracle.comparisons import within_a_millionth
from tests.oracle.verl import ask as ask_helper
from tests.usecases.replay.builders import batch_of, plan_of

pytestmark = pytest.mark.oracle
TRAINERS = ("verl-0.7.0", "verl-0.7.1", "verl-0.9")


@st.composite
def updates(draw: st.DrawFn) -> tuple[PaddedLoss, np.ndarray]:
    """Draw three policies on rows with masked tokens, and empty rows; the third is the rollout."""
    batch = draw(padded_losses())
    reach = draw(st.sampled_from((1.0, 0.1, 0.004)))
    moved = _grid(draw, SMALL, *batch.old.shape) * reach + 0.000217
    return replace(batch, kept=batch.mask, weights=None), np.minimum(batch.old + moved, -0.001)


def of_verl(plan: Plan, name: str, batch: PaddedLoss, rollout: np.ndarray, chosen: LossSettings):
    """Run verl's own path: the driver's weights and mask, or the loss that computes them."""
    trainer, config = plan.trainer.name, dict(plan.configs[name])
    if config["bypass_mode"]:
        anchored = replace(batch, old=rollout)
        return ask_loss(trainer, "vanilla", anchored, chosen, correction=config)
    answer = ask_helper(trainer, config, Padded(batch.old, rollout, batch.mask))
    corrected = replace(batch, kept=answer.kept > 0, weights=answer.weights)
    result = ask_loss(trainer, "vanilla", corrected, chosen)
    return Answer(result.loss, {**result.metrics, **answer.metrics}, result.gradient)


def differences(plan: Plan, name: str, batch: PaddedLoss, rollout: np.ndarray, chosen) -> list[str]:
    update = TrainerUpdate(plan=plan, loss="vanilla", settings=chosen, advantage="column")
    flat = batch_of(rollout, batch.old, batch.advantages, batch.current, batch.mask)
    run = loss_of_preset(name, flat, update)
    ours = {**run.effect.metrics, **run.result.metrics}
    try:
        answer = of_verl(plan, name, batch, rollout, chosen)
    except ZeroDivisionError:  # all IcePop weights are 0
        return [] if not run.effect.final.any() else [f"{name}: verl divides by zero"]
    lines = [f"{name}: only one has {key}" for key in set(answer.metrics) ^ set(ours)]
    pairs = {key: (value, ours[key]) for key, value in answer.metrics.items() if key in ours}
    pairs["loss"] = answer.loss, run.result.loss
    gradient = np.zeros(batch.mask.shape)
    gradient[batch.mask] = run.coefficients
    if not run.result.undefined:
        pairs |= {
            f"gradient {at}": (float(answer.gradient[at]), float(gradient[at]))
            for at in np.ndindex(*gradient.shape)
        }
    elif np.nan_to_num(answer.gradient).any():
        lines.append(f"{name}: undefined, but verl has a gradient")
    return lines + [
        f"{name}, {key}: verl {expected!r}, ours {result!r}"
        for key, (expected, result) in pairs.items()
        if not within_a_millionth(key, float(expected), float(result))
    ]


@pytest.mark.parametrize("trainer", TRAINERS)
@given(drawn=updates(), data=st.data())
@settings(max_examples=60)
def test_every_preset_gives_verls_own_loss_and_gradient(trainer, drawn, data):
    batch, rollout = drawn
    if not batch.mask.any():
        return
    modes = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
    chosen = loss_settings(
        clip_low=data.draw(st.sampled_from((0.2, 0.1))),
        clip_high=data.draw(st.sampled_from((0.2, 0.28))),
        clip_c=data.draw(st.sampled_from((3.0, 1.5))),
        aggregation=data.draw(st.sampled_from(modes)),
    )
    plan = plan_of(trainer)
    for name in plan.corrections:
        assert differences(plan, name, batch, rollout, chosen) == []


@pytest.mark.parametrize("trainer", TRAINERS)
@given(drawn=updates(), level=st.sampled_from(("token", "sequence")))
@settings(max_examples=30)
def test_batch_normalised_weights_are_verls_in_both_modes(trainer, drawn, level):
    batch, rollout = drawn
    if not batch.mask.any():
        return
    config = {"rollout_is": level, "rollout_is_threshold": 2.0, "rollout_is_batch_normalize": True}
    bypass = {**config, "bypass_mode": True, "loss_type": "reinforce"}
    plan = plan_of(trainer, decoupled=config, bypass=bypass)
    for name in plan.corrections:
        assert differences(plan, name, batch, rollout, loss_settings()) == []


@pytest.mark.parametrize("trainer", TRAINERS)
def test_both_kinds_of_bypass_presets_are_compared(trainer):
    bypass = [item for item in plan_of(trainer).configs.values() if item["bypass_mode"]]
    assert {item["loss_type"] for item in bypass} == {"ppo_clip", "reinforce"}
