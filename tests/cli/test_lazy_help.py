"""Help that names what ships, and what was added from outside, without loading anything heavy."""

from __future__ import annotations

import importlib

import pytest

from cli.lazy_help import NAMES, Names
from tests.cli.test_main import in_a_process

HEAVY = ("numpy", "scipy", "torch", "pyarrow", "polars", "matplotlib")


@pytest.mark.parametrize("command", [(), ("score",), ("compare",), ("sweep",), ("replay",)])
def test_help_loads_nothing_heavy(command):
    code = (
        "import sys, cli.main\n"
        "sys.argv[0] = 'rcdiag'\n"
        "try: cli.main.main()\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    ran = in_a_process("-c", code, *command, "--help", COLUMNS="300")
    assert ran.stderr == "[]\n"
    assert "{" not in ran.stdout.replace("{DUMP}", "").replace("{DUMP...}", "")


@pytest.mark.parametrize("place", NAMES)
def test_all_names_that_ship_in_short_are_names(place):
    names = NAMES[place]
    known = {name.partition(" ")[0] for name in names.read()}
    shipped = {name.partition(" ")[0] for name in names.shipped.split(", ")} - {"..."}
    assert shipped <= known


def test_a_loaded_registry_is_listed_whole_and_anew_each_time(rcdiag, monkeypatch):
    importlib.import_module("rcdiag.trainers")
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setitem(NAMES, "{trainers}", Names("rcdiag.trainers", "few", lambda: ["mine"]))
    assert "are computed (mine)" in rcdiag("score", "--help").out
    monkeypatch.setitem(NAMES, "{trainers}", Names("no_such_module", "few", lambda: ["mine"]))
    assert "are computed (few)" in rcdiag("score", "--help").out
