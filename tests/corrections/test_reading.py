"""From a trainer's own settings to the correction that is computed."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.errors import RcdiagError
from rcdiag.trainers import TRAINERS, find_trainer
from rcdiag.trainers.plan import plan_corrections, preset_configs
from tests.corrections.builders import plan_of, presets_of

LN2 = float(np.log(2.0))


def read(trainer: str, **config) -> Correction:
    return plan_of(trainer, config).corrections["it"]


def test_verl_stands_for_its_newest_generation():
    assert find_trainer("verl") is TRAINERS["verl-0.9"]
    with pytest.raises(RcdiagError, match=r"verl-0\.5\.0: no such trainer") as error:
        find_trainer("verl-0.5.0")
    assert all(name in error.value.hint for name in TRAINERS)


@pytest.mark.parametrize(("trainer", "count"), [("verl-0.6.1", 8), ("verl-0.7.0", 11)])
def test_how_many_presets_there_were(trainer, count):
    assert len(presets_of(trainer).corrections) == count


@pytest.mark.parametrize(("trainer", "count"), [("verl-0.7.1", 17), ("verl-0.9", 19)])
def test_how_many_presets_there_are(trainer, count):
    assert len(presets_of(trainer).corrections) == count


@pytest.mark.parametrize("trainer", TRAINERS)
def test_all_presets_can_be_read(trainer):
    plan = presets_of(trainer)
    assert set(plan.corrections) == set(TRAINERS[trainer].presets)
    for name, config in plan.configs.items():
        assert set(config) == set(TRAINERS[trainer].settings), name


def test_presets_by_name_with_changed_settings():
    trainer = find_trainer("verl-0.9")
    overrides = {"decoupled_seq_is": {"rollout_is_threshold": 3.0}}
    result = preset_configs(trainer, ["decoupled_seq_is", "disabled"], overrides)
    assert list(result) == ["decoupled_seq_is", "disabled"]
    plan = plan_corrections(trainer, result)
    assert plan.corrections["decoupled_seq_is"].weighting == Weighting("sequence", 3.0)
    assert plan.corrections["disabled"].weighting is None
    assert set(preset_configs(trainer, [], {})) == set(trainer.presets)


@pytest.mark.parametrize(
    ("trainer", "name", "near"),
    [
        ("verl-0.9", "decoupled_geo_rs_seq", "decoupled_geo_rs_seq_tis"),
        ("verl-0.7.0", "bypass_pg_geo_rs_seq", "bypass_pg_geo_rs_seq_tis"),
        ("slime", "defaults", "default"),
    ],
)
def test_an_unknown_preset_suggests_the_closest_one(trainer, name, near):
    with pytest.raises(RcdiagError) as error:
        preset_configs(find_trainer(trainer), [name], {})
    assert error.value.message == f"{trainer} has no preset `{name}`"
    assert error.value.hint.startswith(f"did you mean {near}? ")
    with pytest.raises(RcdiagError, match="no preset"):
        preset_configs(find_trainer(trainer), [], {name: {}})


@pytest.mark.parametrize(
    ("trainer", "name", "preset", "differs"),
    [
        ("verl-0.9", "token_is", "decoupled_token_is", {}),
        ("verl-0.6.1", "seq_is_rs", "decoupled_seq_is_rs", {}),
        ("verl-0.6.1", "geo_mis", "decoupled_geo_rs", {"rollout_rs_threshold_lower": 0.999}),
        ("verl-0.6.1", "pure_is", "pg_is", {}),
    ],
)
def test_a_preset_by_a_name_of_unreleased_code(trainer, name, preset, differs):
    own = find_trainer(trainer)
    expected = {**own.presets[preset], **differs}
    assert preset_configs(own, [name], {}) == {name: expected}
    changed = preset_configs(own, [name], {name: {"rollout_is_batch_normalize": True}})
    assert changed == {name: {**expected, "rollout_is_batch_normalize": True}}


def test_a_former_preset_needs_its_settings_in_the_generation():
    with pytest.raises(RcdiagError, match=r"verl-0\.9 has no preset `geo_mis`"):
        preset_configs(find_trainer("verl-0.9"), ["geo_mis"], {})


def test_a_documented_name_of_a_setting_is_refused_with_the_real_one():
    configs = {"default": {"mis_level": "sequence"}}
    with pytest.raises(RcdiagError) as error:
        plan_corrections(find_trainer("slime"), configs)
    assert error.value.hint == (
        "`tis_level`: only the README of slime's MIS helper calls it `mis_level`"
    )


def test_one_number_truncates_and_a_pair_zeroes():
    assert read("verl-0.9", rollout_is="token").weighting == Weighting("token", 2.0)
    same = read("verl-0.9", rollout_is="token", rollout_is_threshold=" 2.0 ")
    assert same.weighting == Weighting("token", 2.0)
    pair = read("verl-0.9", rollout_is="token", rollout_is_threshold="0.5_5.0")
    assert pair.weighting == Weighting("token", 5.0, 0.5, "zero")


@pytest.mark.parametrize("trainer", ["verl-0.7.1", "verl-0.8.0", "verl-0.9"])
def test_bounds_of_k1_become_nats_and_one_number_both(trainer):
    config = {"rollout_rs": "token_k1, seq_sum_k2,token_k1", "rollout_rs_threshold": " 2.0 "}
    result = read(trainer, **config)
    assert result.rejections == (
        Rejection("token_k1", pytest.approx(LN2), pytest.approx(-LN2)),
        Rejection("seq_sum_k2", 2.0),
    )
    item = read(trainer, rollout_rs="seq_mean_k1,seq_max_k3", rollout_rs_threshold="0.5_4.0,0.1")
    assert item.rejections == (
        Rejection("seq_mean_k1", pytest.approx(2 * LN2), pytest.approx(-LN2)),
        Rejection("seq_max_k3", 0.1),
    )


def test_060_zeroes_weights_and_20251027_rejects():
    config = {"rollout_is": True, "rollout_is_threshold": 2.0, "rollout_is_mode": "mask"}
    old, new = read("verl-0.6.0", **config), read("verl-20251027", **config)
    assert [old.weighting.outside, new.weighting.outside] == ["zero", "mask"]
    assert [item.weighting.lower_or_reciprocal for item in (old, new)] == [0.5, 0.5]
    assert (old.rejections, old.veto, old.veto_on_weights) == ((), 1e-4, True)
    assert new.rejections == (Rejection("token", 2.0, 0.5),)
    assert (new.veto, new.veto_on_weights) == (None, False)
    assert not read("verl-0.6.0", rollout_is_threshold=2.0).weights_applied


@pytest.mark.parametrize("trainer", ["verl-0.6.1", "verl-20251203", "verl-0.7.0"])
def test_ratio_bounds_are_reciprocal_by_default(trainer):
    result = read(trainer, rollout_rs="geometric", rollout_rs_threshold=1.25)
    assert result.rejections == (Rejection("geometric", 1.25, 0.8),)
    config = {"rollout_rs_threshold": 2.0, "rollout_rs_threshold_lower": 0.0}
    assert read(trainer, rollout_rs="token", **config).rejections == (Rejection("token", 2.0, 0.0),)


def test_modes_and_losses_under_the_names_of_today():
    result = {
        (trainer, name): (correction.mode, correction.loss)
        for trainer in ("verl-0.6.1", "verl-0.7.0", "verl-0.9")
        for name, correction in presets_of(trainer).corrections.items()
    }
    assert result["verl-0.6.1", "pg_is"] == ("bypass", "reinforce")
    assert result["verl-0.6.1", "ppo_is_bypass"] == ("bypass", "ppo_clip")
    assert result["verl-0.7.0", "bypass_pg_rs"] == ("bypass", "reinforce")
    assert result["verl-0.9", "bypass_ppo_clip"] == ("bypass", "ppo_clip")
    assert result["verl-0.9", "decoupled_seq_is"] == ("decoupled", "ppo_clip")


def test_the_next_development_version_has_token_weights_no_more():
    old, new = presets_of("verl-0.6.1").corrections, presets_of("verl-20251203").corrections
    assert old["ppo_is_bypass"].weighting == Weighting("token", 2.0)
    assert new["ppo_is_bypass"].weighting is None
    geometric = new["geo_rs_seq_tis"]
    assert geometric.weighting == Weighting("sequence", 2.0)
    assert geometric.veto == 1e-4


def test_slime_rejection_defaults_to_the_bounds_of_the_weights():
    result = read("slime", tis_lower_bound=None, tis_upper_bound=4.0, rs_lower_bound=0.1)
    assert result.weighting == Weighting("token", 4.0, 0.25)
    assert result.rejections == (Rejection("token", 4.0, 0.1),)
    twice = read("slime", tis_mode="mask", rs_level="sequence")
    assert [item.statistic for item in twice.rejections] == ["token", "sequence"]
    assert read("slime", use_rs=False).veto is None


def test_ignored_settings_of_slime_are_findings():
    ignored = TRAINERS["slime"].ignored
    settings = TRAINERS["slime"].settings
    assert ignored(settings) == []
    (sentence,) = ignored({**settings, "use_tis": False})
    assert "use_rs has no effect without use_tis" in sentence
    assert ignored({**settings, "use_rs": False}) == []  # no correction was requested
    (sentence,) = ignored({**settings, "use_rs": False, "tis_lower_bound": 0.2})
    assert "tis_lower_bound has no effect" in sentence
    (sentence,) = ignored({**settings, "use_rs": False, "rs_upper_bound": 3.0})
    assert "rs_upper_bound has no effect without use_rs" in sentence
