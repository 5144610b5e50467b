"""`rcdiag score`: trainers, presets, their settings and their YAML."""

from __future__ import annotations

from pathlib import Path

import pytest

from rcdiag.trainers import TRAINERS
from rcdiag.trainers.plan import plan_corrections
from tests.cli.conftest import dump_with_shift


@pytest.fixture
def table(tmp_path) -> Path:
    return dump_with_shift(tmp_path / "table.parquet", 0.3, step=[4, 4, 5])


def test_every_preset_of_the_newest_verl_is_computed_by_default(rcdiag, table):
    document = rcdiag("score", table, "--json").document
    result = document["corrections"]
    assert set(result) == set(TRAINERS["verl-0.9"].presets)
    assert len(result) == 19
    for item in result.values():
        assert item["trainer"] == "verl-0.9"
        expected = {"config", "kept_tokens", "kept_sequences", "weight_sum", "metrics"}
        assert expected <= set(item)
    assert result["decoupled_geo_rs"]["weight_sum"] is None
    assert "rollout_corr/rollout_is_mean" in result["decoupled_token_is"]["metrics"]
    assert set(document["steps"]["4"]["corrections"]) == set(result)


@pytest.mark.parametrize("name", TRAINERS)
def test_every_trainer_can_be_chosen_by_name(rcdiag, table, name):
    result = rcdiag("score", table, "--json", "--trainer", name).document["corrections"]
    trainer = TRAINERS[name]
    plan = plan_corrections(trainer, trainer.presets)
    lacking = {preset for preset, one in plan.corrections.items() if one.needs_advantages}
    assert set(result) == trainer.presets.keys() - lacking


def test_presets_are_chosen_and_changed_by_name(rcdiag, table):
    options = ("--preset", "decoupled_token_is", "--set")
    changed = "decoupled_token_is.rollout_is_threshold=1.1"
    result = rcdiag("score", table, "--json", *options, changed).document["corrections"]
    assert list(result) == ["decoupled_token_is"]
    assert result["decoupled_token_is"]["config"]["rollout_is_threshold"] == 1.1
    assert result["decoupled_token_is"]["metrics"]["rollout_corr/rollout_is_max"] == 1.1


def test_float32_reproduces_the_rounding_of_a_trainer(rcdiag, table):
    exact, rounded = (
        rcdiag("score", table, "--json", "--arithmetic", item).document["corrections"]
        for item in ("float64", "float32")
    )
    name, key = "decoupled_token_is", "rollout_corr/k3_kl"
    one, other = exact[name]["metrics"][key], rounded[name]["metrics"][key]
    assert one != other
    assert one == pytest.approx(other, rel=1e-5)


def test_the_screen_names_every_preset_with_its_level(rcdiag, table):
    out = rcdiag("score", table, "-v").out
    for name in TRAINERS["verl-0.9"].presets:
        assert f"\n{name} " in out


@pytest.mark.parametrize(
    ("yaml", "trainer", "config"),
    [
        (
            "algorithm:\n  rollout_is: true\n  rollout_is_level: sequence\n"
            "  rollout_is_threshold: 2.0\n  gamma: 1.0\n",
            "verl-0.6.0",
            {"rollout_is_level": "sequence"},
        ),
        (
            "algorithm:\n  rollout_correction:\n    rollout_rs: geometric\n"
            "    rollout_rs_threshold: 1.002\n    use_policy_gradient: true\n",
            "verl-0.6.1",
            {"rollout_rs": "geometric"},
        ),
        (
            "rollout_correction:\n  rollout_rs: sequence\n  rollout_rs_threshold: 2.0\n"
            "  loss_type: reinforce\n",
            "verl-0.7.0",
            {"loss_type": "reinforce"},
        ),
        (
            'rollout_is: token\nrollout_is_threshold: "0.5_5.0"\n',
            "verl-0.9",
            {"rollout_is_threshold": "0.5_5.0"},
        ),
        (
            'rollout_rs: "token_k1,seq_max_k3"\nrollout_rs_threshold: "0.5_2.0,0.1"\n',
            "verl-0.9",
            {"rollout_rs": "token_k1,seq_max_k3"},
        ),
        ("use_tis: true\ntis_level: sequence\nuse_rs: false\n", "slime", {"use_rs": False}),
    ],
)
def test_a_trainers_own_yaml_is_recognised_by_its_keys(
    rcdiag, table, tmp_path, yaml, trainer, config
):
    (tmp_path / "config.yaml").write_text(yaml)
    ran = rcdiag("score", table, "--json", "--trainer-config", tmp_path / "config.yaml")
    assert ran.code == 0, ran.err
    (result,) = ran.document["corrections"].values()
    assert result["trainer"] == trainer
    assert config.items() <= result["config"].items()


