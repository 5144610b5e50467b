"""`rcdiag sweep` on the terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rcdiag.usecases.sweep.estimator_families import FAMILIES
from tests.cli.conftest import dump_with_shift
from tests.cli.sweep_tables import FEW, sampled_table

SAMPLES = Path(__file__).parents[2] / "sample_data"


@pytest.fixture(scope="module")
def swept(run_once, tmp_path_factory) -> Callable[[str], Path]:
    """`swept(name)`: the result of a table's sweep, made once; `rcdiag report` shows it."""
    folder = tmp_path_factory.mktemp("swept")
    path = folder / "table.parquet"
    tables: dict[str, Callable[[], Path]] = {
        "sampled": lambda: sampled_table(path),
        "equal": lambda: dump_with_shift(path, 0.0),
        "far": lambda: dump_with_shift(path, 1.0),
        # Efficiencies so near 1 that their distance from 1 is shown, and many refused candidates.
        "rollouts": lambda: SAMPLES / "rollouts.parquet",
        "temperature": lambda: SAMPLES / "temperature.parquet",
        "stale": lambda: SAMPLES / "stale.parquet",
    }

    @cache
    def sweep(name: str) -> Path:
        result = folder / f"{name}.json"
        ran = run_once("sweep", tables[name](), *FEW, "-q", "--result", result)
        assert ran.code == 0, ran.err
        return result

    return sweep


def document_of(result: Path) -> dict[str, Any]:
    return json.loads(result.read_text())


CHOICES = {
    "no-correction": "none: train without a correction",
    "cannot-distinguish": "no choice: candidates cannot be distinguished",
    "fix-the-cause": "none until the cause is fixed",
}


@pytest.mark.parametrize("name", ["sampled", "rollouts", "stale", "temperature"])
def test_the_screen_has_the_choice_its_reason_and_the_emit_command(
    rcdiag, swept, monkeypatch, name
):
    monkeypatch.setenv("COLUMNS", "80")
    result = swept(name)
    out = rcdiag("report", result).out
    assert len(out.splitlines()) <= 40
    advice = document_of(result)["recommendation"]
    words = " ".join(out.split())
    assert f"choice {CHOICES.get(advice['answer'], advice['choice'])} why " in words
    assert advice["reasons"][-1] in words  # the reason of the choice is not cut
    assert "forecast" not in words
    if advice["answer"] == "fix-the-cause":
        assert "--emit" not in words
        return
    assert "--emit verl-0.9" in words
    rows = re.findall(r"^(\S+) +(?:[\d.e-]+|unknown) ", out, re.MULTILINE)
    names = {candidate["name"] for candidate in advice["candidates"]}
    assert "none" in rows
    assert 2 <= len([row for row in rows if row in names]) <= 6


def test_verbose_shows_every_family_reason_and_definition_of_best(rcdiag, swept):
    result = swept("sampled")
    out = rcdiag("report", result, "-v").out
    for name in FAMILIES:
        assert re.search(rf"^{name} ", out, re.MULTILINE), name
    words = " ".join(out.split())
    for reason in document_of(result)["recommendation"]["reasons"]:
        assert reason in words
    assert "smallest squared distance of its weights from the ratios + variance" in words


def test_only_verbose_shows_refused_candidates_with_reasons(rcdiag, swept):
    result = swept("sampled")
    short, whole = (rcdiag("report", result, *more).out for more in ([], ["-v"]))
    candidates = document_of(result)["recommendation"]["candidates"]
    refused = {item["name"]: item["refused"] for item in candidates if item["refused"]}
    assert set(refused) - {"none"}
    for name, reasons in refused.items():
        assert f"{name} {'; '.join(reasons)}" in " ".join(whole.split())
        assert name == "none" or f"\n{name} " not in short


@pytest.mark.parametrize("name", ["rollouts", "temperature"])
def test_verbose_says_whether_the_forecast_of_longer_responses_holds(rcdiag, swept, name):
    words = {True: "holds", False: "fails", None: "not tested"}
    result = swept(name)
    told = f"forecast {words[document_of(result)['forecast']['holds']]}: "
    assert told in " ".join(rcdiag("report", result, "-v").out.split())


def test_the_screen_ranks_nothing_where_the_recorded_policy_did_not_sample(rcdiag, swept):
    ran = rcdiag("report", swept("temperature"))
    assert "efficiency" not in ran.out
    assert "nothing is ranked: fix the cause first" in ran.out
    whole = rcdiag("report", swept("temperature"), "-v").out
    assert not any(word in whole for word in ("best of", "guide  ", "no candidate was scored"))


@pytest.mark.parametrize(
    ("name", "options", "width"),
    [
        ("sampled", ["-v"], 80),
        ("sampled", ["-v"], 100),
        ("equal", ["-v"], 80),
        ("far", ["-v"], 80),
        ("rollouts", ["-v"], 80),
    ],
)
def test_no_number_is_cut_on_a_narrow_terminal(rcdiag, swept, monkeypatch, name, options, width):
    """All numbers of a wide screen are on the narrow one."""
    result = swept(name)
    monkeypatch.setenv("COLUMNS", "400")
    number = re.compile(r"(?<![\w.])-?\d[\w.+%-]*")
    whole = rcdiag("report", result, *options).out
    wide = sorted(number.findall(whole))
    assert wide
    monkeypatch.setenv("COLUMNS", str(width))
    narrow = rcdiag("report", result, *options).out
    assert not re.search(r"\S…", narrow), narrow
    assert sorted(number.findall(narrow)) == wide
    # A command to paste is one line, however long the path in it.
    assert commands_in(narrow) == commands_in(whole) != []
    lines = [line for line in narrow.splitlines() if line not in commands_in(narrow)]
    assert max(map(len, lines)) <= width


def commands_in(screen: str) -> list[str]:
    return [line for line in screen.splitlines() if line.startswith("rcdiag sweep ")]


def test_the_bounds_on_the_screen_are_those_of_a_row(rcdiag, tmp_path):
    result = tmp_path / "r.json"
    table = sampled_table(tmp_path / "table.parquet")
    ran = rcdiag("sweep", table, "-v", "--result", result)
    for name, family in document_of(result)["families"].items():
        (line,) = re.findall(rf"^{name} +(.+?)  +\d", ran.out, re.MULTILINE)
        bounds = [list(row["bounds"].values()) for row in family["rows"]]
        assert [float(value) for value in line.split()] in bounds, name
