"""`rcdiag convert`, and its options in every command: formats, given values, two dumps."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.parquet as pq
import pytest

from rcdiag.table.readers import READERS
from tests.builders import write_table
from tests.cli.conftest import dump_with_shift
from tests.cli.sweep_tables import FEW
from tests.table.toy_reader import TOY, write_toy
from tests.usecases.test_two_dumps import SAMPLER, TRAINER, part, run_rows, write


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    with READERS.with_added(TOY):
        yield


@pytest.fixture
def dump(tmp_path):
    rows = part(run_rows(), (*SAMPLER, "old_log_probs", "advantages"))
    return write_toy(tmp_path / "a.toyjsonl", rows)


def test_the_screen_lists_columns_changes_and_missing_columns(rcdiag, dump, tmp_path):
    out = tmp_path / "out.parquet"
    ran = rcdiag("convert", dump, "-o", out, "--given", "temperature=0.7")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert len(lines) < 20
    assert lines[0].startswith("out.parquet  24 rows, ")
    assert "policies  rollout, old" in ran.out
    assert "given     temperature=0.7" in ran.out
    assert "changed   group_id: rows with equal prompts are a prompt group" in ran.out
    assert "missing   step: all rows count as one step" in ran.out
    assert f"Wrote {out}" in ran.err
    assert pq.read_table(out).num_rows == 24


def test_json_is_the_document_alone(rcdiag, dump, tmp_path):
    ran = rcdiag("convert", dump, "-o", tmp_path / "out.parquet", "--json")
    assert ran.document["kind"] == "convert"
    assert ran.document["output"] == str(tmp_path / "out.parquet")


def test_quiet_says_nothing(rcdiag, dump, tmp_path):
    ran = rcdiag("convert", dump, "-o", tmp_path / "out.parquet", "-q")
    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_a_dry_run_writes_nothing(rcdiag, dump, tmp_path):
    ran = rcdiag("convert", dump, "-o", tmp_path / "out.parquet", "--dry-run")
    assert ran.code == 0
    assert "would write" in ran.err
    assert not (tmp_path / "out.parquet").exists()


def test_many_changes_are_cut_without_verbose(rcdiag, tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    for step in range(9):
        write_toy(notes / f"{step}.toyjsonl", [{"response_ids": [1], f"note_{step}": 1}])
    ran = rcdiag("convert", notes, "-o", tmp_path / "out" / "out.parquet")
    assert "more changes: -v" in ran.out
    assert len(ran.out.splitlines()) < 40
    ran = rcdiag("convert", notes, "-o", tmp_path / "out" / "out.parquet", "--force", "-v")
    assert "more changes: -v" not in ran.out


@pytest.mark.parametrize(
    ("arguments", "output", "way"),
    [
        (("--given", "temperature"), "--given temperature: wanted NAME=VALUE", "temperature=0.7"),
        (("--given", "temperature=hot"), "not a number above 0", "a number"),
        (("--given", "temprature=1"), "this cannot be given", "did you mean temperature?"),
        (
            ("--given", "step=1", "--given", "step=2"),
            "--given step=1 is given as well",
            "one value",
        ),
        (("--from", "toyjson"), "format toyjson: no such format", "did you mean toyjsonl?"),
        (("--column", "old_log_probs=nothing"), "no column `nothing`, the right side of", ""),
    ],
)
def test_wrong_options_end_with_2(rcdiag, dump, tmp_path, arguments, output, way):
    out = tmp_path / "out.parquet"
    ran = rcdiag("convert", dump, "-o", out, *arguments)
    ran.refuses(output, way)
    assert not out.exists()


# The commands that take dumps, with options that make them fast.
COMMANDS = {"score": (), "diagnose": (), "compare": (), "sweep": FEW, "replay": ()}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_formats_and_given_values(rcdiag, dump, command):
    options = ("--from", "toyjsonl", "--given", "temperature=0.7", *COMMANDS[command])
    ran = rcdiag(command, dump, *options, "--json")
    assert ran.code == 0, ran.err
    ran = rcdiag(command, dump, "--given", "reward=1")
    ran.refuses("this cannot be given for all rows")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_given_values_for_parquet(rcdiag, tmp_path, command):
    path = dump_with_shift(tmp_path / "a.parquet", 0.1, advantage=[1.0, 0.0, -1.0])
    ran = rcdiag(command, path, "--given", "temperature=0.7", *COMMANDS[command], "--json")
    assert ran.code == 0, ran.err
    path = dump_with_shift(tmp_path / "b.parquet", 0.1, temperature=[1.0, 0.5, 1.0])
    ran = rcdiag(command, path, "--given", "temperature=1")
    ran.refuses("row 1: `temperature` is 0.5, but")


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "compare"])
def test_commands_take_two_dumps_of_one_run(rcdiag, tmp_path, command):
    rows = run_rows()
    one = write(tmp_path / "a.toyjsonl", part(rows, SAMPLER))
    other = write(tmp_path / "b.parquet", part(rows, TRAINER))
    ran = rcdiag(command, one, other, *COMMANDS[command], "--json")
    assert ran.code == 0, ran.err
    assert ran.document["provenance"]["dump"] == [str(one), str(other)]
    assert "24 of 24 rows of" in ran.err


def test_a_given_step_is_the_step_of_the_result(rcdiag, tmp_path):
    path = write_table(
        tmp_path / "a.parquet",
        response_ids=[[1, 2], [3]],
        rollout_log_probs=[[-1.0, -2.0], [-0.5]],
        old_log_probs=[[-1.1, -2.0], [-0.75]],
        advantage=[1.0, -1.0],
    )
    ran = rcdiag("replay", path, "--given", "step=7", "--json")
    assert ran.document["step"] == 7


def test_options_from_a_file(rcdiag, dump, tmp_path):
    config = tmp_path / "rcdiag.toml"
    config.write_text('[convert]\nfrom = "toyjsonl"\ngiven = ["temperature=0.7"]\n')
    ran = rcdiag("--config", config, "convert", dump, "-o", tmp_path / "out.parquet", "--json")
    assert ran.document["given"] == {"temperature": 0.7}
