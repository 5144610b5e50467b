"""slime's MIS helper and the step that follows, against slime's own code in float64."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from rcdiag.losses.settings import LossSettings
from rcdiag.trainers import find_trainer
from rcdiag.trainers.plan import Plan
from rcdiag.trainers.slime.correction import FLAGS, HELPER
from rcdiag.usecases.replay.preset import loss_of_preset
from rcdiag.usecases.replay.update import TrainerUpdate
from tests.corrections.batches import batches, seeded
from tests.corrections.builders import Padded, padded, plan_of, result_of
from tests.corrections.configs import configs_of
from tests.losses.batches import PaddedLoss
from tests.losses.rules import RULES, default_settings
from tests.oracle.comparisons import within_a_millionth
from tests.oracle.slime import CHECKOUT, MEGATRON, MIS, ask, code, importable, needs_slime
from tests.oracle.test_slime_loss import batches as losses
from tests.oracle.test_slime_loss import differences as between_steps
from tests.usecases.replay.builders import batch_of

pytestmark = [pytest.mark.oracle, needs_slime]
CONFIGS = configs_of("slime")
NEAR, FAR = ("near", "wide", "met", "equal"), ("far", "cancelling")
# Settings of the helper, without the flags of slime.
SETTINGS = {name: find_trainer("slime").settings[name] for name in ("use_tis", *HELPER)}


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of the helper on one micro-batch."""

    metrics: dict[str, float]
    kept: list[int]  # tokens of each row, after rejection
    weight_sum: float  # of unmasked tokens


def asked(config: dict[str, Any], batch: Padded, masked: bool = True) -> Answer:
    """Run the helper; without `masked` its rows have only unmasked tokens."""
    import torch

    # The sampler stores 0 at tool tokens; NaN would survive slime's multiplication by masks.
    clean = batch.with_masked(-1.5, 0.0)
    taken = np.ones(batch.mask.shape, np.bool_) if masked else batch.mask
    old, rollout, masks = (
        [torch.tensor(row[at], dtype=torch.float64) for row, at in zip(values, taken, strict=True)]
        for values in (clean.old, clean.rollout, clean.mask)
    )
    lengths = [len(row) for row in masks]
    helper = code(MIS)
    with importable():
        weights, kept, metrics = helper.compute_mis_weights_with_cp(
            Namespace(**{**SETTINGS, **config}),
            pg_loss=torch.ones(sum(lengths), dtype=torch.float64),
            train_log_probs=old,
            rollout_log_probs=rollout,
            loss_masks=masks,
            total_lengths=lengths,
            response_lengths=lengths,
        )
    cp_utils = code(f"{MEGATRON}.cp_utils")
    reduce = cp_utils.get_sum_of_sample_mean(lengths, lengths, masks, [row.sum() for row in masks])
    return Answer(
        {key: reduce(value).item() / len(batch) for key, value in metrics.items()},
        [int(row.sum()) for row in kept],
        float(weights[torch.cat(masks) > 0].sum()),
    )


def differences(config: dict[str, Any], batch: Padded, masked: bool = True) -> list[str]:
    answer, result = asked(config, batch, masked), result_of("slime", config, batch)
    lines = [f"only one has {key}" for key in set(answer.metrics) ^ set(result.metrics)]
    pairs = {key: (value, result.metrics[key]) for key, value in answer.metrics.items()}
    pairs["kept_tokens"] = sum(answer.kept), result.kept_tokens
    pairs["kept_sequences"] = np.count_nonzero(answer.kept), result.kept_sequences
    # rcdiag's sum is that before batch normalisation, whose factor slime logs as a mean over all
    # rows, with 0 for one without a token.
    filled = batch.mask.any(axis=1).mean()
    factor = answer.metrics.get("mis_batch_norm_factor", filled) / filled
    unweighted = float(batch.mask.sum())
    outcome = unweighted if result.weight_sum is None else result.weight_sum
    pairs["weight_sum"] = answer.weight_sum * factor, outcome
    return lines + [
        f"{name}: slime {theirs!r}, ours {outcome!r}"
        for name, (theirs, outcome) in pairs.items()
        if not within_a_millionth(name, theirs, outcome)
    ]


@given(batch=batches(NEAR))
@settings(max_examples=150)
def test_the_shipped_settings(batch):
    assert differences({}, batch) == []


@given(config=CONFIGS, batch=batches(NEAR))
@settings(max_examples=600)
def test_drawn_settings(config, batch):
    assert differences(config, batch) == []


@given(config=CONFIGS, batch=batches(FAR))
@settings(max_examples=300)
def test_far_log_ratios(config, batch):
    """Without masked tokens, since slime multiplies infinite row values by 0 there."""
    assert differences(config, batch, masked=False) == []


