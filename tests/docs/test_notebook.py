"""The notebook of examples/ runs from its first cell to its last."""

from __future__ import annotations

import json

from tools.docs.commands import ROOT
from tools.docs.notebook import run_notebook

PATH = ROOT / "examples" / "from_dump_to_decision.ipynb"


def test_the_notebook_runs_and_draws_two_plots(monkeypatch):
    monkeypatch.chdir(ROOT)
    notebook = json.loads(PATH.read_text())
    shown, figures = run_notebook(notebook)
    assert figures == 2
    stored = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [[item["output_type"] for item in cell] for cell in stored] == [
        [item["output_type"] for item in cell] for cell in shown
    ], "python -m tools.docs.notebook examples/*.ipynb"
    # Stored outputs equal today's: the text refers to their numbers.
    texts = [[item["data"].get("text/plain") for item in cell] for cell in shown]
    assert texts == [[item["data"].get("text/plain") for item in cell] for cell in stored]
    words = "".join("".join(cell["source"]) for cell in notebook["cells"])
    assert "do not tell which correction is best" in words
    assert "cannot tell them apart" in "".join(texts[-1][0])


def test_the_stored_notebook_is_small():
    assert PATH.stat().st_size < 300_000
    assert str(ROOT) not in PATH.read_text()
