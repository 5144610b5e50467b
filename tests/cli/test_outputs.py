"""Outputs of commands: files, streams, and refusals to overwrite."""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.terminal.console import TerminalConsole
from cli.terminal.screen import Screen
from tests.builders import write_table
from tests.cli.conftest import Ran
from tests.cli.sweep_tables import FEW, sampled_table

# The measuring commands, with options that make them fast.
COMMANDS = {"score": (), "compare": (), "sweep": FEW, "replay": ()}
every_command = pytest.mark.parametrize("command", COMMANDS)


@pytest.fixture
def table(tmp_path) -> Path:
    return sampled_table(tmp_path / "table.parquet")


@dataclass(frozen=True)
class Written:
    """The folder with a command's result `r.json` and page `r.html`; the table is gone."""

    command: str
    out: Path
    ran: Ran


@pytest.fixture(scope="module", params=COMMANDS)
def written(request, run_once, tmp_path_factory) -> Written:
    folder = tmp_path_factory.mktemp(request.param)
    table, out = sampled_table(folder / "table.parquet"), folder / "out"
    files = ("--result", out / "r.json", "--html", out / "r.html", "-v")
    ran = run_once(request.param, table, *COMMANDS[request.param], *files)
    assert ran.code == 0, ran.err
    table.unlink()
    return Written(request.param, out, ran)


def test_result_and_page_are_written(written):
    result, page = written.out / "r.json", written.out / "r.html"
    assert json.loads(result.read_text())["kind"] == written.command
    for path in (result, page):
        assert f"Wrote {path}" in written.ran.err
    text = page.read_text()
    assert f"rcdiag {written.command}" in text
    assert not re.search(r"""(src|href)=["']http|@import|url\(http""", text)  # needs no network


def test_a_report_renders_the_stored_result_to_the_same_bytes(rcdiag, written, tmp_path):
    again = rcdiag("report", written.out / "r.json", "--html", tmp_path / "2.html", "-v")
    assert again.out == written.ran.out
    assert (tmp_path / "2.html").read_bytes() == (written.out / "r.html").read_bytes()
    document = rcdiag("report", written.out / "r.json", "--json").out
    assert document == (written.out / "r.json").read_text()


@pytest.mark.slow
def test_figures_are_written(rcdiag, written, tmp_path):
    assert rcdiag("report", written.out / "r.json", "--plots", tmp_path / "p").code == 0
    suffixes: dict[str, set[str]] = {}
    for path in (tmp_path / "p").iterdir():
        suffixes.setdefault(path.stem, set()).add(path.suffix)
    assert suffixes
    assert all(kinds - {".csv"} == {".png", ".svg", ".pdf"} for kinds in suffixes.values())


@every_command
def test_the_document_on_stdout_is_the_one_in_the_file(rcdiag, table, tmp_path, command):
    result = tmp_path / "r.json"
    ran = rcdiag(command, table, *COMMANDS[command], "-v", "--json", "--result", result)
    assert ran.document["kind"] == command
    assert ran.out == result.read_text()
    assert f"Wrote {result}" in ran.err


@every_command
def test_quiet_says_nothing(rcdiag, table, tmp_path, command):
    """The result goes to `-o`, which all commands but score (a table) have."""
    result = tmp_path / "r.json"
    option = "--result" if command == "score" else "-o"
    ran = rcdiag(command, table, *COMMANDS[command], "-q", option, result)
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert json.loads(result.read_text())["kind"] == command


def test_quiet_prints_a_requested_document(rcdiag, doubtful):
    ran = rcdiag("score", doubtful, "-q", "--json")
    assert ran.document["kind"] == "score"
    assert ran.err == ""


@pytest.mark.parametrize("option", ["--result", "--html", "-o", "--plots"])
@every_command
def test_an_existing_output_is_refused_and_left_unchanged(rcdiag, table, tmp_path, command, option):
    there = tmp_path / "there"
    mine = there / "mine" if option == "--plots" else there
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    ran = rcdiag(command, table, option, there)
    ran.refuses(str(there), "--force")
    assert mine.read_text() == "mine"
    assert option != "--plots" or list(there.iterdir()) == [mine]


@every_command
def test_a_result_is_not_written_under_the_name_of_a_table(rcdiag, table, tmp_path, command):
    path = tmp_path / "scored.parquet"
    ran = rcdiag(command, table, *COMMANDS[command], "--result", path)
    assert ran.code == 2
    assert ran.err.startswith(f"error: {path}: the result is a JSON document, not a table\nhint: ")
    assert "scored.json" in ran.err
    assert not path.exists()


@every_command
def test_force_overwrites(rcdiag, table, tmp_path, command):
    (tmp_path / "there").write_text("mine")
    options = (*COMMANDS[command], "--result", tmp_path / "there", "--force")
    assert rcdiag(command, table, *options).code == 0
    assert json.loads((tmp_path / "there").read_text())["kind"] == command


@pytest.mark.parametrize(
    ("command", "options", "says"),
    [
        ("score", (), ("80 sequences", "rollout, old")),
        ("compare", (), ("80 sequences", "rollout, old")),
        ("sweep", ("--emit", "verl"), ("80 sequences; would sweep rollout -> old",)),
        ("replay", (), ("would replay 19 presets",)),
    ],
)
def test_a_dry_run_writes_nothing_and_says_what_would_run(
    rcdiag, table, tmp_path, command, options, says
):
    files = ("--result", tmp_path / "r.json", "--html", tmp_path / "h")
    ran = rcdiag(command, table, "--dry-run", *options, *files)
    assert (ran.code, ran.out) == (0, "")
    assert all(words in ran.err for words in says)
    assert [item.name for item in tmp_path.iterdir()] == ["table.parquet"]


def test_quiet_still_says_errors(rcdiag):
    assert rcdiag("score", "none.parquet", "-q").err.startswith("error: ")


def test_missing_folders_of_outputs_are_made(rcdiag, doubtful, tmp_path):
    assert rcdiag("score", doubtful, "--result", tmp_path / "new" / "r.json").code == 0
    assert (tmp_path / "new" / "r.json").exists()


def test_every_command_draws_the_requested_figures(rcdiag, doubtful, tmp_path):
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
    ran.refuses("cannot be written")


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


def test_an_output_table_without_a_policy_to_score_is_refused(rcdiag, doubtful, tmp_path):
    """`-o` is the parquet that `score` writes; without a policy to score nothing is written."""
    output = tmp_path / "out.parquet"
    ran = rcdiag("score", doubtful, "-o", output)
    assert output.exists() or str(output) in ran.err or "-o" in ran.err


def test_a_dry_run_reports_the_errors_of_the_run(rcdiag, doubtful):
    assert rcdiag("score", doubtful, "--dry-run", "--target", "current").code == 2
    assert rcdiag("score", doubtful, "--dry-run", "--policy", "new=hf", "--model", "none").code == 2


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


def test_where_the_cause_is_open_the_next_step_is_said(rcdiag, doubtful, tmp_path):
    ran = rcdiag("score", doubtful, "-v", "--result", tmp_path / "r.json")
    diagnosis = json.loads((tmp_path / "r.json").read_text())["diagnosis"]
    assert [cause["slug"] for cause in diagnosis["causes"]] == ["forwards-differ"]
    assert diagnosis["next"][0]["text"] in " ".join(ran.out.split())
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
