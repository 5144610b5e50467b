"""A dry run downloads no file behind a URL; it lists the files that a run would download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rcdiag
from rcdiag.errors import RcdiagError
from tests.builders import write_table

LOG_PROBS = [[-1.0, -0.5], [-2.0]]


@pytest.fixture
def unreadable(memory, tmp_path, monkeypatch) -> None:
    """Two tables behind a URL whose files can be listed, but raise when they are opened."""
    path = write_table(
        tmp_path / "a.parquet",
        response_ids=[[1, 2], [3]],
        rollout_log_probs=LOG_PROBS,
        old_log_probs=LOG_PROBS,
    )
    for step in (1, 2):
        memory.pipe(f"/run/step_{step}.parquet", path.read_bytes() * 1000)

    def refuse(*args: object, **keywords: object) -> None:
        raise ConnectionResetError("a file was fetched")

    monkeypatch.setattr(type(memory), "open", refuse)
    monkeypatch.setattr(type(memory), "cat_file", refuse)


@pytest.mark.parametrize("command", [rcdiag.score, rcdiag.sweep, rcdiag.replay, rcdiag.diagnose])
def test_a_dry_run_lists_the_files_of_a_url_and_fetches_none(memory, unreadable, command):
    text = command.dry_run("memory://run")
    size = 2 * len(memory.store["/run/step_1.parquet"].getvalue()) / 1e6
    assert text.startswith(f"memory://run: 2 files, {size:,.1f} MB\nwould read parquet where")
    assert "are not checked" in text
    with pytest.raises(RcdiagError, match="a file was fetched"):
        command("memory://run")


def test_all_urls_of_a_join_are_listed(unreadable):
    urls = ["memory://run/step_1.parquet", "memory://run/step_2.parquet"]
    for text in (rcdiag.compare.dry_run(*urls), rcdiag.score.dry_run(urls)):
        assert [line.partition(": ")[:1] for line in text.splitlines()[:2]] == [(u,) for u in urls]
        assert text.count("1 file,") == 2


def test_a_conversion_s_dry_run_fetches_none_and_writes_none(unreadable, tmp_path):
    target = tmp_path / "out.parquet"
    assert "2 files" in rcdiag.convert.dry_run("memory://run", target)
    assert not target.exists()


def test_options_are_checked_before_the_files_are_listed(unreadable, tmp_path):
    with pytest.raises(RcdiagError, match="no_such_preset"):
        rcdiag.score.dry_run("memory://run", presets="no_such_preset")
    with pytest.raises(RcdiagError, match="no such file"):
        rcdiag.score.dry_run("memory://nowhere")


def test_a_file_url_is_a_path_of_this_machine(tmp_path):
    path: Path = write_table(
        tmp_path / "a.parquet",
        response_ids=[[1, 2], [3]],
        rollout_log_probs=LOG_PROBS,
        old_log_probs=LOG_PROBS,
    )
    assert "2 sequences in 1 file" in rcdiag.score.dry_run(f"file://{path}")


def test_every_command_names_several_sources_in_the_same_way(tmp_path):
    columns: dict[str, Any] = {
        "rollout_log_probs": LOG_PROBS,
        "old_log_probs": LOG_PROBS,
        "advantage": [1.0, -1.0],
    }
    a, b = (
        write_table(tmp_path / f"{name}.parquet", response_ids=[[1, 2], [3]], **columns)
        for name in "ab"
    )
    named = f"{a} and 1 more: "
    assert rcdiag.compare.dry_run(a, b).startswith(named)
    for command in (rcdiag.score, rcdiag.sweep, rcdiag.replay, rcdiag.diagnose):
        assert command.dry_run([a, b]).startswith(named)
        assert command.dry_run(rcdiag.open_table([a, b])).startswith(named)
