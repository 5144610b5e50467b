"""Every command that a diagnosis advises runs once its placeholders are filled."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from rcdiag.api.diagnose import diagnose
from tests.cli.conftest import rcdiag  # noqa: F401
from tests.faults.prompts import ROOT
from tests.faults.tables import make_table
from tests.usecases.diagnosed_tables import written

POLICIES = ROOT / "sample_data" / "policy"
# Values of the placeholders, for tables of the small policy.
PLACES = {
    "CKPT": str(POLICIES / "step_8"),
    "FOLDER": str(POLICIES),
    "OLDER": str(POLICIES / "step_4"),
}
SEED, TABLES = 23, 12


pytestmark = pytest.mark.usefixtures("one_thread")


def advised(diagnosis: Any) -> list[str]:
    """Return the commands of a diagnosis, each once."""
    actions = [action for cause in diagnosis.causes for action in cause.actions]
    commands = [action.command for action in (*diagnosis.next, *actions) if action.command]
    return list(dict.fromkeys(commands))


def filled(command: str) -> list[str]:
    """Return the words of a command with its placeholders filled, without the program's name."""
    program, *words = shlex.split(command)
    assert program == "rcdiag"
    return [PLACES.get(word, word) for word in words]


def check(diagnosis: Any, rcdiag: Any) -> None:  # noqa: F811
    for command in advised(diagnosis):
        words = filled(command)
        # An experiment with the engine needs vLLM and half a minute, so only a dry run is checked.
        dry = ["--dry-run"] if words[0] == "score" else []
        ran = rcdiag(*words, *dry)
        assert ran.code in (0, 1), f"{command}\n{ran.err}"
        assert "no-experiment" not in ran.out, command


@pytest.mark.weekly  # a minute a table
@pytest.mark.parametrize("number", range(TABLES))
def test_commands_of_generated_tables_run(number, tmp_path, rcdiag, monkeypatch):  # noqa: F811
    monkeypatch.chdir(ROOT)
    path = tmp_path / f"t{number}.parquet"
    label = make_table(SEED, number, path, small=True)
    alone = diagnose(path).diagnosis
    check(alone, rcdiag)
    check(diagnose(path, model=str(ROOT / label["model"])).diagnosis, rcdiag)


@pytest.mark.parametrize("name", ["drift", "steps"])
def test_no_checkpoint_is_advised_for_a_table_without_prompts(name, tmp_path):
    diagnosis = diagnose(written(name, tmp_path)).diagnosis
    assert not [command for command in advised(diagnosis) if "--model" in command]
    text = json.dumps([action.text for cause in diagnosis.causes for action in cause.actions])
    assert name != "drift" or "`prompt_ids`" in text


def test_placeholders_are_filled_in_a_command():
    command = "rcdiag diagnose t.parquet --model CKPT --checkpoint FOLDER"
    assert filled(command)[-3:] == [PLACES["CKPT"], "--checkpoint", PLACES["FOLDER"]]
    assert Path(PLACES["CKPT"]).is_dir()
