"""`--config FILE.toml`: defaults of options; flags win."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Rcdiag


def with_config(rcdiag: Rcdiag, tmp_path, text: str, *arguments):
    (tmp_path / "rcdiag.toml").write_text(text)
    return rcdiag("--config", tmp_path / "rcdiag.toml", *arguments)


def test_options_are_taken_from_the_file(rcdiag, doubtful, tmp_path):
    text = '[score]\nseed = 5\nfail-on = "warning"\njson = true\n'
    ran = with_config(rcdiag, tmp_path, text, "score", doubtful)
    assert ran.code == 1
    assert ran.document["provenance"]["seed"] == 5


def test_config_may_follow_the_command(rcdiag, doubtful, tmp_path):
    (tmp_path / "rcdiag.toml").write_text("[score]\nseed = 5\n[sweep]\nseed = 7\nthresholds = 4\n")
    for command, seed in {"score": 5, "sweep": 7}.items():
        ran = rcdiag(command, doubtful, "--json", "--config", tmp_path / "rcdiag.toml")
        assert ran.document["provenance"]["seed"] == seed
    ran = rcdiag("score", "--config", tmp_path / "rcdiag.toml", doubtful, "--seed", 6, "--json")
    assert ran.document["provenance"]["seed"] == 6


def test_a_mistake_in_a_config_after_the_command_is_refused(rcdiag, doubtful, tmp_path):
    (tmp_path / "rcdiag.toml").write_text("[score]\nsede = 5\n")
    ran = rcdiag("score", doubtful, "--config", tmp_path / "rcdiag.toml")
    ran.refuses("did you mean seed?")


def test_flags_win(rcdiag, doubtful, tmp_path):
    text = '[score]\nseed = 5\nfail-on = "warning"\n'
    arguments = ("score", doubtful, "--seed", 6, "--fail-on", "never", "--json")
    ran = with_config(rcdiag, tmp_path, text, *arguments)
    assert ran.code == 0
    assert ran.document["provenance"]["seed"] == 6


@pytest.mark.parametrize("name", ["set", "settings", "setting"])
def test_an_option_has_the_name_of_its_flag_and_that_of_python(rcdiag, doubtful, tmp_path, name):
    text = (
        f'[score]\n{name} = ["no_preset.rollout_is_threshold=3"]\n[replay]\nlr = 1\nfrom = "verl"\n'
    )
    ran = with_config(rcdiag, tmp_path, text, "score", doubtful)
    ran.refuses("no_preset")


def test_a_negative_flag_has_the_same_meaning_in_the_file(rcdiag, tmp_path):
    words = ("report", "none.json")
    ran = with_config(rcdiag, tmp_path, "[report]\nno-host = true\n", *words)
    assert ran.err.startswith("error: --no-host is for pages")
    ran = with_config(rcdiag, tmp_path, "[report]\nhost = true\n", *words)
    assert "no such file" in ran.err


def test_repeatable_options_are_lists(rcdiag, tmp_path, doubtful):
    text = '[score]\ncolumn = ["old_log_probs=nothing"]\n'
    ran = with_config(rcdiag, tmp_path, text, "score", doubtful)
    ran.refuses("`nothing`")


def test_options_may_be_named_like_their_flags(rcdiag, doubtful, tmp_path):
    text = f'[score]\nbehavior = "old"\ntarget = "rollout"\nresult = "{tmp_path / "r.json"}"\n'
    assert with_config(rcdiag, tmp_path, text, "score", doubtful, "-q").code == 0
    assert (tmp_path / "r.json").exists()


def test_the_file_may_be_named_by_the_environment(rcdiag, doubtful, tmp_path, monkeypatch):
    (tmp_path / "rcdiag.toml").write_text("[score]\njson = true\n")
    monkeypatch.setenv("RCDIAG_CONFIG", str(tmp_path / "rcdiag.toml"))
    assert rcdiag("score", doubtful).document["kind"] == "score"


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("[scroe]\nseed = 1\n", "scroe"),
        ("[score\n", "TOML"),
        ("score = 1\n", "score"),
        ("seed = 1\n", "seed"),
        ("[score]\nsede = 1\n", "sede"),
        ('[score]\nseed = "many"\n', "seed"),
        ('[score]\nfail-on = "sometimes"\n', "fail-on"),
    ],
)
def test_mistakes_in_the_file_are_refused_by_name(rcdiag, doubtful, tmp_path, text, output):
    ran = with_config(rcdiag, tmp_path, text, "score", doubtful)
    assert ran.code == 2
    assert output in ran.err
    assert "Traceback" not in ran.err


WRONG = {
    "plots": ["true", "[1]", "{a = 1}", "2001-01-01"],
    "result": ["[]", "false", "[[]]", "12:30:00"],
    "width": ["[1]", "true", '"wide"'],
    "seed": ["[1, 2]", "true", "1.5", "nan"],
    "force": ["16", '"yes"', "[true]"],
    "json": ["[1]", "1", "{}"],
    "preset": ["3", '"disabled"', "[[1]]", "[true]", "{a = 1}"],
    "sequence": ["1", '["many"]'],
    "fail-on": ["3", "[]", "true"],
    "model": ["[]", "true"],
}


@pytest.mark.parametrize(("option", "value"), [(o, v) for o, some in WRONG.items() for v in some])
@pytest.mark.parametrize("before", [True, False])
def test_a_value_of_another_type_is_refused_by_name(
    rcdiag, doubtful, tmp_path, option, value, before
):
    file = tmp_path / "rcdiag.toml"
    file.write_text(f"[score]\n{option} = {value}\n")
    config = ("--config", file)
    words = (*config, "score", doubtful) if before else ("score", doubtful, *config)
    ran = rcdiag(*words)
    assert ran.code == 2
    assert option in ran.err
    assert "Traceback" not in ran.err
    assert {path.name for path in tmp_path.iterdir()} == {"rcdiag.toml", "doubtful.parquet"}


def test_a_number_in_the_file_is_read_like_a_command_line_word(
    rcdiag, doubtful, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    text = "[score]\nresult = 3\nseed = 5\nsequence = [0]\nquiet = true\n"
    assert with_config(rcdiag, tmp_path, text, "score", doubtful).code == 0
    assert (tmp_path / "3").exists()


def test_a_missing_file_is_refused(rcdiag, doubtful, tmp_path):
    ran = rcdiag("--config", tmp_path / "none.toml", "score", doubtful)
    ran.refuses()


def test_a_binary_file_is_refused(rcdiag, doubtful, tmp_path):
    (tmp_path / "rcdiag.toml").write_bytes(b"\xff\xfe\x00")
    ran = rcdiag("--config", tmp_path / "rcdiag.toml", "score", doubtful)
    ran.refuses()
