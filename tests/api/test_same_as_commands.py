"""A command and the API function of the same name give the same document for the same options."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import typer.main

import rcdiag as api
from cli.app import COMMANDS, app
from cli.options import OPTIONS, options_of
from cli.parameters import function_of
from tests.cli.conftest import dump_with_shift, rcdiag
from tests.cli.sweep_tables import sampled_table

__all__ = ["rcdiag"]  # the fixture that runs a command

# Options of the command line alone: outputs and exit codes.
OF_THE_COMMAND = {
    *("help", "help_all", "config", "json", "quiet", "verbose", "fail_on", "dry_run"),
    *("result", "csv", "html", "plots", "figures", "width", "force"),
}


@pytest.fixture
def table(tmp_path) -> Path:
    columns = {
        "advantage": [1.0, -2.0, 4.0],
        "step": [4, 6, 6],
        "group_id": [1, 1, 2],
        "sample_id": ["x", "y", "z"],
    }
    return dump_with_shift(tmp_path / "a.parquet", 0.1, **columns)


@pytest.fixture
def other(tmp_path) -> Path:
    return dump_with_shift(tmp_path / "b.parquet", 0.05, sample_id=["x", "y", "w"])


@pytest.fixture
def config(tmp_path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("rollout_correction:\n  rollout_is: token\n  rollout_is_threshold: 2.0\n")
    return path


def comparable(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document without the fields that differ between any two runs."""
    provenance = {k: v for k, v in document["provenance"].items() if k not in ("command", "time")}
    return {**document, "provenance": provenance}


def same(ran, result) -> None:
    assert ran.code == 0, ran.err
    assert comparable(ran.document) == comparable(json.loads(result.to_json()))


def test_score(rcdiag, table):
    same(rcdiag("score", table, "--json"), api.score(table))


def test_score_with_every_kind_of_option(rcdiag, table):
    preset, setting = "decoupled_token_is", "rollout_is_threshold"
    options = ("--preset", preset, "--set", f"{preset}.{setting}=3", "--arithmetic", "float32")
    ran = rcdiag("score", table, "--json", *options, "--trainer", "verl-0.8.0", "--seed", 5)
    result = api.score(
        str(table),
        presets=[preset],
        settings={preset: {setting: 3}},
        arithmetic="float32",
        trainer="verl-0.8.0",
        seed=5,
    )
    same(ran, result)


def test_score_with_a_trainers_configuration(rcdiag, table, config):
    ran = rcdiag("score", table, "--json", "--trainer-config", config)
    same(ran, api.score(table, trainer_config=config))


def test_compare(rcdiag, table):
    same(rcdiag("compare", table, "--json"), api.compare(api.open_table(table)))


def test_compare_of_two_tables(rcdiag, table, other):
    ran = rcdiag("compare", table, other, "--json", "--policy", "rollout", "--policy", "old_b")
    same(ran, api.compare(table, other, policies=["rollout", "old_b"]))


def test_sweep_and_its_configuration(rcdiag, tmp_path):
    path = sampled_table(tmp_path / "t.parquet")
    result = api.sweep(path, thresholds=6)
    same(rcdiag("sweep", path, "--thresholds", 6, "--json"), result)
    options = ("--thresholds", 6, "--emit", "verl-0.7.0")
    assert rcdiag("sweep", path, *options).out == api.emit(result, "verl-0.7.0")
    ran = rcdiag("sweep", path, *options, "--candidate", "seq_tis_5")
    assert ran.out == api.emit(result, "verl-0.7.0", "seq_tis_5")


def test_diagnose_by_the_table_alone(rcdiag, table):
    ran = rcdiag("diagnose", table, "--json")
    assert ran.code == 0, ran.err
    result = json.loads(api.diagnose(table).to_json())
    assert {**comparable(ran.document), "duration": 0} == {**comparable(result), "duration": 0}


def test_replay(rcdiag, table):
    same(rcdiag("replay", table, "--json"), api.replay(table))
    options = ("--step", 4, "--preset", "disabled", "--clip-high", 0.28)
    result = api.replay(table, step=4, presets="disabled", clip_high=0.28)
    same(rcdiag("replay", table, "--json", *options), result)
    ran = rcdiag("replay", table, "--json", "--loss", "sapo", "--loss-setting", "tau_pos=2")
    same(ran, api.replay(table, loss="sapo", loss_settings={"tau_pos": 2}))


def test_report(rcdiag, table, tmp_path):
    result = api.score(table)
    result.save(tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text()) == json.loads(result.to_json())
    ran = rcdiag("report", tmp_path / "r.json", "--html", tmp_path / "a.html", "--json")
    assert ran.document == json.loads(result.to_json())
    assert api.report([result], tmp_path / "b.html") == [tmp_path / "b.html"]
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_explain(rcdiag):
    assert rcdiag("explain", "k3_kl", "--json").document["entry"]["what"] == (
        api.explain("k3_kl").what
    )
    assert rcdiag("explain", "--json").document["names"] == api.explain()


@pytest.mark.parametrize("command", ["score", "compare", "diagnose", "sweep", "replay"])
def test_a_dry_run_says_the_same(rcdiag, table, command):
    output = getattr(api, command).dry_run(table)
    assert rcdiag(command, table, "--dry-run").err == f"{output}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_options_are_keywords_with_the_same_defaults(command):
    options = {
        str(item.name): item
        for item in typer.main.get_command(app).get_command(None, command).params
    }
    keywords = dict(inspect.signature(getattr(api, command)).parameters)
    keywords.pop("progress", None)
    assert set(keywords) <= set(options)
    assert set(options) - set(keywords) <= OF_THE_COMMAND
    for name, keyword in keywords.items():
        if keyword.default not in (inspect.Parameter.empty, (), None):
            assert options[name].default == keyword.default, name


def test_the_table_of_options_has_no_row_that_no_command_has():
    of_commands = {name for command in COMMANDS for name in options_of(command)}
    assert set(OPTIONS) == of_commands - {"noise_floor", "seed"}  # flags without a row


@pytest.mark.parametrize("command", COMMANDS)
def test_a_parameter_is_explained_where_it_is_defined(command):
    own = options_of(command).values()
    assert all(parameter.says for parameter, _ in own)
    flags = [flag for parameter, option in own for flag in option.flags or [parameter.name]]
    assert len(set(flags)) == len(flags)


# Parameters with a different meaning in some command, which documents it itself.
OWN_WORDS = {
    "behavior": ("sweep",),
    "target": ("score", "sweep"),
    "model": ("diagnose", "replay"),
    "policies": ("compare",),
    "noise_floor": ("compare",),
    "trainer": ("sweep", "replay", "diagnose"),
    "presets": ("replay",),
    "trainer_config": ("replay", "diagnose"),
    "output": ("convert",),
    "rows": ("diagnose", "replay"),
    "on": ("sweep",),
    "force": ("score", "compare", "convert"),
}


def test_a_parameter_has_the_same_description_in_every_command():
    shared: dict[str, set[str]] = {}
    for command in COMMANDS:
        for name, parameter in function_of(command).parameters.items():
            if command not in OWN_WORDS.get(name, ()):
                shared.setdefault(name, set()).add(parameter.says)
    assert {name: texts for name, texts in shared.items() if len(texts) > 1} == {}
    for name, commands in OWN_WORDS.items():
        own = [function_of(command).parameters[name].says for command in commands]
        assert len({*own, *shared[name]}) == len(own) + 1, name
