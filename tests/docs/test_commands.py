"""The commands in docs/ and README run, and print the quoted output."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.docs.commands import (
    LEFT_OUT,
    ROOT,
    TABLES,
    Shown,
    agrees,
    quoted_anew,
    run,
    shown,
    without_digits,
    without_engine,
)

# tests/questions runs the page with generated tables, one question at a time.
COMMANDS = {
    page.relative_to(ROOT).as_posix(): commands
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if (commands := shown(page.read_text())) and not TABLES.search(page.read_text())
}
# Pages that show failing commands, with the exit codes that may occur.
CODES = {"docs/tutorials/explain.md": {0, 2}, "docs/tutorials/report.md": {0, 1}}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty folder with a link to sample_data, in which the commands run."""
    (tmp_path / "sample_data").symlink_to(ROOT / "sample_data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(page: str, item: Shown, *, exact: bool) -> None:
    code, output = run(item.command)
    assert code in CODES.get(page, {0}), "\n".join(output)
    quoted = [line.rstrip() for line in item.quoted]
    if not exact:
        quoted, output = (
            [line if line == LEFT_OUT else without_digits(line) for line in lines]
            for lines in (quoted, output)
        )
    assert agrees(quoted, output), (
        f"{page} quotes another output; python -m tools.docs.commands {page}\n"
        + "\n".join([f"$ {item.command}", *output])
    )


@pytest.mark.parametrize("page", COMMANDS)
def test_commands_print_the_quoted_output(page, folder):
    for item in without_engine(COMMANDS[page]):
        check(page, item, exact=True)


@pytest.mark.engine
@pytest.mark.slow  # half a minute per page
# An engine's process is over before Python has closed its pipes.
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)
@pytest.mark.parametrize(
    "page",
    [page for page, all_of in COMMANDS.items() if without_engine(all_of) != all_of],
)
def test_commands_with_a_model_print_the_quoted_output(page, folder):
    quick = without_engine(COMMANDS[page])
    for item in COMMANDS[page]:
        if item not in quick:
            check(page, item, exact=False)


def test_every_tutorial_shows_its_command():
    for page in (ROOT / "docs" / "tutorials").glob("*.md"):
        commands = COMMANDS[page.relative_to(ROOT).as_posix()]
        assert any(item.command.startswith(f"rcdiag {page.stem} ") for item in commands), page


def test_a_quote_may_omit_lines():
    output = ["a", "b", "c", "d"]
    assert agrees(["a", LEFT_OUT, "d"], output)
    assert agrees([LEFT_OUT, "c", LEFT_OUT], output)
    assert agrees([LEFT_OUT], output)
    assert not agrees(["a", "b"], output)
    assert not agrees(["a", LEFT_OUT, "c"], output)
    assert not agrees(["b", LEFT_OUT], output)


def test_a_quote_is_renewed_where_it_was_cut():
    item = Shown("rcdiag score x", ("value 1", LEFT_OUT, "fine: 1"))
    output = ["value 2", "more", "more", "fine: 2"]
    assert quoted_anew(item, output) == ["value 2", LEFT_OUT, "fine: 2"]
    assert quoted_anew(Shown("rcdiag score x", ()), output) == output
