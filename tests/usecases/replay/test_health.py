"""Which updates are judged as uncorrected."""

from __future__ import annotations

import pytest

from tests.usecases.replay.builders import plan_of, replay_of, table_of

CASES = {
    "disabled": True,
    "decoupled_token_is": False,
    "decoupled_geo_rs": False,
    "bypass_ppo_clip": False,  # its ratio includes the mismatch
    "bypass_pg_is": False,
    "naive": True,
}


@pytest.fixture(scope="module")
def replayed(tmp_path_factory):
    """Row 0 differs by 0.4 nats per token: a k3 of 0.05 nats."""
    path = tmp_path_factory.mktemp("t") / "t.parquet"
    old = [[-0.6, -1.6], [-1.0, -1.0]]
    return replay_of(table_of(path, [[-1.0, -2.0], [-1.0, -1.0]], old, advantage=[1.0, -1.0]))


@pytest.mark.parametrize("name", CASES)
def test_the_mismatch_is_judged_only_where_nothing_corrects_it(replayed, name):
    rules = {rule.name: rule for rule in replayed.presets[name].health.rules}
    assert ("uncorrected_ess" in rules) is ("mismatch_k3" in rules) is CASES[name]
    if CASES[name]:
        assert rules["mismatch_k3"].value == pytest.approx((2.718281828**0.4 - 1.4) / 2)
        assert rules["mismatch_k3"].level == replayed.factors["mismatch"].k3_kl.level


def test_bypass_reinforce_without_weights_is_uncorrected_too():
    reinforce = {"bypass_mode": True, "loss_type": "reinforce", "rollout_is": None}
    clip = {"bypass_mode": True, "loss_type": "ppo_clip", "rollout_is": None}
    rejecting = reinforce | {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0"}
    plan = plan_of(reinforce=reinforce, clip=clip, rejecting=rejecting)
    result = {name: item.leaves_loss_alone for name, item in plan.corrections.items()}
    assert result == {"reinforce": True, "clip": False, "rejecting": False}
