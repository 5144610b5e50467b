"""Parts next to an output: only rcdiag's own parts are used or removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rcdiag.engines.process import EngineProcess, Job
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError
from tests.cli.conftest import Ran
from tests.engines.engine_here import scored_parts, toy_scoring


@pytest.fixture
def scoring(tmp_path, rcdiag, monkeypatch) -> Iterator[Callable[..., Ran]]:
    """`scoring(...)` runs the same command each time, with an engine in this process."""
    monkeypatch.setattr("rcdiag.engines.scoring.TOKENS_PER_PART", 4)
    with toy_scoring(tmp_path) as given:
        arguments = ["score", given["source"], "--policy", "old=toy", "--model", given["model"]]
        arguments += ["-o", tmp_path / "out.parquet", "-q"]
        yield lambda *more: rcdiag(*arguments, *more)


def parts_of(tmp_path: Path) -> Path:
    return tmp_path / "out.parquet.parts"


def interrupted(tmp_path: Path, scoring: Callable[..., Ran], monkeypatch) -> Path:
    """Run until the parts exist but not the output; returns their folder."""
    with monkeypatch.context() as patch:
        patch.setattr("rcdiag.engines.scoring._join", stop)
        assert scoring().code == 130
    (folder,) = (path for path in parts_of(tmp_path).iterdir() if path.is_dir())
    return folder


def stop(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_file_of_the_user_is_kept(tmp_path, scoring):
    parts_of(tmp_path).mkdir()
    own = parts_of(tmp_path) / "thesis.txt"
    own.write_text("mine")
    folder = parts_of(tmp_path) / "old-0123456789ab"
    folder.mkdir()
    (folder / "000000.parquet").touch()
    (folder / "notes.md").write_text("mine too")
    assert scoring().code == 0
    assert own.read_text() == "mine"
    assert (folder / "notes.md").exists()
    assert not (folder / "000000.parquet").exists()


def test_a_link_in_place_of_the_parts_is_refused(tmp_path, scoring):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    parts_of(tmp_path).symlink_to(elsewhere)
    ran = scoring()
    assert ran.code == 2
    assert ran.err.startswith("error: ")
    assert "not a folder of yours" in ran.err
    assert [path.name for path in elsewhere.iterdir()] == ["file"]


def test_a_link_in_place_of_a_policy_s_parts_is_refused(tmp_path, scoring, monkeypatch):
    """Whoever knows the name from a killed run could have a file elsewhere overwritten by it."""
    folder = interrupted(tmp_path, scoring, monkeypatch)
    elsewhere = folder.rename(tmp_path / "elsewhere")
    (elsewhere / "000000.parquet").write_text("mine")
    folder.symlink_to(elsewhere)
    before = {path: path.read_bytes() for path in elsewhere.iterdir()}
    scoring().refuses(f"{folder}: not a folder of yours")
    assert {path: path.read_bytes() for path in elsewhere.iterdir()} == before


def test_parts_of_another_user_are_refused(tmp_path, scoring, monkeypatch):
    folder = interrupted(tmp_path, scoring, monkeypatch)
    monkeypatch.setattr("os.geteuid", lambda: folder.stat().st_uid + 1)
    scoring().refuses(f"{parts_of(tmp_path)}: not a folder of yours")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1 nothing PAR1"])
def test_a_damaged_part_is_rescored(tmp_path, scoring, monkeypatch, content):
    folder = interrupted(tmp_path, scoring, monkeypatch)
    parts = sorted(file.name for file in folder.glob("0*.parquet"))
    (folder / "000001.parquet").write_bytes(content)
    scored_parts.clear()
    assert scoring().code == 0
    assert len(parts) > 1
    assert scored_parts == ["000001.parquet"]
    rows = pq.read_table(tmp_path / "out.parquet")["old_log_probs"]
    assert [len(row) for row in rows.to_pylist()] == [2, 1, 2, 1, 2, 1]


def test_a_complete_output_of_a_killed_run_is_accepted(tmp_path, scoring):
    """A run killed while computing metrics leaves the complete table and no parts."""
    assert scoring().code == 0
    content = (tmp_path / "out.parquet").read_bytes()
    scored_parts.clear()
    assert scoring().code == 0
    assert not scored_parts, "scored again"
    assert (tmp_path / "out.parquet").read_bytes() == content
    assert scoring("--force").code == 0
    assert scored_parts, "--force makes it again"


def test_an_output_of_other_rows_is_refused(tmp_path, scoring):
    assert scoring().code == 0
    out = tmp_path / "out.parquet"
    pq.write_table(pq.read_table(out).slice(0, 3), out)
    ran = scoring()
    assert ran.code == 2
    assert "already there" in ran.err


def test_a_second_run_on_the_same_output_is_refused(tmp_path, scoring, monkeypatch):
    errors: list[str] = []

    def meanwhile(*_: object) -> None:
        errors.append(scoring().err)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("rcdiag.engines.scoring._join", meanwhile)
        assert scoring().code == 130
    assert "another run is writing it" in errors[0]
    assert scoring().code == 0


EVIL = "import pathlib; pathlib.Path({mark!r}).touch()\n"


@pytest.mark.slow
def test_workers_import_nothing_from_the_current_directory(tmp_path, monkeypatch):
    """A downloaded checkpoint's folder may hold files of any name.

    An empty entry of PYTHONPATH is the current directory, and so is a dot.
    """
    mark = tmp_path / "mark"
    here = tmp_path / "downloaded"
    here.mkdir()
    for name in ("rcdiag", "json", "numpy", "traceback", "torch", "sitecustomize"):
        (here / f"{name}.py").write_text(EVIL.format(mark=str(mark)))
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", ":.")
    spec = PolicySpec(name="a", backend="hf", dtype="float32", model="none")
    engine = EngineProcess(Job(spec=spec, max_length=1, folder=tmp_path))
    with pytest.raises(RcdiagError, match="none"):
        engine.load()
    engine.close()
    assert not mark.exists()
