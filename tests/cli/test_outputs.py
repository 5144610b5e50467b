"""What commands write: files, streams, and what they refuse to overwrite."""

from __future__ import annotations

import io
import json

import pytest

from cli.terminal.console import TerminalConsole
from cli.terminal.screen import Screen
from tests.builders import write_table


def test_result_is_the_document_that_json_prints(rcdiag, doubtful, tmp_path):
    ran = rcdiag("score", doubtful, "--result", tmp_path / "r.json", "--json")
    assert json.loads((tmp_path / "r.json").read_text()) == ran.document
    assert f"Wrote {tmp_path / 'r.json'}" in ran.err


def test_quiet_says_nothing_but_the_document(rcdiag, doubtful, tmp_path):
    ran = rcdiag("score", doubtful, "-q", "--result", tmp_path / "r.json")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    ran = rcdiag("score", doubtful, "-q", "--json")
    assert ran.document["kind"] == "score"
    assert ran.err == ""


def test_quiet_still_says_errors(rcdiag):
    assert rcdiag("score", "none.parquet", "-q").err.startswith("error: ")


@pytest.mark.parametrize("option", ["--result", "--html", "-o"])
def test_an_output_that_is_already_there_is_refused_and_left_alone(
    rcdiag, doubtful, tmp_path, option
):
    (tmp_path / "there").write_text("mine")
    ran = rcdiag("score", doubtful, option, tmp_path / "there")
    assert ran.code == 2
    assert str(tmp_path / "there") in ran.err
    assert "--force" in ran.err
    assert (tmp_path / "there").read_text() == "mine"


def test_force_overwrites(rcdiag, doubtful, tmp_path):
    (tmp_path / "r.json").write_text("mine")
    assert rcdiag("score", doubtful, "--result", tmp_path / "r.json", "--force").code == 0
    assert json.loads((tmp_path / "r.json").read_text())["kind"] == "score"


def test_missing_folders_of_outputs_are_made(rcdiag, doubtful, tmp_path):
    assert rcdiag("score", doubtful, "--result", tmp_path / "new" / "r.json").code == 0
    assert (tmp_path / "new" / "r.json").exists()


def test_every_command_draws_the_figures_that_are_asked_for(rcdiag, doubtful, tmp_path):
    plots = tmp_path / "plots"
    ran = rcdiag("score", doubtful, "--plots", plots, "--figure", "concentration", "--width", "3.3")
    assert ran.code == 0
    assert {path.stem for path in plots.iterdir()} == {"concentration"}
    assert 'width="237.6pt"' in (plots / "concentration.svg").read_text()


@pytest.mark.parametrize("command", ["score", "compare", "sweep", "replay"])
def test_a_choice_of_figures_is_refused_before_the_work(rcdiag, doubtful, tmp_path, command):
    ran = rcdiag(command, doubtful, "--width", "3.3")
    assert (ran.code, "give --plots DIR" in ran.err) == (2, True)
    result = tmp_path / "r.json"
    ran = rcdiag(
        *(command, doubtful, "--result", result),
        *("--plots", tmp_path / "plots", "--figure", "concentrasion"),
    )
    assert (ran.code, "did you mean concentration?" in ran.err) == (2, True)
    assert not result.exists()


@pytest.mark.parametrize("option", ["--result", "--html", "--plots"])
@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_an_output_that_cannot_be_written_is_refused_before_any_work(
    rcdiag, doubtful, tmp_path, option, dry
):
    (tmp_path / "file").write_text("")
    ran = rcdiag("score", doubtful, option, tmp_path / "file" / "output", *dry)
    assert ran.code == 2
    assert ran.err.startswith("error: ")
    assert "cannot be written" in ran.err
    assert ran.out == ""


def test_nothing_is_written_when_the_data_is_bad(rcdiag, tmp_path):
    path = write_table(
        tmp_path / "a.parquet",
        response_ids=[[1, 2]],
        rollout_log_probs=[[-1.0]],
        old_log_probs=[[-1.0, -2.0]],
    )
    ran = rcdiag("score", path, "--result", tmp_path / "r.json", "--json")
    assert ran.code == 2
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.parquet"]


def test_an_output_table_that_nothing_would_be_written_to_is_never_passed_over_in_silence(
    rcdiag, doubtful, tmp_path
):
    """`-o` is the parquet that `score` writes; without a policy to score there is none."""
    output = tmp_path / "out.parquet"
    ran = rcdiag("score", doubtful, "-o", output)
    assert output.exists() or str(output) in ran.err or "-o" in ran.err


def test_a_dry_run_writes_nothing_and_says_what_would_run(rcdiag, doubtful, tmp_path):
    ran = rcdiag("score", doubtful, "--dry-run", "--result", tmp_path / "r.json")
    assert ran.code == 0
    assert ran.out == ""
    assert "3 sequences" in ran.err
    assert "rollout, old" in ran.err
    assert not (tmp_path / "r.json").exists()


def test_a_dry_run_finds_what_the_run_would_stumble_over(rcdiag, doubtful):
    assert rcdiag("score", doubtful, "--dry-run", "--target", "current").code == 2
    assert rcdiag("score", doubtful, "--dry-run", "--policy", "new=hf", "--model", "none").code == 2


def test_the_report_page_is_written_and_needs_no_network(rcdiag, doubtful, tmp_path):
    assert rcdiag("score", doubtful, "--html", tmp_path / "r.html", "-q").code == 0
    page = (tmp_path / "r.html").read_text()
    assert "k3_kl" in page
    for loaded in ('src="http', "src='http", 'href="http', "@import", "url(http"):
        assert loaded not in page


def test_a_failed_scoring_without_an_output_leaves_no_scratch_folder(
    rcdiag, doubtful, tmp_path, monkeypatch
):
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    assert rcdiag("score", doubtful, "--policy", "new=hf:float32,model=none").code == 2
    assert list((tmp_path / "scratch").iterdir()) == []


def test_the_last_lines_are_verdict_cause_and_the_next_command(rcdiag, tmp_path):
    ran = rcdiag("score", "sample_data/stale.parquet", "-v", "--result", tmp_path / "r.json")
    diagnosis = json.loads((tmp_path / "r.json").read_text())["diagnosis"]
    verdict, *following = [line for line in ran.out.splitlines() if line.strip()][-3:]
    assert verdict.startswith(f"{diagnosis['verdict']:<14}{diagnosis['causes'][0]['slug']}")
    assert following[0].startswith("next          rcdiag diagnose ")


def test_without_a_cause_the_next_step_is_last(rcdiag, doubtful, tmp_path):
    ran = rcdiag("score", doubtful, "-v", "--result", tmp_path / "r.json")
    diagnosis = json.loads((tmp_path / "r.json").read_text())["diagnosis"]
    assert diagnosis["causes"] == []
    assert diagnosis["next"][0]["text"] in " ".join(ran.out.split("next  ")[-1].split())
    assert ran.out.rindex(diagnosis["verdict"]) < ran.out.rindex("next  ")


def test_a_written_file_is_a_link_in_a_terminal(tmp_path):
    screen = Screen(quiet=False, verbose=False, json=False)
    stream = io.StringIO()
    path = tmp_path / "page.html"
    screen.err = TerminalConsole(file=stream, force_terminal=True, color_system="truecolor")
    screen.wrote(path)
    assert f";{path.as_uri()}\x1b\\{path}" in stream.getvalue()
    plain = io.StringIO()
    screen.err = TerminalConsole(file=plain)
    screen.wrote(path)
    assert plain.getvalue() == f"Wrote {path}\n"
