"""The README is short; its links, make targets and Python code work."""

from __future__ import annotations

import re
import subprocess

from tools.docs.commands import ROOT

TEXT = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_readme_is_short():
    assert len(TEXT.splitlines()) <= 100
    assert sum(len(block.splitlines()) for block in blocks("python")) <= 8


def test_links_and_pictures_are_files_in_git():
    links = re.findall(r"\]\(([^)#]+)", TEXT) + re.findall(r'src(?:set)?="([^"]+)"', TEXT)
    assert len(links) > 15
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    for link in links:
        path = ROOT / link
        assert path.exists(), link
        assert tracked.returncode or link.rstrip("/") in tracked.stdout, link


def test_pictures_are_small():
    for name in ("report_light.png", "report_dark.png"):
        assert (ROOT / "docs" / "assets" / name).stat().st_size < 200_000


def test_every_command_has_a_row():
    rows = re.findall(r"^\| \[`(\w+)`\]\(docs/tutorials/(\w+)\.md\)", TEXT, re.MULTILINE)
    tutorials = {path.stem for path in (ROOT / "docs" / "tutorials").glob("*.md")}
    assert {(name, name) for name in tutorials} == set(rows)


def test_make_targets_exist():
    named = re.findall(r"make ([a-z]+)\b", "".join(blocks("sh")))
    assert named == ["demo", "test", "nightly"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{name}:", makefile, re.MULTILINE) for name in named)


def test_the_python_code_runs(tmp_path, monkeypatch, capsys):
    (tmp_path / "sample_data").symlink_to(ROOT / "sample_data")
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("python")
    exec(compile(block, "README.md", "exec"), {})
    assert "rollout_is: null" in capsys.readouterr().out
    assert (tmp_path / "report.html").exists()


def test_the_version_is_the_same_everywhere():
    project = (ROOT / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.+)"$', project, re.MULTILINE)[1]
    sections = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text()
    assert [sections[0], re.search(r"^version: (.+)$", citation, re.MULTILINE)[1]] == [version] * 2
