"""Help lists shipped and added definitions without loading heavy modules."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cli.names import PLACES, names_of
from rcdiag.engines import BACKENDS
from rcdiag.table.readers import READERS
from rcdiag.trainers import TRAINERS, trainer_names
from tests.cli.test_main import in_a_process

HEAVY = ("numpy", "scipy", "torch", "pyarrow", "polars", "matplotlib")


def test_help_loads_nothing_heavy():
    code = (
        "import sys, cli.main\n"
        "for command in ([], ['score'], ['compare'], ['sweep'], ['replay']):\n"
        "    sys.argv = ['rcdiag', *command, '--help']\n"
        "    try: cli.main.main()\n"
        "    except SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    ran = in_a_process("-c", code, COLUMNS="300")
    assert ran.stderr == "[]\n"
    assert ran.stdout.count("Usage: ") == 5
    assert "{" not in ran.stdout.replace("{DUMP}", "").replace("{DUMP...}", "")


@pytest.mark.parametrize("what", PLACES)
def test_shipped_names_are_listed_as_a_user_writes_them(what):
    known = {
        "trainers": [*trainer_names()],
        "losses": [name for trainer in TRAINERS.values() for name in trainer.update.losses],
        "engines": [*BACKENDS],
        "formats": [*READERS],
    }
    shown = names_of(what, most=100).split(", ")
    assert set(shown) <= set(known[what])
    assert len(names_of(what).split(", ")) <= len(shown)


def test_added_names_are_listed_with_the_first_shipped_ones(rcdiag, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert (
        "are computed, or all: the default of each (verl, slime, " in rcdiag("score", "--help").out
    )
    with TRAINERS.with_added(replace(TRAINERS["verl-0.9"], name="mine")):
        assert "..., mine)" in rcdiag("score", "--help").out
    assert "mine" not in rcdiag("score", "--help").out
