"""slime's policy loss, its metrics and gradient, against slime's own code in float64."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from rcdiag.losses.evaluate import LossResult
from rcdiag.losses.settings import LossSettings
from rcdiag.losses.tensor import Tensor
from rcdiag.trainers import find_trainer
from tests.losses.batches import SMALL, PaddedLoss, _grid, padded_losses
from tests.losses.rules import RULES, default_settings, evaluate, loss_settings, value
from tests.oracle.comparisons import within_a_millionth
from tests.oracle.slime import CHECKOUT, MEGATRON, Answer, ask, code, needs_slime

pytestmark = [pytest.mark.oracle, needs_slime]
every_loss = pytest.mark.parametrize("loss", RULES["slime"].losses)
CLIPS = {
    "clip_low": st.sampled_from((0.2, 0.1, 1.0)),
    "clip_high": st.sampled_from((0.2, 0.28, 3.0)),
    "clip_c": st.sampled_from((None, 1.5, 3.0, 20.0)),
    "aggregation": st.sampled_from(("seq-mean-token-mean", "token-mean")),
}
OPSM = st.sampled_from((None, 1e-4, 0.1))


@st.composite
def batches(draw: st.DrawFn, corrected: bool) -> tuple[PaddedLoss, np.ndarray]:
    """Draw batches with a rollout policy; weights and rejection only with a correction.

    Masked tokens have the advantage 0: slime's opsm_clipfrac counts those below 0.
    """
    batch = draw(padded_losses())
    batch = replace(batch, advantages=np.where(batch.mask, batch.advantages, 0.0))
    reach = draw(st.sampled_from((1.0, 0.1, 0.004)))
    moved = _grid(draw, SMALL, *batch.old.shape) * reach + 0.000217
    rollout = np.where(batch.mask, np.minimum(batch.old + moved, -0.001), 0.0)
    if corrected:
        weights = np.ones(batch.mask.shape) if batch.weights is None else batch.weights
        return replace(batch, weights=weights), rollout
    return replace(batch, weights=None, kept=batch.mask), rollout


def ours(
    loss: str, batch: PaddedLoss, chosen: LossSettings, rollout: np.ndarray | None
) -> LossResult:
    flat = batch.flat()
    if rollout is not None:
        flat = structs.replace(flat, rollout=Tensor(rollout[batch.mask]))
    if value(chosen, "use_rollout_logprobs"):
        assert flat.rollout is not None
        flat = structs.replace(flat, old=flat.rollout)
    return evaluate(flat, loss, chosen, "slime")


def differences(answer: Answer, result: LossResult, batch: PaddedLoss) -> list[str]:
    # rcdiag's loss has no entropy and KL terms; here they are 0.
    expected = {key: value for key, value in answer.metrics.items() if key != "entropy_loss"}
    outcome = {**result.metrics, "loss": result.loss}
    lines = [f"only one has {key}" for key in set(expected) ^ set(outcome)]
    lines += [] if result.undefined is None else [f"undefined: {result.undefined}"]
    pairs = {key: (value, outcome[key]) for key, value in expected.items() if key in outcome}
    pairs["loss that is minimised"] = answer.loss, result.loss
    gradient = np.zeros(batch.mask.shape)
    gradient[batch.mask] = result.coefficients
    pairs |= {
        f"gradient {at}": (float(answer.gradient[at]), float(gradient[at]))
        for at in np.ndindex(*gradient.shape)
    }
    return lines + [
        f"{name}: slime {expected!r}, ours {outcome!r}"
        for name, (expected, outcome) in pairs.items()
        if not within_a_millionth(name, expected, outcome)
    ]


def compared(
    loss: str, drawn: tuple[PaddedLoss, np.ndarray | None], clips: dict[str, Any], **own: Any
) -> list[str]:
    batch, rollout = drawn
    chosen = loss_settings(**clips, **own)
    answer = ask(loss, batch, chosen, rollout)
    return differences(answer, ours(loss, batch, chosen, rollout), batch)


@every_loss
@given(drawn=batches(False), clips=st.fixed_dictionaries(CLIPS), opsm=OPSM, alone=st.booleans())
@settings(max_examples=150)
def test_without_correction(loss, drawn, clips, opsm, alone):
    batch, rollout = drawn
    assert compared(loss, (batch, None if alone else rollout), clips, opsm_delta=opsm) == []


@every_loss
@given(drawn=batches(False), clips=st.fixed_dictionaries(CLIPS), opsm=OPSM)
@settings(max_examples=150)
def test_with_use_rollout_logprobs(loss, drawn, clips, opsm):
    """With --use-rollout-logprobs the PPO ratio is current / rollout."""
    assert compared(loss, drawn, clips, opsm_delta=opsm, use_rollout_logprobs=True) == []


@every_loss
@given(drawn=batches(True), clips=st.fixed_dictionaries(CLIPS), opsm=OPSM)
@settings(max_examples=150)
def test_weights_and_rejection_of_a_helper(loss, drawn, clips, opsm):
    """Modified masks zero rejected tokens and leave all denominators, as after mis.py."""
    assert compared(loss, drawn, clips, opsm_delta=opsm) == []


@every_loss
@given(drawn=batches(False), below=st.floats(-2.0, -0.1))
def test_opsm_counts_masked_tokens_in_its_metric(loss, drawn, below):
    """Tool tokens have an advantage in slime, so the share of unmasked tokens can exceed 1."""
    batch, rollout = drawn
    chosen = default_settings("slime").changed(opsm_delta=0.1)
    result = ours(loss, batch, chosen, rollout)
    masked = replace(batch, advantages=np.where(batch.mask, batch.advantages, below))
    answer = ask(loss, masked, chosen, rollout)
    lengths = batch.mask.sum(axis=1)
    moved = np.where(batch.mask, batch.old - batch.current, 0.0).sum(axis=1)
    counted = (moved > 0.1 * lengths) * (~batch.mask).sum(axis=1) / np.maximum(lengths, 1)
    result.metrics["opsm_clipfrac"] += counted.mean()
    assert differences(answer, result, batch) == []


@every_loss
@pytest.mark.parametrize("move", [12.0, 25.0, -12.0, -25.0, 0.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
def test_far_log_ratios(loss, move, advantage):
    """One token at a time: slime has no clamp before exp."""
    current = np.full((1, 1), -1.0 + min(move, 0.0))
    mask = np.ones((1, 1), np.bool_)
    batch = PaddedLoss(current, current - move, np.full((1, 1), advantage), mask, mask)
    clips = {"clip_c": None, "aggregation": "token-mean"}
    assert compared(loss, (batch, current - 2.0 * move), clips) == []


NO_NUMBERS = st.lists(st.sampled_from((-1.0, -1.0, -np.inf, np.nan)), min_size=3, max_size=3)


@every_loss
@given(
    policies=NO_NUMBERS,
    advantage=st.sampled_from((1.0, -1.0, 0.0)),
    kept=st.booleans(),
    clip_c=CLIPS["clip_c"],
    own=st.sampled_from(({}, {"opsm_delta": 0.1}, {"use_rollout_logprobs": True})),
)
@settings(max_examples=200)
def test_nan_log_probs(loss, policies, advantage, kept, clip_c, own):
    """Beside a valid token; rejection does not help, since slime multiplies by 0."""
    current, old, rollout = (np.array([[value, -1.0]]) for value in policies)
    stays = np.array([[kept or "bypass" in own, True]])
    weights = None if stays.all() else np.ones((1, 2))
    advantages, mask = np.array([[advantage, 1.0]]), np.ones((1, 2), np.bool_)
    batch = PaddedLoss(current, old - 0.1, advantages, mask, stays, weights)
    clips = {"clip_c": clip_c, "aggregation": "seq-mean-token-mean"}
    assert compared(loss, (batch, rollout), clips, **own) == []


def parsed_defaults() -> dict[str, Any]:
    """Parse the defaults in slime's source, since importing it would load the sampler."""
    tree = ast.parse(Path(CHECKOUT, "slime/utils/arguments.py").read_text())
    result = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("add_argument"):
            options = {item.arg: item.value for item in node.keywords}
            if isinstance(options.get("default"), ast.Constant):
                name = ast.literal_eval(node.args[0])
                result[name] = ast.literal_eval(options["default"])
    return result


def test_the_same_defaults():
    theirs, chosen = parsed_defaults(), default_settings("slime")
    assert theirs["--eps-clip"] == value(chosen, "clip_low") == value(chosen, "clip_high")
    assert theirs["--eps-clip-high"] is None  # None stands for --eps-clip
    assert theirs["--eps-clip-c"] == value(chosen, "clip_c")
    assert theirs["--opsm-delta"] == 1e-4
    ours = find_trainer(
        "miles"
    ).settings  # slime's flags; rcdiag's settings are those of the helper's file
    for flag in ("use_tis", "tis_clip", "tis_clip_low"):
        assert theirs["--" + flag.replace("_", "-")] == ours[flag]
    assert not theirs["--use-rollout-logprobs"]


def test_both_refuse_a_dual_clip_not_above_one():
    loss = code("slime.utils.ppo_utils").compute_policy_loss
    assert code(f"{MEGATRON}.loss").compute_policy_loss is loss
    with pytest.raises(AssertionError, match=r"greater than 1\.0"):
        loss(torch.zeros(1), torch.ones(1), 0.2, 0.2, eps_clip_c=1.0)
