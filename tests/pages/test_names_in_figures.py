"""Engine names may be any text: figures draw them literally, CSV cells hold no formulas."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from xml.etree import ElementTree

import pytest

import rcdiag
from rcdiag.pages.plot import plot
from rcdiag.table.opening import open_table
from rcdiag.usecases.score import score
from tests.builders import ids_like, write_table

CONTROL = "".join(map(chr, range(1, 32))) + "\x7f\x9b\ufffe\u202e"
FORMULAS = ["=1+1", "+1", "-1+2", "@SUM(A1)", " =2"]
ABSENT = "\N{CJK UNIFIED IDEOGRAPH-6A21}"  # from the font
NAMES = [f"\x1b[31mred\x07{CONTROL}", r"$\frac{x$", "$", *FORMULAS, "<b>&", "plain", ABSENT]
LOG_PROBS = [[-0.1 * row, -0.5 - row] for row in range(1, 1 + 2 * len(NAMES))]


@pytest.fixture
def result(tmp_path):
    path = write_table(
        tmp_path / "a.parquet",
        response_ids=ids_like(LOG_PROBS),
        rollout_log_probs=LOG_PROBS,
        old_log_probs=[[value - 0.1 for value in row] for row in LOG_PROBS],
        engine=NAMES * 2,
    )
    return score(open_table(path))


def cells(path: Path) -> list[str]:
    with path.open(newline="") as stream:
        return [cell for row in csv.reader(stream) for cell in row]


def test_figures_and_their_numbers_are_whole(result, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rcdiag.report(result, plots=tmp_path / "plots", figures=["mismatch-by-engine"])
    svg = ElementTree.parse(tmp_path / "plots" / "mismatch-by-engine.svg")
    shown = "".join(svg.getroot().itertext())
    for name in (r"$\frac{x$", "plain", "<b>&", "[31mred"):
        assert name in shown
    written = cells(tmp_path / "plots" / "mismatch-by-engine.csv")
    assert set(FORMULAS).isdisjoint(written)
    assert {f"'{name}" for name in FORMULAS} <= set(written)
    assert "plain" in written
    for file in (tmp_path / "plots").iterdir():
        if file.suffix in (".svg", ".csv"):
            text = file.read_text()
            assert not {c for c in text if ord(c) < 32} - set("\t\n")
            assert not set("\x7f\x9b\ufffe\u202e") & set(text)


def test_a_figure_in_a_notebook_shows_a_dollar(result):
    labels = plot(result, "mismatch-by-engine").axes[1].get_xticklabels()
    assert r"\$\frac{x\$" in [label.get_text() for label in labels]


def test_the_csv_of_a_command_holds_no_formula(tmp_path):
    import polars as pl

    from rcdiag.results.frames import csv_of

    frame = pl.DataFrame({"name": [*NAMES, None], "value": [-1.0] * len(NAMES) + [None]})
    (tmp_path / "a.csv").write_text(csv_of(frame))
    written = cells(tmp_path / "a.csv")
    assert set(FORMULAS).isdisjoint(written)
    assert written.count("-1.0") == len(NAMES)  # numbers stay numbers
    assert "\x1b" not in "".join(written)
