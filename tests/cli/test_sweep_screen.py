"""`rcdiag sweep` on the terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rcdiag.usecases.sweep.families import FAMILIES
from tests.cli.sweep_tables import FEW, sampled_table

SAMPLES = Path(__file__).parents[2] / "sample_data"


@pytest.fixture
def table(tmp_path) -> Path:
    return sampled_table(tmp_path / "table.parquet")


def test_the_screen_shows_every_family_and_the_choice_and_why(rcdiag, table):
    ran = rcdiag("sweep", table, *FEW)
    for name in FAMILIES:
        assert re.search(rf"^{name} ", ran.out, re.MULTILINE), name
    document = rcdiag("sweep", table, *FEW, "--json").document["recommendation"]
    words = " ".join(ran.out.split())
    for reason in document["reasons"]:
        assert f"- {reason}" in words
    correct = f"take {document['choice']}"
    assert (correct if document["answer"] == "correct" else "do not correct") in words


def test_only_verbose_shows_what_is_refused_and_why(rcdiag, table):
    short, whole = (rcdiag("sweep", table, *FEW, *more).out for more in ([], ["-v"]))
    candidates = rcdiag("sweep", table, *FEW, "--json").document["recommendation"]["candidates"]
    refused = {item["name"]: item["refused"] for item in candidates if item["refused"]}
    assert set(refused) - {"none"}
    for name, reasons in refused.items():
        assert f"{name}: {'; '.join(reasons)}" in " ".join(whole.split())
        assert name == "none" or f"\n{name} " not in short


def test_the_screen_says_whether_the_forecast_of_longer_responses_holds(rcdiag):
    words = {True: "holds", False: "fails", None: "not tested"}
    for name in ("rollouts", "temperature"):
        path = SAMPLES / f"{name}.parquet"
        holds = rcdiag("sweep", path, *FEW, "--json").document["forecast"]["holds"]
        told = f"forecast of longer responses: {words[holds]}, "
        assert told in " ".join(rcdiag("sweep", path, *FEW).out.split())


def test_the_screen_ranks_nothing_where_the_recorded_policy_did_not_sample(rcdiag):
    ran = rcdiag("sweep", SAMPLES / "temperature.parquet", *FEW)
    assert "efficiency" not in ran.out
    assert "fix the cause, do not correct" in ran.out


@pytest.fixture
def long_numbers() -> Path:
    """Efficiencies so near 1 that they are shown by their distance, and many refusals."""
    return SAMPLES / "rollouts.parquet"


@pytest.mark.parametrize(
    ("name", "options", "width"),
    [
        ("table", [], 80),
        ("table", ["-v"], 80),
        pytest.param("table", ["-v"], 100, marks=pytest.mark.slow),
        pytest.param("clean", ["-v"], 80, marks=pytest.mark.slow),
        pytest.param("bad", ["-v"], 80, marks=pytest.mark.slow),
        ("long_numbers", ["-v"], 80),
    ],
)
def test_no_number_is_cut_on_a_narrow_terminal(rcdiag, request, monkeypatch, name, options, width):
    """All numbers of a wide screen stand on the narrow one."""
    path = request.getfixturevalue(name)
    monkeypatch.setenv("COLUMNS", "400")
    number = re.compile(r"(?<![\w.])-?\d[\w.+%-]*")
    wide = sorted(number.findall(rcdiag("sweep", path, *FEW, *options).out))
    monkeypatch.setenv("COLUMNS", str(width))
    narrow = rcdiag("sweep", path, *FEW, *options).out
    assert not re.search(r"\S…", narrow), narrow
    assert sorted(number.findall(narrow)) == wide
    assert max(map(len, narrow.splitlines())) <= width


def test_the_bounds_on_the_screen_are_those_of_a_row(rcdiag, table):
    ran = rcdiag("sweep", table)
    families = rcdiag("sweep", table, "--json").document["families"]
    for name, family in families.items():
        (line,) = re.findall(rf"^{name} +(.+?)  +\d", ran.out, re.MULTILINE)
        bounds = [list(row["bounds"].values()) for row in family["rows"]]
        assert [float(value) for value in line.split()] in bounds, name