def test_a_threshold_that_yaml_read_as_a_number_is_a_finding(rcdiag, table, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("rollout_is: token\nrollout_is_threshold: 0.5_5\n")
    document = rcdiag("score", table, "--json", "--trainer-config", path).document
    (finding,) = [f for f in document["findings"] if f["slug"] == "threshold-read-as-number"]
    assert finding["severity"] == "error"
    assert finding["evidence"] == {"written": "0.5_5", "read": 0.55}
    assert document["corrections"]["config"]["config"]["rollout_is_threshold"] == 0.55


def test_a_setting_that_the_trainer_refuses_is_a_finding(rcdiag, table, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("rollout_is: null\nrollout_rs: token_k1\nrollout_rs_threshold: 0.5_2\n")
    ran = rcdiag("score", table, "--json", "--trainer-config", path)
    assert ran.code == 0
    assert ran.document["corrections"] == {}
    output = {item["slug"]: item["message"] for item in ran.document["findings"]}
    assert "0.5_2 without quotes is the number 0.52" in output["threshold-read-as-number"]
    assert "lower bound above" in output["trainer-refuses"]
    assert rcdiag("score", table, "--trainer-config", path, "--fail-on", "error").code == 1


def test_a_refused_preset_does_not_affect_the_others(rcdiag, table):
    options = ("--set", "decoupled_token_is.rollout_is=geometric")
    document = rcdiag("score", table, "--json", *options).document
    assert len(document["corrections"]) == len(TRAINERS["verl-0.9"].presets) - 1
    (finding,) = [f for f in document["findings"] if f["slug"] == "trainer-refuses"]
    known = TRAINERS["verl-0.9"].known
    assert finding["message"].startswith("decoupled_token_is: unknown value of rollout_is: ")
    assert known in finding["message"]
    assert finding["evidence"]["config"]["rollout_is"] == "geometric"


def test_a_setting_without_effect_is_reported(rcdiag, table, tmp_path):
    path = tmp_path / "mis.yaml"
    path.write_text("use_tis: false\nuse_rs: true\n")
    document = rcdiag("score", table, "--json", "--trainer-config", path).document
    assert "setting-without-effect" in {finding["slug"] for finding in document["findings"]}


def test_a_batch_without_a_kept_token_is_reported(rcdiag, table):
    document = rcdiag("score", table, "--json", "--preset", "decoupled_geo_rs").document
    (finding,) = [f for f in document["findings"] if f["slug"] == "everything-rejected"]
    assert finding["evidence"] == {"decoupled_geo_rs": ["4"]}


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["--trainer", "verl-9"], "verl-0.9"),
        (["--preset", "decoupled_token"], "decoupled_token_is"),
        (["--set", "decoupled_token_is.rollout_is_treshold=3"], "rollout_is_threshold"),
        (["--set", "nonsense"], "PRESET.SETTING=VALUE"),
        (["--trainer-config", "{tmp}/none.yaml"], "cannot be read"),
        (["--trainer-config", "{tmp}/empty.yaml"], "no settings"),
    ],
)
def test_an_unknown_setting_or_preset_is_an_error_with_a_hint(
    rcdiag, table, tmp_path, arguments, output
):
    (tmp_path / "empty.yaml").write_text("model: x\n")
    ran = rcdiag("score", table, *[item.format(tmp=tmp_path) for item in arguments])
    ran.refuses(output, "\nhint: ")


@pytest.mark.parametrize(
    ("yaml", "output"),
    [
        ("rollout_is: token\nrollout_is_threshold: null\n", "computes no weights"),
        ("rollout_is: null\nrollout_is_batch_normalize: true\n", "without rollout_is"),
        ("rollout_is: token\nrollout_rs_threshold: 2.0\n", "without rollout_rs"),
        ("rollout_is: token\nloss_type: reinforce\n", "without bypass_mode"),
        ("rollout_is: token\nbypass_mode: true\n", "not applied"),
        ("rollout_is_level: token\nrollout_is_threshold: null\n", "computes nothing"),
    ],
)
def test_a_setting_that_verl_silently_ignores_is_a_finding(rcdiag, table, tmp_path, yaml, output):
    path = tmp_path / "config.yaml"
    path.write_text(yaml)
    document = rcdiag("score", table, "--json", "--trainer-config", path).document
    (finding,) = [f for f in document["findings"] if f["slug"] == "setting-without-effect"]
    assert output in finding["message"]
    assert finding["severity"] == "warning"
