"""The commands in pages: find them, run them, compare the quoted output, and update it.

A ```console block holds commands after `$ ` and their output; a quoted line `...` stands for any
number of lines. As a program with pages as arguments, it updates their quoted output and keeps the
`...`. A page whose tables are generated names the module in a comment `<!-- tables: MODULE -->`:
`MODULE.write_tables` writes them into a folder with the page's name.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import math
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TABLES = re.compile(r"^<!-- tables: ([\w.]+) -->$", re.MULTILINE)
LEFT_OUT = "..."
# These load a checkpoint, so the last digits of their output differ between machines.
ENGINE = re.compile(r"--(model|policy|ladder)\b")
WIDTH = 80


@dataclass(frozen=True, slots=True)
class Shown:
    """A command of a page, as one line, and the lines that the page quotes of its output."""

    typed: str  # as on the page, with its continuation lines
    quoted: tuple[str, ...]

    @property
    def command(self) -> str:
        return re.sub(r"\\\n(?:> )?\s*", "", self.typed)

    @property
    def needs_engine(self) -> bool:
        return bool(ENGINE.search(self.command))


def shown(text: str) -> list[Shown]:
    """Return all commands of a page, in order."""
    return [each for block in BLOCK.findall(text) for each in commands_of(block)]


def without_engine(commands: list[Shown]) -> list[Shown]:
    """Return the commands that neither load a checkpoint nor read what such a command wrote."""
    written: set[str] = set()
    quick = []
    for each in commands:
        words = shlex.split(each.command)
        if each.needs_engine or written.intersection(words):
            written |= {words[n + 1] for n, word in enumerate(words[:-1]) if word == "-o"}
        else:
            quick.append(each)
    return quick


def commands_of(block: str) -> Iterator[Shown]:
    """Yield the commands of one block."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        lines = part.rstrip("\n").split("\n")
        length = 1
        while lines[length - 1].endswith("\\"):
            length += 1
        yield Shown("\n".join(lines[:length]), tuple(lines[length:]))


def run(command: str) -> tuple[int, list[str]]:
    """Run an `rcdiag` command in this process; return its exit code, and both streams as one.

    `> FILE` at the end writes stdout to a file. `python` in a command is the Python that runs this.
    """
    from cli.main import main
    from cli.terminal import progress

    words = shlex.split(command)
    target = None
    if ">" in words:
        words, target = words[: words.index(">")], words[words.index(">") + 1]
    if words[0] != "rcdiag":
        raise ValueError(f"only rcdiag commands are shown with `$ `: {command}")
    screen = io.StringIO()
    out = io.StringIO() if target else screen
    code = 0
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {"COLUMNS": str(WIDTH), "TERM": "dumb", "PATH": path}
    with (
        mock.patch.object(sys, "argv", words),
        mock.patch.dict(os.environ, settings),
        # Which lines of progress are printed depends on how fast the machine is.
        mock.patch.object(progress, "SECONDS_PER_LINE", math.inf),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(screen),
    ):
        try:
            main()
        except SystemExit as stopped:
            code = int(stopped.code or 0)
    if target:
        Path(target).write_text(out.getvalue())
    lines = [line.rstrip() for line in screen.getvalue().split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return code, lines


def without_digits(line: str) -> str:
    """Return a line with every number replaced, so that it is equal on all machines."""
    number = r"[-−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?%?"
    return re.sub(r"\s+", " ", re.sub(number, "#", line.replace("~", ""))).strip()


def agrees(quoted: list[str], output: list[str]) -> bool:
    """Tell whether the output is as quoted; `...` stands for any number of lines."""
    if not quoted:
        return True
    first, *rest = quoted
    if first == LEFT_OUT:
        return any(agrees(rest, output[start:]) for start in range(len(output) + 1)) or not rest
    return bool(output) and first == output[0] and agrees_after(rest, output[1:])


def agrees_after(quoted: list[str], output: list[str]) -> bool:
    """Tell whether the output is as quoted and ends with the quote."""
    return not output if not quoted else agrees(quoted, output)


def quoted_anew(each: Shown, output: list[str]) -> list[str]:
    """Return the output lines most similar to the quoted ones, with `...` where it was.

    A quote without `...` is the whole output; otherwise what stands before the first `...` is its
    beginning, and what stands after the last one its end.
    """
    if LEFT_OUT not in each.quoted:
        return output
    made: list[str] = []
    start = 0
    runs = list(_runs(each.quoted))
    for number, run_of_lines in enumerate(runs):
        if run_of_lines == [LEFT_OUT]:
            made.append(LEFT_OUT)
            continue
        if number == len(runs) - 1:
            start = max(len(output) - len(run_of_lines), start)
        elif number > 0:
            start = _nearest(run_of_lines, output, start)
        made += output[start : start + len(run_of_lines)]
        start += len(run_of_lines)
    return made


def _runs(quoted: tuple[str, ...]) -> Iterator[list[str]]:
    run_of_lines: list[str] = []
    for line in quoted:
        if line == LEFT_OUT:
            if run_of_lines:
                yield run_of_lines
            yield [LEFT_OUT]
            run_of_lines = []
        else:
            run_of_lines.append(line)
    if run_of_lines:
        yield run_of_lines


def _nearest(wanted: list[str], output: list[str], start: int) -> int:
    """Return where in the output, from `start` on, the lines are most similar to `wanted`."""
    places = range(start, max(len(output) - len(wanted), start) + 1)
    text = "\n".join(wanted)
    return max(
        places,
        key=lambda at: difflib.SequenceMatcher(
            None, text, "\n".join(output[at : at + len(wanted)]), autojunk=False
        ).ratio(),
    )


def quote_page(page: Path) -> None:
    """Run the commands of a page and write their output into it.

    ValueError if a command fails that did not fail when it was quoted: the page stays as it is.
    """

    def block(match: re.Match[str]) -> str:
        parts = []
        for each in commands_of(match[1]):
            code, output = run(each.command)
            if code == 2 and not any(line.startswith("error: ") for line in each.quoted):
                raise ValueError("\n".join([f"{page}: $ {each.command}", *output]))
            parts.append("\n".join([f"$ {each.typed}", *quoted_anew(each, output)]))
        return "```console\n" + "\n".join(parts) + "\n```"

    text = page.read_text()
    for module in TABLES.findall(text):
        importlib.import_module(module).write_tables(Path(page.stem))
    page.write_text(BLOCK.sub(block, text))


if __name__ == "__main__":
    import tempfile

    pages = [Path(page).resolve() for page in sys.argv[1:]]
    for page in pages:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            Path("sample_data").symlink_to(ROOT / "sample_data")
            quote_page(page)
