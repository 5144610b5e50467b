"""XTuner: the order of its bounds, its two-sided veto, and numbers computed by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rcdiag.errors import RcdiagError
from rcdiag.trainers import find_trainer
from rcdiag.trainers.emit import emit
from rcdiag.trainers.plan import plan_corrections
from rcdiag.trainers.trainer import Refused
from tests.corrections.builders import padded, result_of
from tests.trainers.config_files import read

WORKER = """
loss_cfg:
  policy_loss_cfg: {loss_type: vanilla, cliprange_low: 0.2, cliprange_high: 0.28}
  rollout_is:
    rollout_is_level: token
    rollout_is_mode: both
    rollout_is_threshold: [5, 0.5]
    rollout_is_mask_threshold: [5, 0.5]
    rollout_is_veto_threshold: [20, 0]
"""
# Ratios 4, 1/4 and 1; log-ratios 2 log 2, -2 log 2 and 0.
BATCH = padded([[math.log(4.0), -math.log(4.0)], [0.0]])


def weights(mode: str, threshold: list[float], **others: Any) -> dict[str, Any]:
    own = {f"rollout_is_{name}": value for name, value in others.items()}
    return {"rollout_is_mode": mode, "rollout_is_threshold": threshold, **own}


def test_the_settings_of_a_worker_configuration(tmp_path: Path) -> None:
    found = read(tmp_path, WORKER)
    assert found.trainer.name == "xtuner"
    assert found.settings["rollout_is_threshold"] == [5, 0.5]
    plan = plan_corrections(found.trainer, {"it": found.settings})
    assert emit(plan.corrections["it"], "xtuner").text.count("[20.0, 0.0]") == 1
    assert found.trainer.config.loss(found.document).own == {"clip_low": 0.2, "clip_high": 0.28}


def test_verls_files_are_not_taken_for_xtuner(tmp_path: Path) -> None:
    text = "algorithm: {rollout_is: true, rollout_is_threshold: 2.0, rollout_is_mode: mask}\n"
    assert read(tmp_path, text).trainer.family == "verl"


@pytest.mark.parametrize(
    ("mode", "total", "kept"),
    [
        ("truncate", 2.0 + 0.5 + 1.0, 3),  # both bounds act on the weights, whatever its name
        ("mask", 4.0 + 0.25 + 1.0, 1),
        ("both", 2.0 + 0.5 + 1.0, 1),
    ],
)
def test_modes_by_hand(mode: str, total: float, kept: int) -> None:
    result = result_of("xtuner", weights(mode, [2.0, 0.5]), BATCH)
    assert result.weight_sum == pytest.approx(total)
    assert result.kept_tokens == kept


def test_perplexities_are_of_the_pack_and_not_of_sequences() -> None:
    batch = padded([[0.3, 0.3, 0.3], [-0.6]])
    metrics = result_of("xtuner", {}, batch).metrics
    difference = -(0.9 - 0.6) / 4
    for name in ("log_ppl_diff", "log_ppl_diff_max", "log_ppl_diff_min", "kl"):
        assert metrics[f"mismatch/mismatch_{name}"] == pytest.approx(difference)
    assert metrics["mismatch/mismatch_log_ppl_abs_diff"] == pytest.approx(-difference)


@pytest.mark.parametrize(
    ("veto", "rows", "share"),
    [([20.0, 0.0], 2, 0.0), ([3.0, 0.0], 1, 0.5), ([20.0, 0.3], 1, 0.5), ([20.0, 0.1], 2, 0.0)],
)
def test_the_veto_has_two_sides(veto: list[float], rows: int, share: float) -> None:
    result = result_of("xtuner", weights("truncate", [5.0, 0.0], veto_threshold=veto), BATCH)
    assert result.kept_sequences == rows
    prefix = "rollout_is/mismatch/rollout_is"
    assert result.metrics[f"{prefix}_veto_fraction"] == pytest.approx(share)
    tokens = result.metrics[f"{prefix}_catastrophic_token_fraction"]
    assert tokens == pytest.approx(2 * share / 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (weights("truncate", [0.8, 1.2]), "has the lower bound first"),
        (weights("mask", [2.0, 0.5], mask_threshold=[0.5, 2.0]), "has the lower bound first"),
        ({"rollout_is_threshold": 2.0}, "wanted two numbers"),
        ({"rollout_is_threshold": [2.0, 0.5, 0.1]}, "wanted two numbers"),
        (weights("clip", [2.0, 0.5]), "not one of its values"),
        (weights("truncate", [2.0, 0.5], level="turn"), "not one of its values"),
    ],
)
def test_settings_that_xtuner_refuses(settings: dict[str, Any], message: str) -> None:
    found = find_trainer("xtuner")
    with pytest.raises(Refused, match=message):
        found.read({**found.settings, **settings})


def test_without_a_threshold_nothing_is_checked() -> None:
    found = find_trainer("xtuner")
    settings = {
        **found.settings,
        "rollout_is_mode": "clip",
        "rollout_is_mask_threshold": [2.0, 0.5],
    }
    assert found.read(settings).weighting is None
    (mode, mask) = found.ignored(settings)
    assert "rollout_is_mode has no effect" in mode
    assert "rollout_is_mask_threshold has no effect" in mask


def test_corrections_that_xtuner_lacks() -> None:
    verl = find_trainer("verl")
    correction = verl.read(
        {**verl.settings, "rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.1}
    )
    with pytest.raises(RcdiagError, match="rejection by seq_mean_k3"):
        emit(correction, "xtuner")
