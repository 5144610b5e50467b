"""`rcdiag replay --loss-setting` takes exactly the settings that the loss reads."""

from __future__ import annotations

import pytest

from rcdiag.losses import LOSSES
from tests.cli.sweep_tables import sampled_table


@pytest.fixture
def table(tmp_path):
    return sampled_table(tmp_path / "table.parquet")


def replayed(rcdiag, table, *options):
    ran = rcdiag("replay", table, "--json", *options)
    assert ran.code == 0, ran.err
    return ran.document["presets"]


def pull(presets, name="naive"):
    return presets[name]["coefficients"]["norm"]


@pytest.mark.parametrize(
    ("loss", "setting"),
    [("sapo", "tau_pos=4"), ("sapo", "tau_neg=4"), ("kl_cov", "kl_cov_ratio=0.5")],
)
def test_settings_that_had_no_option_change_the_loss(rcdiag, table, loss, setting):
    # Away from ratio 1, where gate and penalty act.
    given = ("--loss", loss, "--old", "rollout", "--current", "old", "--preset", "disabled")
    plain = pull(replayed(rcdiag, table, *given))
    changed = pull(replayed(rcdiag, table, *given, "--loss-setting", setting))
    assert changed != pytest.approx(plain)


def test_a_coefficient_of_zero_gives_no_penalty(rcdiag, table):
    given = ("--loss", "kl_cov", "--old", "rollout", "--current", "old", "--preset", "disabled")
    none = ("--loss-setting", "ppo_kl_coef=0", "--loss-setting", "kl_cov_ratio=1")
    alone = replayed(rcdiag, table, *given, *none)
    assert alone["naive"]["loss"] != replayed(rcdiag, table, *given)["naive"]["loss"]


def test_an_option_and_a_setting_of_the_same_name_are_equivalent(rcdiag, table):
    given = ("--loss", "dro", "--preset", "disabled")
    by_option = replayed(rcdiag, table, *given, "--dro-beta", "0.5")
    assert by_option == replayed(rcdiag, table, *given, "--loss-setting", "dro_beta=0.5")


def test_slimes_builtin_weights(rcdiag, table):
    slime = ("--trainer", "slime")
    bounds = ("tis_by_flag.tis_clip=1.05", "icepop_by_flag.tis_clip=1.05")
    plain = replayed(rcdiag, table, *slime, "--set", "default.use_tis=false", "--preset", "default")
    own = replayed(rcdiag, table, *slime, *(word for one in bounds for word in ("--set", one)))
    assert pull(own, "icepop_by_flag") < pull(own, "tis_by_flag") < pull(plain, "default")


def test_slime_drops_sequences_beyond_its_opsm_bound(rcdiag, table):
    given = ("--trainer", "slime", "--old", "rollout", "--current", "old")
    metrics = replayed(rcdiag, table, *given, "--loss-setting", "opsm_delta=1e-4")
    assert metrics["naive"]["metrics"]["opsm_clipfrac"] > 0


@pytest.mark.parametrize(
    ("options", "output", "hint"),
    [
        (("--loss-setting", "tau_pos=2"), "vanilla does not read the setting `tau_pos`", "clip_c"),
        (("--loss", "sapo", "--loss-setting", "tau_pso=2"), "tau_pso", "did you mean tau_pos?"),
        (("--loss", "sapo", "--loss-setting", "tau_pos"), "wanted NAME=VALUE", "tau_pos, tau_neg"),
        (("--loss", "sapo", "--loss-setting", "tau_pos=0"), "a number above 0", "default is 1.0"),
        (("--loss", "sapo", "--loss-setting", "tau_pos=a"), "wanted a number", "default is 1.0"),
        (("--loss", "gpg", "--loss-setting", "clip_c=2"), "gpg does not read", "it reads none"),
        (("--loss", "kl_cov", "--loss-setting", "kl_cov_ratio=2"), "not a share", "2e-4"),
        (
            ("--trainer", "slime", "--loss-setting", "tis_clip=2"),
            "does not read the setting `tis_clip`",
            "opsm_delta",
        ),
        (
            ("--trainer", "slime", "--loss-setting", "use_rollout_logprobs=1"),
            "true or false",
            "default is False",
        ),
    ],
)
def test_a_setting_that_the_loss_does_not_read_is_refused(rcdiag, table, options, output, hint):
    ran = rcdiag("replay", table, *options)
    ran.refuses(output, hint)


def test_every_setting_of_a_loss_can_be_given():
    for loss in LOSSES.values():
        for setting in loss.settings:
            text = "0.5" if setting.default is None else str(setting.default)
            assert loss.parsed([f"{setting.name}={text}"]) == {setting.name: float(text)}
