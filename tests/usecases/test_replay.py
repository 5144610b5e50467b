"""`replay` on recorded log-probs, against numbers of verl's own code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.corrections.builders import Padded, result_of, without_prefix
from tests.corrections.test_verl_worked_numbers import F1, LOG_RATIO, MASK, ROLLOUT
from tests.losses.test_verl_worked_losses import CURRENT, near
from tests.usecases.replay.builders import naive_of, one, plan_of, replay_of, table_of, update_of

TOKEN_TIS = {"rollout_is": "token", "rollout_is_threshold": 1.2}
BYPASS = {"bypass_mode": True, "loss_type": "ppo_clip", "rollout_is": None}
REINFORCE = {"bypass_mode": True, "loss_type": "reinforce", "rollout_is_threshold": 2.0}
GEO_RS = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.8_1.25"}
ICEPOP = {"rollout_is": "token", "rollout_is_threshold": "0.7_1.4"}
CLIPPED = {"pg_clipfrac": 0.363636, "ppo_kl": -0.168182, "pg_clipfrac_lower": 0.090909}


@pytest.fixture
def f2(tmp_path, monkeypatch) -> Path:
    """Make a padded batch: row 2 has a masked token with garbage, row 3 no unmasked token.

    One current log-prob is 0.1, which a table would refuse.
    """
    monkeypatch.setattr("rcdiag.statistics.extremes.LARGEST_LOG_PROB", 0.2)
    rollout = np.where(MASK, ROLLOUT, -7.0)
    return table_of(
        tmp_path / "f2.parquet",
        rollout.tolist(),
        np.where(MASK, F1.old, np.nan).tolist(),
        current_log_probs=np.where(MASK, CURRENT, 0.0).tolist(),
        response_mask=MASK,
        advantage=[1.0, -0.5, 2.0, 0.0],
    )


def of_actor(metrics: dict[str, float]) -> dict[str, float]:
    return {
        name.removeprefix("actor/"): value
        for name, value in metrics.items()
        if name.startswith("actor/")
    }


def rejection_metrics(rollout: Any, target: Any, trainer: str, config: dict) -> dict[str, float]:
    """Return metrics of the corrections on that pair, which are tested against verl elsewhere."""
    return result_of(trainer, config, Padded(target, rollout, F1.mask)).metrics


def test_decoupled_weights_multiply_the_clipped_loss(f2):
    result = one(f2, TOKEN_TIS)
    assert (result.mode, result.loss_type) == ("decoupled", "ppo_clip")
    assert result.loss == near(-0.563512)
    assert of_actor(result.metrics) == {name: near(value) for name, value in CLIPPED.items()}
    assert result.metrics["rollout_corr/rollout_is_mean"] == near(0.956994)
    assert result.metrics["rollout_corr/k3_kl"] == near(0.071885)


def test_naive_is_the_clipped_loss_without_weights(f2):
    result = naive_of(f2)
    assert (result.mode, result.loss, result.kept_tokens) == ("naive", near(-0.809768), 11)
    assert of_actor(result.metrics) == {name: near(value) for name, value in CLIPPED.items()}
    assert result.metrics.keys() == {f"actor/{name}" for name in CLIPPED}


BY_ROW = [
    ("seq-mean-token-sum", -2.066212),
    ("seq-mean-token-mean", -0.456682),
    ("seq-mean-token-sum-norm", -0.413242),
]


@pytest.mark.parametrize(("aggregation", "loss"), BY_ROW)
def test_decoupled_by_every_aggregation(f2, aggregation, loss):
    assert one(f2, TOKEN_TIS, aggregation=aggregation).loss == near(loss)


OTHERS = [
    ("gspo", -0.610151, {}),
    ("sapo", -1.094035, {}),
    ("gpg", 0.979329, {}),
    ("cispo", 1.084511, {}),
    ("geo_mean", -0.326775, {}),
    ("dppo_tv", 1.217302, {}),
    ("dppo_kl", 1.217302, {}),
    ("kl_cov", -0.528849, {"kl_cov_ratio": 0.1, "ppo_kl_coef": 0.1}),
    ("dro", 0.986551, {"dro_beta": 0.05}),
]


@pytest.mark.parametrize(("loss", "value", "given"), OTHERS)
def test_every_other_loss_with_weights(f2, loss, value, given):
    result = one(f2, TOKEN_TIS, loss=loss, **given)
    assert (result.loss, result.loss_type) == (near(value), loss)


IN_BYPASS = [
    ("clip", BYPASS, -0.593879, -2.177558, 11),
    ("clip and geometric rejection", BYPASS | GEO_RS, -1.034676, -5.173378, 5),
    ("sequence TIS", REINFORCE | {"rollout_is": "sequence"}, 0.920738, 3.376040, 11),
    ("token TIS", REINFORCE | {"rollout_is": "token"}, 1.191754, 4.369766, 11),
    ("both", REINFORCE | GEO_RS | {"rollout_is": "token"}, 1.400366, 7.001827, 5),
    ("IcePop", REINFORCE | ICEPOP, 0.521192, 1.911038, 11),
]


@pytest.mark.parametrize(("config", "by_token", "by_row", "kept"), [each[1:] for each in IN_BYPASS])
def test_bypass_compares_the_current_policy_with_the_rollout(f2, config, by_token, by_row, kept):
    result = one(f2, config)
    assert (result.mode, result.loss, result.kept_tokens) == ("bypass", near(by_token), kept)
    assert result.loss_type == config["loss_type"]
    assert one(f2, config, aggregation="seq-mean-token-sum").loss == near(by_row)
    expected = rejection_metrics(F1.rollout, CURRENT, "verl-0.9", config)
    logged = {k: v for k, v in result.metrics.items() if not k.startswith("actor/")}
    assert logged == pytest.approx(expected, rel=1e-9)


def test_metrics_of_bypass_clip(f2):
    expected = {"pg_clipfrac": 0.090909, "ppo_kl": -0.15, "pg_clipfrac_lower": 0.090909}
    result = of_actor(one(f2, BYPASS).metrics)
    assert result == {name: near(value) for name, value in expected.items()}


def test_metrics_of_bypass_rejection_are_added_to_those_of_the_loss(f2):
    metrics = without_prefix(one(f2, BYPASS | GEO_RS).metrics)
    assert metrics["rollout_rs_masked_fraction"] == near(0.545455)
    assert {"pg_clipfrac", "ppo_kl", "kl", "k3_kl"} <= metrics.keys()


def test_decoupled_metrics_are_those_of_old_against_rollout(f2):
    config = TOKEN_TIS | {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.6_1.6"}
    result = one(f2, config)
    expected = rejection_metrics(F1.rollout, F1.old, "verl-0.9", config)
    assert {k: result.metrics[k] for k in expected} == pytest.approx(expected, rel=1e-9)
    assert result.kept_tokens == 8


def test_rollout_is_is_not_applied_with_the_clip_in_bypass_mode(f2):
    plain, weighted = one(f2, BYPASS), one(f2, BYPASS | {"rollout_is": "token"})
    assert weighted.loss == plain.loss
    assert weighted.coefficients == plain.coefficients
    assert "rollout_corr/rollout_is_mean" in weighted.metrics.keys() - plain.metrics.keys()


def test_without_current_log_probs_the_ratio_is_one(f2, tmp_path):
    rollout, old = np.array(ROLLOUT), F1.old
    columns = {"response_mask": MASK, "advantage": [1.0, -0.5, 2.0, 0.0]}
    path = table_of(tmp_path / "old.parquet", rollout.tolist(), old.tolist(), **columns)
    result = replay_of(path, plan_of(it=TOKEN_TIS), update_of())
    weights = np.minimum(np.exp(LOG_RATIO), 1.2)
    advantages = np.array([[1.0], [-0.5], [2.0], [0.0]])
    assert result.presets["it"].loss == pytest.approx(-(weights * advantages)[F1.mask].sum() / 11)
    assert result.presets["it"].metrics["actor/pg_clipfrac"] == 0.0
    assert result.current == "old"
    assert result.factors["staleness"].k3_kl.value == 0.0


def test_mismatch_and_drift_are_separate_factors(f2):
    result = replay_of(f2, plan_of(it=TOKEN_TIS), update_of()).factors
    assert result["mismatch"].k3_kl.value == near(0.071885)
    log_ratios = {"staleness": (CURRENT - F1.old), "product": (CURRENT - F1.rollout)}
    for name, values in log_ratios.items():
        kept = values[F1.mask]
        assert result[name].k3_kl.value == pytest.approx((np.exp(kept) - 1 - kept).mean())
        assert result[name].log_ratio_abs_max == pytest.approx(np.abs(kept).max())