@given(config=CONFIGS, seed=st.integers(0, 100), sd=st.sampled_from((0.02, 0.5)))
@settings(max_examples=30)
def test_larger_batches(config, seed, sd):
    assert differences(config, seeded(seed, rows=40, width=60, sd=sd)) == []


@given(
    config=CONFIGS,
    rows=st.lists(
        st.lists(st.sampled_from((0.0, 0.5, -30.0, -np.inf, np.nan)), min_size=1, max_size=4),
        min_size=1,
        max_size=3,
    ),
)
@settings(max_examples=200)
def test_unmasked_nan_log_probs(config, rows):
    """The rollout log-probs are 0, so that the log-ratio is the target's log-prob."""
    filled = padded([[0.0] * len(row) for row in rows])
    old = filled.old.copy()
    old[filled.mask] = [value for row in rows for value in row]
    assert differences(config, replace(filled, old=old), masked=False) == []


def test_the_same_settings_as_in_the_file():
    file = Path(CHECKOUT, *MIS.split(".")[:-1], "mis.yaml")
    assert yaml.safe_load(file.read_text()) == SETTINGS


BATCH = padded([[0.1, -0.2], [0.0, 0.3]])


@pytest.mark.parametrize(
    "config",
    [
        {"tis_level": "geometric"},
        {"tis_level": "seq", "tis_batch_normalize": False},
        {"tis_mode": "zero"},
        {"tis_mode": "clip", "tis_lower_bound": 2.0},
        {"tis_mode": "mask", "tis_lower_bound": 3.0},
        {"rs_level": "Token"},
        {"rs_lower_bound": 2.0},
        {"rs_upper_bound": 0.4},
        {"rs_veto_threshold": "1e-4"},
        {"tis_upper_bound": "2"},
        {"tis_upper_bound": None},
    ],
)
def test_settings_that_slime_refuses_are_refused(config):
    with pytest.raises((ValueError, AssertionError, TypeError)):
        asked(config, BATCH)
    assert [item.slug for item in plan_of("slime", config).findings] == ["trainer-refuses"]


def step_differences(
    plan: Plan, loss: str, drawn: tuple[PaddedLoss, np.ndarray], chosen: LossSettings
) -> list[str]:
    batch, rollout = drawn
    whole = plan.configs["it"]
    config = {name: whole[name] for name in SETTINGS}  # of the helper
    helper = {**config, "get_mismatch_metrics": True}
    helper["custom_tis_function_path"] = f"{MIS}.compute_mis_weights_with_cp"
    by_flag = whole["custom_tis_function_path"] != helper["custom_tis_function_path"]
    flags = {name: whole[name] for name in ("use_tis", *FLAGS)} if by_flag else helper
    update = TrainerUpdate(plan=plan, loss=loss, settings=chosen, advantage="column")
    flat = batch_of(rollout, batch.old, batch.advantages, batch.current, batch.mask)
    run = loss_of_preset("it", flat, update)
    answer = ask(
        loss,
        batch,
        chosen,
        rollout,
        **flags,
    )
    if not config["use_tis"]:
        # rcdiag has no weights here, and logs `ois` only beside some.
        answer.metrics.pop("ois")
    result = structs.replace(run.result, metrics={**run.effect.metrics, **run.result.metrics})
    return between_steps(answer, result, batch)


@pytest.mark.parametrize("loss", RULES["slime"].losses)
@given(config=CONFIGS, drawn=losses(False), clip_c=st.sampled_from((None, 1.5)))
@settings(max_examples=200)
def test_replayed_steps(loss, config, drawn, clip_c):
    """Correction and loss together: all logged metrics of slime, and its gradient."""
    if drawn[0].mask.any():
        chosen = default_settings("slime").changed(clip_c=clip_c)
        assert step_differences(plan_of("slime", config), loss, drawn, chosen) == []


BY_FLAG = st.fixed_dictionaries(
    {
        "use_tis": st.just(True),
        "tis_clip": st.sampled_from((2.0, 1.1, 5.0)),
        "tis_clip_low": st.sampled_from((0.0, 0.5, 0.9)),
        "custom_tis_function_path": st.sampled_from((None, f"{MEGATRON}.loss.icepop_function")),
    }
)


@pytest.mark.parametrize("loss", RULES["slime"].losses)
@given(config=BY_FLAG, drawn=losses(False), opsm_delta=st.sampled_from((None, 1e-4, 0.1)))
@settings(max_examples=150)
def test_replayed_steps_with_weights_by_flag(loss, config, drawn, opsm_delta):
    """--use-tis, and icepop_function by --custom-tis-function-path."""
    if drawn[0].mask.any():
        chosen = default_settings("slime").changed(opsm_delta=opsm_delta)
        assert step_differences(plan_of("slime", config), loss, drawn, chosen) == []
