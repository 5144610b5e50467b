"""`--rows N` draws rows of the table; screen, page and document say how many."""

from __future__ import annotations

import pytest

from tests.table.test_draw import write_files

OTHERS = ("compare", "sweep")
SENTENCE = "a first look: 40 of 400 rows, drawn by prompt group with seed 0"


@pytest.mark.parametrize(
    "command", ["score", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_screen_page_and_document_say_how_many_rows_were_drawn(rcdiag, tmp_path, command):
    source, page = write_files(tmp_path), tmp_path / "page.html"
    options = {"score": ("--preset", "disabled"), "sweep": ("--thresholds", 2)}.get(command, ())
    ran = rcdiag(command, source, "--rows", 40, *options, "--html", page)
    assert ran.code == 0, ran.err
    assert SENTENCE in ran.out.splitlines()
    assert SENTENCE in page.read_text()
    assert SENTENCE not in rcdiag(command, source, *options).out


def test_zero_rows_are_refused(rcdiag, tmp_path):
    ran = rcdiag("score", write_files(tmp_path), "--rows", 0)
    ran.refuses("--rows")
