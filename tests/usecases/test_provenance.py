"""Every result names the machine and the commit of rcdiag that made it."""

from __future__ import annotations

import json
import platform
import socket
from pathlib import Path

import pytest

from rcdiag.pages.tabs.about import provenance as written
from rcdiag.table.opening import open_table
from rcdiag.usecases.provenance import commit_of_clone
from rcdiag.usecases.score import score
from tests.builders import write_table

COMMIT, OTHER = "0123456789abcdef0123456789abcdef01234567", "f" * 40


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


@pytest.fixture
def git(tmp_path) -> Path:
    folder = tmp_path / "clone" / ".git"
    (folder / "refs" / "heads").mkdir(parents=True)
    return folder


def test_a_branch_is_followed_to_its_commit(git):
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "refs" / "heads" / "main").write_text(f"{COMMIT}\n")
    assert commit_of_clone(git) == COMMIT


def test_a_branch_may_be_packed_with_others(git):
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "packed-refs").write_text(f"# pack-refs\n{OTHER} refs/heads/x/refs/heads/main\n")
    assert commit_of_clone(git) is None
    with (git / "packed-refs").open("a") as file:
        file.write(f"{COMMIT} refs/heads/main\n")
    assert commit_of_clone(git) == COMMIT


def test_a_commit_may_be_checked_out_without_a_branch(git):
    (git / "HEAD").write_text(f"{COMMIT}\n")
    assert commit_of_clone(git) == COMMIT


def test_a_worktree_is_followed_to_its_clone(git, tmp_path):
    (git / "refs" / "heads" / "side").write_text(f"{COMMIT}\n")
    own = git / "worktrees" / "side"
    own.mkdir(parents=True)
    (own / "HEAD").write_text("ref: refs/heads/side\n")
    (own / "commondir").write_text("../..\n")
    tree = tmp_path / "side"
    tree.mkdir()
    (tree / ".git").write_text(f"gitdir: {own}\n")
    assert commit_of_clone(tree / ".git") == COMMIT


@pytest.mark.parametrize("head", ["", "ref: refs/heads/gone\n", "no commit\n"])
def test_a_damaged_clone_has_no_commit(git, head):
    (git / "HEAD").write_text(head)
    assert commit_of_clone(git) is None
