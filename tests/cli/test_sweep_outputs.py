"""What `rcdiag sweep` writes, and refuses to write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Ran, dump_with_shift
from tests.cli.sweep_tables import FEW, sampled_table

SLOW = pytest.mark.slow  # pages and figures of a sweep take seconds


@pytest.fixture
def table(tmp_path) -> Path:
    return sampled_table(tmp_path / "table.parquet")


@pytest.fixture(scope="module")
def written(run_once, tmp_path_factory) -> tuple[Path, Ran]:
    """The folder of one run with all its files, and what the run said; the table is gone."""
    folder = tmp_path_factory.mktemp("sweep")
    table, out = sampled_table(folder / "table.parquet"), folder / "out"
    files = ("--result", out / "r.json", "--html", out / "r.html")
    ran = run_once("sweep", table, *FEW, *files, "-v")
    assert ran.code == 0, ran.err
    table.unlink()
    return out, ran


def test_result_and_page_are_written(written):
    out, ran = written
    assert json.loads((out / "r.json").read_text())["kind"] == "sweep"
    assert '<option value="token_tis"' in (out / "r.html").read_text()
    for path in (out / "r.json", out / "r.html"):
        assert f"Wrote {path}" in ran.err


@SLOW
def test_figures_are_written(rcdiag, written, tmp_path):
    out, _ = written
    assert rcdiag("report", out / "r.json", "--plots", tmp_path / "p").code == 0
    assert {path.suffix for path in (tmp_path / "p").iterdir()} == {".png", ".svg", ".pdf", ".csv"}


def test_the_document_on_stdout_is_the_one_in_the_file(rcdiag, table, tmp_path):
    ran = rcdiag("sweep", table, *FEW, "--json", "--result", tmp_path / "r.json")
    assert ran.out == (tmp_path / "r.json").read_text()


def test_a_report_renders_the_stored_result_to_the_same_bytes(rcdiag, written, tmp_path):
    out, first = written
    again = rcdiag("report", out / "r.json", "--html", tmp_path / "2.html", "-v")
    assert again.out == first.out
    assert (tmp_path / "2.html").read_bytes() == (out / "r.html").read_bytes()
    document = rcdiag("report", out / "r.json", "--json").out
    assert document == (out / "r.json").read_text()


@pytest.mark.parametrize(
    "shift", [pytest.param(0.0, marks=SLOW), pytest.param(4.0, marks=SLOW), float("nan")]
)
def test_any_table_makes_a_page(rcdiag, tmp_path, shift):
    table = dump_with_shift(tmp_path / "a.parquet", shift)
    ran = rcdiag("sweep", table, *FEW, "--html", tmp_path / "r.html")
    assert ran.code == 0, ran.err
    assert ">nan" not in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize("option", ["--result", "--html"])
def test_an_output_that_is_there_is_refused(rcdiag, table, tmp_path, option):
    (tmp_path / "there").write_text("mine")
    ran = rcdiag("sweep", table, *FEW, option, tmp_path / "there")
    assert ran.code == 2
    assert "--force" in ran.err
    assert (tmp_path / "there").read_text() == "mine"


def test_force_overwrites(rcdiag, table, tmp_path):
    (tmp_path / "there").write_text("mine")
    assert rcdiag("sweep", table, *FEW, "--result", tmp_path / "there", "--force").code == 0
    assert json.loads((tmp_path / "there").read_text())["kind"] == "sweep"


def test_a_dry_run_writes_nothing_and_says_what_would_run(rcdiag, table, tmp_path):
    files = ("--result", tmp_path / "r.json", "--html", tmp_path / "h", "--emit", "verl")
    ran = rcdiag("sweep", table, "--dry-run", *files)
    assert (ran.code, ran.out) == (0, "")
    assert "80 sequences; would sweep rollout -> old" in ran.err
    assert [item.name for item in tmp_path.iterdir()] == ["table.parquet"]


def test_quiet_says_nothing(rcdiag, table):
    ran = rcdiag("sweep", table, *FEW, "-q")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
