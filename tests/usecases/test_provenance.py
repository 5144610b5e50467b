"""Every result names the machine and the commit of rcdiag that made it."""

from __future__ import annotations

import json
import platform
import socket
import subprocess
from pathlib import Path

import pytest

from rcdiag.pages.tabs.about import provenance as written
from rcdiag.table.opening import open_table
from rcdiag.usecases.provenance import commit_of_clone
from rcdiag.usecases.score import score
from tests.builders import write_table


@pytest.fixture
def result(tmp_path):
    rows = [[-0.1, -0.2], [-0.3]]
    path = tmp_path / "a.parquet"
    write_table(path, response_ids=[[1, 2], [3]], rollout_log_probs=rows, old_log_probs=rows)
    return score(open_table(path))


def test_a_result_and_its_page_name_the_machine_and_the_versions(result):
    facts = json.loads(result.to_json())["provenance"]
    assert facts["host"] == socket.gethostname()
    assert "core" in facts["device"]
    assert facts["versions"]["python"] == platform.python_version()
    assert "torch" not in facts["versions"]  # no model ran
    text = written(result)
    for name in ("host", "device"):
        assert f"{name:<12} {facts[name]}\n" in text


def run_git(folder: Path, *arguments: str) -> str:
    named = [f"user.{key}={value}" for key, value in {"name": "A", "email": "a@b.c"}.items()]
    options = [word for one in named for word in ("-c", one)]
    command = ["git", "-C", str(folder), *options, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def clone(tmp_path) -> Path:
    folder = tmp_path / "clone"
    folder.mkdir()
    run_git(folder, "init", "--quiet", "--initial-branch=main")
    run_git(folder, "commit", "--quiet", "--allow-empty", "--message", "first")
    return folder


def test_a_branch_is_followed_to_its_commit(clone):
    assert commit_of_clone(clone / ".git") == run_git(clone, "log", "--format=%H")


def test_a_branch_may_be_packed_with_others(clone):
    run_git(clone, "branch", "x/refs/heads/main")
    run_git(clone, "pack-refs", "--all")
    assert commit_of_clone(clone / ".git") == run_git(clone, "log", "--format=%H")


def test_a_commit_may_be_checked_out_without_a_branch(clone):
    first = run_git(clone, "log", "--format=%H")
    run_git(clone, "commit", "--quiet", "--allow-empty", "--message", "second")
    run_git(clone, "checkout", "--quiet", "--detach", first)
    assert commit_of_clone(clone / ".git") == first


def test_a_worktree_has_a_commit_of_its_own(clone, tmp_path):
    first, side = run_git(clone, "log", "--format=%H"), tmp_path / "side"
    run_git(clone, "worktree", "add", "--quiet", str(side))
    run_git(clone, "commit", "--quiet", "--allow-empty", "--message", "second")
    assert commit_of_clone(side / ".git") == first


@pytest.mark.parametrize("head", ["", "ref: refs/heads/gone\n", "no commit\n"])
def test_a_damaged_clone_has_no_commit(clone, head):
    (clone / ".git" / "HEAD").write_text(head)
    assert commit_of_clone(clone / ".git") is None


def test_without_git_there_is_no_commit(clone, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert commit_of_clone(clone / ".git") is None
