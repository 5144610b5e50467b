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
        # Efficiencies so near 1 that they are shown by their distance, and many refusals.
        "rollouts": lambda: SAMPLES / "rollouts.parquet",
        "temperature": lambda: SAMPLES / "temperature.parquet",
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


def test_the_screen_shows_every_family_and_the_choice_and_why(rcdiag, tmp_path):
    result = tmp_path / "r.json"
    ran = rcdiag("sweep", sampled_table(tmp_path / "table.parquet"), *FEW, "--result", result)
    for name in FAMILIES:
        assert re.search(rf"^{name} ", ran.out, re.MULTILINE), name
    advice = document_of(result)["recommendation"]
    words = " ".join(ran.out.split())
    for reason in advice["reasons"]:
        assert f"- {reason}" in words
    correct = f"take {advice['choice']}"
    assert (correct if advice["answer"] == "take" else "do not correct") in words


def test_only_verbose_shows_what_is_refused_and_why(rcdiag, swept):
    result = swept("sampled")
    short, whole = (rcdiag("report", result, *more).out for more in ([], ["-v"]))
    candidates = document_of(result)["recommendation"]["candidates"]
    refused = {item["name"]: item["refused"] for item in candidates if item["refused"]}
    assert set(refused) - {"none"}
    for name, reasons in refused.items():
        assert f"{name}: {'; '.join(reasons)}" in " ".join(whole.split())
        assert name == "none" or f"\n{name} " not in short


@pytest.mark.parametrize("name", ["rollouts", "temperature"])
def test_the_screen_says_whether_the_forecast_of_longer_responses_holds(rcdiag, swept, name):
    words = {True: "holds", False: "fails", None: "not tested"}
    result = swept(name)
    told = f"forecast of longer responses: {words[document_of(result)['forecast']['holds']]}, "
    assert told in " ".join(rcdiag("report", result).out.split())


def test_the_screen_ranks_nothing_where_the_recorded_policy_did_not_sample(rcdiag, swept):
    ran = rcdiag("report", swept("temperature"))
    assert "efficiency" not in ran.out
    assert "fix the cause, do not correct" in ran.out


@pytest.mark.parametrize(
    ("name", "options", "width"),
    [
        ("sampled", [], 80),
        ("sampled", ["-v"], 80),
        ("sampled", ["-v"], 100),
        ("equal", ["-v"], 80),
        ("far", ["-v"], 80),
        ("rollouts", ["-v"], 80),
    ],
)
def test_no_number_is_cut_on_a_narrow_terminal(rcdiag, swept, monkeypatch, name, options, width):
    """All numbers of a wide screen stand on the narrow one."""
    result = swept(name)
    monkeypatch.setenv("COLUMNS", "400")
    number = re.compile(r"(?<![\w.])-?\d[\w.+%-]*")
    wide = sorted(number.findall(rcdiag("report", result, *options).out))
    assert wide
    monkeypatch.setenv("COLUMNS", str(width))
    narrow = rcdiag("report", result, *options).out
    assert not re.search(r"\S…", narrow), narrow
    assert sorted(number.findall(narrow)) == wide
    assert max(map(len, narrow.splitlines())) <= width


def test_the_bounds_on_the_screen_are_those_of_a_row(rcdiag, tmp_path):
    result = tmp_path / "r.json"
    ran = rcdiag("sweep", sampled_table(tmp_path / "table.parquet"), "--result", result)
    for name, family in document_of(result)["families"].items():
        (line,) = re.findall(rf"^{name} +(.+?)  +\d", ran.out, re.MULTILINE)
        bounds = [list(row["bounds"].values()) for row in family["rows"]]
        assert [float(value) for value in line.split()] in bounds, name
