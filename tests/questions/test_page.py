"""Every command in docs/questions.md runs on its table, and prints the quoted output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.questions.tables import MAKERS, write_tables
from tools.docs.commands import LEFT_OUT, ROOT, Shown, agrees, run, shown, without_digits

PAGE = ROOT / "docs" / "questions.md"
INTRODUCTION, *SECTIONS = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
QUESTIONS = {section.split("\n", 1)[0]: section for section in SECTIONS}
IN_PART = "In part: "
# A third of the questions in every run, those whose tables are made quickly.
QUICK = (
    "verl #6280",
    "verl #6240",
    "verl-omni #254",
    "slime #1907",
    "NeMo RL #2100, #4243",
    "NeMo RL #4018, #3152",
    "SkyRL #2201",
    "open-instruct #1473",
    "vLLM #42259, SGLang #25790",
)


def thread(command: str) -> list[str]:
    """Return the threads whose tables a command reads."""
    return re.findall(r"questions/([\w-]+)\.parquet", command)


def check(item: Shown, *, exact: bool) -> None:
    code, output = run(item.command)
    assert code == 0, "\n".join(output)
    quoted = [line.rstrip() for line in item.quoted]
    if not exact:
        quoted, output = (
            [line if line == LEFT_OUT else without_digits(line) for line in lines]
            for lines in (quoted, output)
        )
    assert agrees(quoted, output), "\n".join([f"$ {item.command}", *output])


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with sample_data, in which the commands run."""
    (tmp_path / "sample_data").symlink_to(ROOT / "sample_data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in QUESTIONS],
)
def test_commands_print_the_quoted_output(name, folder):
    commands = [item for item in shown(QUESTIONS[name]) if not item.needs_engine]
    threads = {one for item in commands for one in thread(item.command)}
    if threads:
        write_tables(folder / "questions", sorted(threads))
    for item in commands:
        check(item, exact=True)


@pytest.mark.engine
@pytest.mark.slow
# An engine's process is over before Python has closed its pipes.
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)
def test_a_checkpoint_scores_what_bypass_mode_lacks(folder):
    write_tables(folder / "questions", ["verl-7196"])
    (item,) = (item for item in shown(QUESTIONS["verl #7196"]) if item.needs_engine)
    check(item, exact=False)


def test_every_question_has_a_command():
    assert len(QUESTIONS) == 25
    for name, section in QUESTIONS.items():
        assert shown(section), name
        assert re.search(r"\]\(https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+\)", section)
    assert set(QUICK) <= set(QUESTIONS)


def test_every_table_has_a_question():
    asked = {one for item in shown(PAGE.read_text()) for one in thread(item.command)}
    assert asked == set(MAKERS)


def test_the_page_counts_its_answers():
    part = sum(IN_PART in section for section in QUESTIONS.values())
    tally = f"{25 - part} questions are answered by a command; {part} is answered in part"
    assert tally in INTRODUCTION
