"""Unusual names, fields and settings are read, or refused by name."""

from __future__ import annotations

import json

import pytest

LONG = "n" * 300
COMMANDS = {
    "dump": ["score", LONG],
    "dump of a convert": ["convert", LONG, "-o", "OUT"],
    "glob": ["score", f"{LONG}/*.parquet"],
    "in a folder": ["score", f"{LONG}/a.parquet"],
    "second dump": ["compare", "TABLE", LONG],
    "result": ["score", "TABLE", "--result", LONG],
    "plots": ["score", "TABLE", "--plots", f"{LONG}/x"],
    "table": ["convert", "TABLE", "-o", LONG],
    "barely": ["score", "TABLE", "--result", "n" * 255],
    "policy": ["score", "TABLE", "--model", "m", "--policy", f"{LONG}=hf:float32", "-o", "OUT"],
    "model": ["score", "TABLE", "--model", LONG, "--policy", "p=hf:float32"],
    "log": ["score", "TABLE", "--logged", LONG],
    "configuration": ["score", "TABLE", "--trainer-config", LONG],
    "report": ["report", LONG],
    "config": ["score", "TABLE", "--config", LONG],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_name_that_is_too_long_is_refused(rcdiag, doubtful, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    values = {"TABLE": str(doubtful), "OUT": "out.parquet"}
    ran = rcdiag(*[values.get(word, word) for word in COMMANDS[name]])
    ran.refuses("nnnn")
    assert [path.name for path in tmp_path.iterdir()] == ["doubtful.parquet"]


def test_a_field_of_a_log_may_be_very_long(rcdiag, clean, tmp_path):
    """A column of prompts in an export of W&B; Python's own limit is 131,072 letters."""
    log = tmp_path / "log.csv"
    log.write_text(f'step,prompt,rollout_corr/kl\n0,"{"x" * 200_000}",0.0\n')
    ran = rcdiag("score", clean, "--logged", log, "--json")
    assert ran.code in (0, 1), ran.err
    log.write_text("step,kl\n0,1,2\n")
    err = " ".join(rcdiag("score", clean, "--logged", log).err.split())
    assert "log.csv: 1 of 1 line cannot be read: line 2 (3 values" in err


ODD = ["2001-01-01", "2001-01-01 10:00:00", "[1]", "{a: 1}", "!!set {a}", "!!binary YQ=="]
KEYS = [
    "use_decoupled_loss",
    "recompute_logprob",
    "behave_imp_weight_cap",
    "behave_imp_weight_mode",
]
KEYS += ["rejection_sampling", "m2_threshold", "prox_logp_method", "kl_ctl"]


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("key", KEYS)
def test_an_odd_value_of_a_setting_is_read_as_text_or_refused(
    rcdiag, doubtful, tmp_path, key, value
):
    config = tmp_path / "config.yaml"
    config.write_text(f"actor:\n  eps_clip: 0.2\n  {key}: {value}\n")
    ran = rcdiag("score", doubtful, "--trainer", "areal", "--trainer-config", config, "--json")
    assert "Traceback" not in ran.err
    assert ran.code in (0, 1, 2)
    if ran.code != 2:
        json.loads(ran.out)
