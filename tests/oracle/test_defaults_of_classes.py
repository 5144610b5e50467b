"""Defaults and refusals of settings against the classes of the trainers' own code."""

from __future__ import annotations

from typing import Any

import pytest

from rcdiag.trainers import find_trainer
from rcdiag.trainers.trainer import Refused
from tests.oracle import areal, nemo_rl, skyrl
from tests.oracle.nemo_rl import NEMO_RL, THRESHOLD

pytestmark = pytest.mark.oracle

AREAL = "areal-1.0"  # the generation whose code is in a package


def test_defaults_of_skyrl() -> None:
    config = skyrl.settings_class()()
    blocks = [config, *(getattr(config, name) for name in skyrl.NESTED)]
    for name, default in find_trainer("skyrl").settings.items():
        (owner,) = (block for block in blocks if hasattr(block, name))
        assert getattr(owner, name) == default, name


def test_defaults_of_areal() -> None:
    found = find_trainer(AREAL).settings
    config, block = areal.actor(AREAL, {}), areal.settings_classes(AREAL).RejectionSamplingConfig()
    assert config.rejection_sampling is None
    for name, default in found.items():
        if name.startswith(areal.RS):
            assert getattr(block, name.removeprefix(areal.RS)) == default, name
        elif name != "rejection_sampling":
            assert getattr(config, name) == default, name


@NEMO_RL.needed
def test_defaults_of_nemo_rl() -> None:
    config = nemo_rl.code().ClippedPGLossConfig()
    for name, default in find_trainer("nemo-rl").settings.items():
        if name != THRESHOLD:
            assert getattr(config, name) == default, name


RS = {"use_decoupled_loss": True, "rejection_sampling": True}


@pytest.mark.parametrize(
    "own",
    [
        {"upper": 1.0},
        {"upper": 0.5, "lower": 0.6, "metric": "kl_k1"},
        {"lower": 0.0},
        {"metric": "kl_k2", "upper": -1.0},
        {"action": "clamp", "metric": "kl_k3"},
        {"level": "turn"},
        {"agg": "median"},
    ],
)
def test_both_refuse_a_block_of_areal(own: dict[str, Any]) -> None:
    settings = {**RS, **{areal.RS + name: value for name, value in own.items()}}
    trainer = find_trainer(AREAL)
    with pytest.raises(ValueError, match=r".+"):
        areal.actor(AREAL, settings)
    with pytest.raises(Refused):
        trainer.read({**trainer.settings, **settings})


@NEMO_RL.needed
@pytest.mark.parametrize(
    "settings",
    [
        {"truncated_importance_sampling_type": "tis", "truncated_importance_sampling_ratio": 2.0},
        {**nemo_rl.IS, "truncated_importance_sampling_type": "tis"},
        nemo_rl._of("icepop", 2.0),
        nemo_rl._of("tis", 1.0, 2.0),
        {**nemo_rl._of("seq-mask-tis", 2.0, 0.5), **nemo_rl.GSPO},
        {"sequence_level_importance_ratios": True},
        nemo_rl._of("truncate", 2.0),
    ],
)
def test_both_refuse_a_loss_of_nemo_rl(settings: dict[str, Any]) -> None:
    trainer = find_trainer("nemo-rl")
    with pytest.raises(AssertionError):
        nemo_rl.code().ClippedPGLossFn(nemo_rl.code().ClippedPGLossConfig(**settings))
    with pytest.raises(Refused):
        trainer.read({**trainer.settings, **settings})
