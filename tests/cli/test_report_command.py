"""`rcdiag report` renders a stored result without the data."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tests.builders import write_table
from tests.cli.conftest import BEHAVIOR


@pytest.fixture
def stored(rcdiag, doubtful, tmp_path):
    rcdiag("score", doubtful, "--result", tmp_path / "result.json", "-q")
    doubtful.unlink()
    return tmp_path / "result.json"


def test_a_result_without_numbers_is_rendered_unchanged(rcdiag, tmp_path):
    values = [[float("-inf"), float("nan"), -1.0], [-1.0], [-4.0, -4.5]]
    ids = [[1, 2, 3], [4], [5, 6]]
    path = write_table(
        tmp_path / "a.parquet", response_ids=ids, rollout_log_probs=BEHAVIOR, old_log_probs=values
    )
    rcdiag("score", path, "--result", tmp_path / "r.json", "-q")
    stored = json.loads((tmp_path / "r.json").read_text())
    assert rcdiag("report", tmp_path / "r.json", "--json").document == stored
    assert rcdiag("report", tmp_path / "r.json").code == 0
    assert rcdiag("report", tmp_path / "r.json", "--html", tmp_path / "r.html").code == 0


def test_a_result_may_come_through_a_pipe(rcdiag, stored, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(stored.read_text()))
    assert rcdiag("report", "-", "--json").document == json.loads(stored.read_text())


@pytest.mark.parametrize(("fail_on", "code"), [("never", 0), ("warning", 1), ("error", 0)])
def test_fail_on_works_on_stored_findings(rcdiag, tmp_path, fail_on, code):
    sample = Path(__file__).parents[2] / "sample_data" / "stale.parquet"
    stored = tmp_path / "stale.json"
    rcdiag("score", sample, "-q", "--result", stored)
    assert rcdiag("report", stored, "-q", "--fail-on", fail_on).code == code


def test_several_results_have_titles(rcdiag, doubtful, tmp_path):
    for command in ("score", "compare"):
        rcdiag(command, doubtful, "--result", tmp_path / f"{command}.json", "-q")
    out = rcdiag("report", tmp_path / "score.json", tmp_path / "compare.json").out
    titles = [line.split()[0] for line in out.splitlines() if line.endswith("---")]
    assert titles == ["score", "compare"]


def test_quiet_says_nothing(rcdiag, stored):
    ran = rcdiag("report", stored, "-q")
    assert (ran.code, ran.out, ran.err) == (0, "", "")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"format_version": 4, "kind": "score"}',
        '{"format_version": 2, "kind": "score"}',
        '{"format_version": 1, "kind": "score"}',
        '{"format_version": 1, "kind": "divination"}',
    ],
)
def test_a_file_that_is_not_a_result_is_refused(rcdiag, tmp_path, content):
    (tmp_path / "r.json").write_text(content)
    ran = rcdiag("report", tmp_path / "r.json")
    assert ran.code == 2
    assert ran.err.startswith(f"error: {tmp_path / 'r.json'}")
    assert "hint: " in ran.err


@pytest.mark.parametrize("name", ["none.json", ""])
def test_a_file_that_cannot_be_read_is_refused(rcdiag, tmp_path, name):
    ran = rcdiag("report", tmp_path / name)
    ran.refuses()


def test_bytes_that_are_not_text_are_refused(rcdiag, tmp_path):
    (tmp_path / "r.json").write_bytes(b"\xff\xfe\x00PAR1")
    assert rcdiag("report", tmp_path / "r.json").err.startswith("error: ")


def test_an_existing_page_is_refused(rcdiag, stored, tmp_path):
    (tmp_path / "r.html").write_text("mine")
    assert rcdiag("report", stored, "--html", tmp_path / "r.html").code == 2
    assert (tmp_path / "r.html").read_text() == "mine"


def test_results_of_one_dump_make_one_page(rcdiag, doubtful, tmp_path):
    for command in ("score", "compare"):
        rcdiag(command, doubtful, "--result", tmp_path / f"{command}.json", "-q")
    results = [tmp_path / "score.json", tmp_path / "compare.json"]
    ran = rcdiag("report", *results, "--html", tmp_path / "page.html", "-q")
    assert ran.code == 0
    page = (tmp_path / "page.html").read_text()
    for tab in ("diagnosis", "tokens", "corrections", "ladder", "about"):
        assert f'<section class="tab" id="{tab}"' in page


def test_results_of_two_dumps_need_against(rcdiag, stored, doubtful, tmp_path):
    other = json.loads(stored.read_text())
    other["provenance"]["fingerprint"] = "another"
    (tmp_path / "other.json").write_text(json.dumps(other))
    page = tmp_path / "page.html"
    refused = rcdiag("report", stored, tmp_path / "other.json", "--html", page)
    assert refused.code == 2
    assert "`provenance.fingerprint`" in refused.err
    assert "--against" in refused.err
    ran = rcdiag("report", stored, "--against", tmp_path / "other.json", "--html", page, "-q")
    assert ran.code == 0
    assert '<section class="tab" id="change"' in page.read_text()


def test_against_is_for_pages(rcdiag, stored):
    ran = rcdiag("report", stored, "--against", stored)
    ran.refuses("--html")
