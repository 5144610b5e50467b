"""What `rcdiag compare` writes, refuses to write, and takes together from several tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import BEHAVIOR, Ran
from tests.usecases.compare.tables import about, base_log_probs, shifted, write_policies

BASE = base_log_probs(12)
SCORED = [about("vllm", "vllm", "bfloat16"), about("vllm_again", "vllm", repeat_of="vllm")]


def three_policies(path: Path) -> Path:
    policies = {
        "rollout": BASE,
        "vllm": shifted(BASE, 0.05, 1),
        "vllm_again": shifted(BASE, 0.05, 2),
        "old": shifted(BASE, 0.3, 3),
    }
    return write_policies(path, policies, SCORED)


@pytest.fixture
def three(tmp_path) -> Path:
    return three_policies(tmp_path / "three.parquet")


@pytest.fixture(scope="module")
def written(run_once, tmp_path_factory) -> tuple[Path, Ran]:
    """The folder of one run with all its files, and what the run said; the table is gone."""
    folder = tmp_path_factory.mktemp("compare")
    table, out = three_policies(folder / "three.parquet"), folder / "out"
    files = ("--result", out / "r.json", "--html", out / "r.html")
    ran = run_once("compare", table, *files, "-v")
    assert ran.code == 0, ran.err
    table.unlink()
    return out, ran


def test_result_and_page_are_written(written):
    out, ran = written
    assert json.loads((out / "r.json").read_text())["kind"] == "compare"
    assert "vllm_again" in (out / "r.html").read_text()
    for path in (out / "r.json", out / "r.html"):
        assert f"Wrote {path}" in ran.err


@pytest.mark.slow
def test_figures_are_written(rcdiag, written, tmp_path):
    out, _ = written
    assert rcdiag("report", out / "r.json", "--plots", tmp_path / "p").code == 0
    assert {path.suffix for path in (tmp_path / "p").iterdir()} == {".png", ".svg", ".pdf", ".csv"}


@pytest.mark.parametrize("option", ["--result", "--html"])
def test_an_output_that_is_there_is_refused_and_force_overwrites_it(
    rcdiag, three, tmp_path, option
):
    (tmp_path / "there").write_text("mine")
    ran = rcdiag("compare", three, option, tmp_path / "there")
    assert ran.code == 2
    assert "--force" in ran.err
    assert (tmp_path / "there").read_text() == "mine"
    assert rcdiag("compare", three, option, tmp_path / "there", "--force").code == 0
    assert (tmp_path / "there").read_text() != "mine"


def test_a_folder_of_figures_with_something_in_it_is_refused(rcdiag, three, tmp_path):
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "mine").write_text("")
    assert rcdiag("compare", three, "--plots", tmp_path / "plots").code == 2
    assert [item.name for item in (tmp_path / "plots").iterdir()] == ["mine"]


def test_a_report_renders_the_stored_result_to_the_same_bytes(rcdiag, written, tmp_path):
    out, first = written
    again = rcdiag("report", out / "r.json", "--html", tmp_path / "2.html", "-v")
    assert again.out == first.out
    assert (tmp_path / "2.html").read_bytes() == (out / "r.html").read_bytes()
    document = rcdiag("report", out / "r.json", "--json").out
    assert document == (out / "r.json").read_text()


@pytest.mark.parametrize("names", [["vllm", "vllm_again"], ["rollout", "old"]])
def test_few_policies_make_a_page_too(rcdiag, three, tmp_path, names):
    chosen = [word for name in names for word in ("--policy", name)]
    ran = rcdiag("compare", three, *chosen, "--html", tmp_path / "r.html")
    assert ran.code == 0, ran.err
    assert all(name in ran.out for name in names)


def test_equal_policies_make_a_page_too(rcdiag, clean, tmp_path):
    ran = rcdiag("compare", clean, "--html", tmp_path / "r.html", "--plots", tmp_path / "p")
    assert ran.code == 0, ran.err
    assert "nan" not in ran.out.lower()


def test_what_is_no_number_makes_a_page_too(rcdiag, tmp_path):
    values = [[-1.0, float("nan"), -1.0], [float("-inf")], [-4.0, -4.5]]
    path = write_policies(tmp_path / "a.parquet", {"rollout": BEHAVIOR, "old": values})
    files = ("--result", tmp_path / "r.json", "--html", tmp_path / "r.html")
    ran = rcdiag("compare", path, *files)
    assert ran.code == 0, ran.err
    assert "non-finite-log-probs" in ran.out
    assert rcdiag("report", tmp_path / "r.json").out == ran.out


def test_a_dry_run_writes_nothing_and_says_what_would_run(rcdiag, three, tmp_path):
    files = ("--result", tmp_path / "r.json", "--html", tmp_path / "h")
    ran = rcdiag("compare", three, "--dry-run", *files)
    assert ran.code == 0
    assert ran.out == ""
    assert "12 sequences" in ran.err
    assert "rollout, vllm, vllm_again, old" in ran.err
    assert [item.name for item in tmp_path.iterdir()] == ["three.parquet"]


def test_quiet_says_nothing(rcdiag, three):
    ran = rcdiag("compare", three, "-q")
    assert (ran.code, ran.out, ran.err) == (0, "", "")


@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_o_is_the_result_file(rcdiag, three, tmp_path, command):
    options = ("--target", "old", "--thresholds", "4") if command == "sweep" else ()
    ran = rcdiag(command, three, "-o", tmp_path / "o.json", *options)
    assert ran.code == 0, ran.err
    assert json.loads((tmp_path / "o.json").read_text())["kind"] == command
