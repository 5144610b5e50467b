"""Numbers of verl's own losses on a small batch, computed once with each package."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rcdiag.losses.evaluate import LossResult
from tests.corrections.brute_force import kept_tokens, rows_of, weights_of
from tests.corrections.builders import Padded
from tests.corrections.test_verl_worked_numbers import F1
from tests.losses.batches import PaddedLoss

MOVED = [[0.3, -0.3, 0.05, 0, 0.25], [1.5, -0.3, 0.1, 0, 0], [-0.25, 0.1, 0, 0.4, 0], [0] * 5]
ADVANTAGES = np.repeat([[1.0], [-0.5], [2.0], [0.0]], 5, axis=1)
CURRENT = F1.old + np.array(MOVED)
WEIGHTS = np.minimum(np.exp(F1.log_ratio), 1.2)
F2 = PaddedLoss(CURRENT, F1.old, ADVANTAGES, F1.mask, F1.mask)
WEIGHTED = replace(F2, weights=WEIGHTS)
KL = {"ppo_kl": -0.168182}
CLIPPED = {"pg_clipfrac": 0.363636, "pg_clipfrac_lower": 0.090909, **KL}
THREE = {"pg_clipfrac": 0.0, "pg_clipfrac_lower": 0.0, **KL}
NO_METRICS: dict[str, float] = {}

# Loss, its value without and with weights, metrics. All of verl 0.9.1.
WORKED: list[tuple[str, float, float, dict[str, float], dict[str, Any]]] = [
    ("vanilla", -0.809768, -0.563512, CLIPPED, {}),
    ("vanilla", -2.969149, -2.066212, CLIPPED, {"aggregation": "seq-mean-token-sum"}),
    ("vanilla", -0.758957, -0.456682, CLIPPED, {"aggregation": "seq-mean-token-mean"}),
    ("vanilla", -0.593830, -0.413242, CLIPPED, {"aggregation": "seq-mean-token-sum-norm"}),
    ("gspo", -0.865184, -0.610151, THREE, {}),
    ("sapo", -1.700194, -1.094035, THREE, {}),
    ("gpg", 1.604546, 0.979329, NO_METRICS, {}),
    ("cispo", 1.785864, 1.084511, {**THREE, "pg_clipfrac": 0.636364}, {}),
    (
        "geo_mean",
        -0.566683,
        -0.326775,
        {**KL, "pg_clipfrac": 0.454545, "pg_clipfrac_lower": 0.181818},
        {},
    ),
    ("dppo_tv", 2.056130, 1.217302, {**THREE, "pg_clipfrac_lower": 0.090909}, {}),
    ("dppo_kl", 2.056130, 1.217302, {**THREE, "pg_clipfrac_lower": 0.090909}, {}),
    (
        "kl_cov",
        -0.818521,
        -0.528849,
        {"ppo_kl": 0.322727},
        {"kl_cov_ratio": 0.1, "ppo_kl_coef": 0.1},
    ),
    ("dro", 1.610972, 0.986551, KL, {"dro_beta": 0.05}),
]


def near(value: float) -> Any:
    """Compare with numbers computed in float32 and rounded to six decimals."""
    return pytest.approx(value, abs=1.5e-6)


@pytest.mark.parametrize(("loss", "plain", "weighted", "metrics", "given"), WORKED)
def test_losses_of_091(loss, plain, weighted, metrics, given):
    for batch, value in ((F2, plain), (WEIGHTED, weighted)):
        result = batch.run("verl-0.9", loss, **given)
        assert result.loss == near(value)
        assert result.metrics == {f"actor/{name}": near(item) for name, item in metrics.items()}


def test_gspo_was_by_sequence_whatever_was_configured():
    for trainer in ("verl-0.7.1", "verl-0.8.0"):
        assert F2.run(trainer, "gspo").loss == near(-0.821483)
        assert WEIGHTED.run(trainer, "gspo").loss == near(-0.509352)


def in_bypass(trainer: str, loss: str, config: dict[str, Any], **given: Any) -> LossResult:
    """Compute weights and mask from current against rollout; only `reinforce` applies weights."""
    pair = Padded(CURRENT, F1.rollout, F1.mask)
    settings = {"rollout_is": None, "rollout_is_threshold": 2.0, "rollout_rs": None}
    settings |= {"rollout_rs_threshold": None, **config}
    kept, weights = np.zeros_like(F1.mask), np.ones_like(CURRENT)
    for number, row in rows_of(pair):
        places = F1.mask[number]
        kept[number, places] = kept_tokens(settings, row)
        weights[number, places] = weights_of(settings, row)
    applied = weights if loss == "reinforce" else None
    batch = PaddedLoss(CURRENT, F1.rollout, ADVANTAGES, F1.mask, kept, applied)
    return batch.run(trainer, loss, **given)


GEO_RS = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.8_1.25"}
TOKEN_TIS = {"rollout_is": "token"}
SEQ_TIS = {"rollout_is": "sequence"}
ICEPOP = {"rollout_is": "token", "rollout_is_threshold": "0.7_1.4"}
IN_BYPASS = [
    ("vanilla", {}, -0.593879, -2.177558),
    ("vanilla", GEO_RS, -1.034676, -5.173378),
    ("reinforce", SEQ_TIS, 0.920738, 3.376040),
    ("reinforce", TOKEN_TIS, 1.191754, 4.369766),
    ("reinforce", GEO_RS | TOKEN_TIS, 1.400366, 7.001827),
    ("reinforce", ICEPOP, 0.521192, 1.911038),
]


IN_BOTH = [("verl-0.9", *case) for case in IN_BYPASS]
IN_BOTH += [("verl-0.7.1", *case) for case in IN_BYPASS if case[1] is not ICEPOP]  # IcePop: 0.8.0


@pytest.mark.parametrize(("trainer", "loss", "config", "by_token", "by_row"), IN_BOTH)
def test_bypass(trainer, loss, config, by_token, by_row):
    assert in_bypass(trainer, loss, config).loss == near(by_token)
    result = in_bypass(trainer, loss, config, aggregation="seq-mean-token-sum")
    assert result.loss == near(by_row)


def test_metrics_of_bypass_clip():
    result = in_bypass("verl-0.9", "vanilla", {})
    expected = {"pg_clipfrac": 0.090909, "ppo_kl": -0.15, "pg_clipfrac_lower": 0.090909}
    assert result.metrics == {f"actor/{name}": near(value) for name, value in expected.items()}


def test_all_rows_rejected():
    result = in_bypass("verl-0.9", "vanilla", GEO_RS | {"rollout_rs_threshold": "0.99_1.01"})
    assert np.isnan(result.loss)
    assert result.undefined
    assert not result.coefficients.any()


def test_norm_became_a_mean_over_rows_in_071():
    """Ones with masks 4, 2, 0 of width 4: 1.5, then 0.75."""
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [0] * 4], bool)
    ones = np.ones(mask.shape)
    # A ratio of 1 and an advantage of -1 make every token's loss 1.
    batch = PaddedLoss(-ones, -ones, -ones, mask, mask)
    result = [
        batch.run(trainer, "vanilla", aggregation="seq-mean-token-sum-norm").loss
        for trainer in ("verl-0.6.0", "verl-0.6.1", "verl-0.7.0", "verl-0.7.1", "verl-0.9")
    ]
    assert result == pytest.approx([1.5, 1.5, 1.5, 0.75, 0.75])
