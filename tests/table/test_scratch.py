"""Temporary folders beside an output are removed by their process, or after a kill by the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from rcdiag.table.scratch import LOCK, Scratch

HOLD = """
import pathlib, sys
from rcdiag.table.scratch import Scratch
scratch = Scratch(pathlib.Path(sys.argv[1]))
(scratch.path / "half").write_text("written")
print(scratch.path, flush=True)
sys.stdin.read()
"""


def started(output: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that holds a folder beside the output; returns process and folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(output)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_the_folder_of_a_killed_process_is_removed_by_the_next(tmp_path):
    output = tmp_path / "out.parquet"
    process, left = started(output)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (left / "half").exists()
    scratch = Scratch(output)
    assert list(tmp_path.iterdir()) == [scratch.path]
    scratch.remove()
    assert not list(tmp_path.iterdir())


def test_the_folder_of_a_running_process_is_kept(tmp_path):
    output = tmp_path / "out.parquet"
    process, held = started(output)
    Scratch(output).remove()
    assert (held / "half").exists()
    process.communicate("")
    assert not list(tmp_path.iterdir())


def test_no_other_folder_is_touched(tmp_path):
    """Folders of another output, without a lock, with another name, or a link."""
    output = tmp_path / "out.parquet"
    others = [
        ".out.parquet.abcdefgh",
        ".out.parquet.mine",
        ".other.parquet.abcdefgh",
        "out.parquet",
    ]
    for name in others:
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text("mine")
        if name != others[0]:
            (tmp_path / name / LOCK).write_text("")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / LOCK).write_text("")
    (tmp_path / ".out.parquet.aaaaaaaa").symlink_to(elsewhere)
    Scratch(output).remove()
    assert all((tmp_path / name / "mine").exists() for name in others)
    assert (elsewhere / LOCK).exists()


def test_a_folder_whose_lock_is_a_link_is_not_touched(tmp_path):
    folder = tmp_path / ".out.parquet.abcdefgh"
    folder.mkdir()
    (tmp_path / "mine").write_text("mine")
    (folder / LOCK).symlink_to(tmp_path / "mine")
    Scratch(tmp_path / "out.parquet").remove()
    assert folder.exists()
    assert os.readlink(folder / LOCK) == str(tmp_path / "mine")
