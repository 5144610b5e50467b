"""The shipped index of names matches the definitions, and a name imports only its own kind."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rcdiag import explain
from rcdiag.errors import RcdiagError
from rcdiag.glossary.index import FILE


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_shipped_index_matches_the_definitions(tmp_path):
    run(
        "from pathlib import Path; from rcdiag.glossary.index import write_index\n"
        f"write_index(Path({str(tmp_path / 'index.json')!r}))"
    )
    assert FILE.read_text() == (tmp_path / "index.json").read_text(), "run `make schema`"


def test_a_metric_is_explained_without_trainers_and_pages():
    code = (
        "import sys, rcdiag; rcdiag.explain('k3_kl')\n"
        "others = ('rcdiag.trainers', 'rcdiag.pages', 'rcdiag.usecases', 'rcdiag.engines')\n"
        "print([name for name in others if name in sys.modules])"
    )
    assert run(code) == "[]\n"


def test_a_definition_of_a_plugin_is_found_and_not_written_into_the_index():
    code = """
from msgspec.structs import replace
from rcdiag import explain
from rcdiag.errors import RcdiagError
from rcdiag.glossary.index import write_index
from rcdiag.statistics.metrics import METRICS
assert explain("weight_distance").kind == "field of a result"
METRICS.add(replace(METRICS["k3_kl"], name="weight_distance"))
assert explain("weight_distance").kind == "metric"
try:
    write_index()
except RcdiagError as error:
    print(error.message)
"""
    assert "a plugin has added definitions" in run(code)


def test_a_definition_that_the_index_lacks_is_refused_with_the_command_that_adds_it(monkeypatch):
    monkeypatch.setattr("rcdiag.glossary.lookup.listed", dict)
    with pytest.raises(RcdiagError, match="the index of names does not list it") as refused:
        explain("hf")
    assert "make schema" in refused.value.hint
