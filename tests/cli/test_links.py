"""The name of a written page is a link only on terminals that support links."""

from __future__ import annotations

import io

import pytest
from rich.text import Text

from cli.terminal.console import TerminalConsole


def written(path, monkeypatch, *, tty: bool, **environment: str) -> str:
    for name in ("TERM", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    out = io.StringIO()
    console = TerminalConsole(file=out, force_terminal=tty, width=200)
    console.print(Text.assemble("Wrote ", (str(path), console.link_to(path))))
    return out.getvalue()


@pytest.mark.parametrize("term", ["xterm-256color", "xterm-kitty", "screen-256color", "alacritty"])
def test_a_terminal_that_supports_links_gets_a_link_to_the_file(tmp_path, monkeypatch, term):
    path = tmp_path / "a page.html"
    text = written(path, monkeypatch, tty=True, TERM=term)
    assert "\x1b]8;" in text
    assert path.as_uri() in text
    assert "\x1b]8;;\x1b\\" in text  # the link ends


@pytest.mark.parametrize(
    ("tty", "environment"),
    [
        (False, {"TERM": "xterm-256color"}),
        (True, {"TERM": "dumb"}),
        (True, {"TERM": "linux"}),
        (True, {"TERM": "vt100"}),
    ],
)
def test_other_terminals_get_the_name_alone(tmp_path, monkeypatch, tty, environment):
    text = written(tmp_path / "page.html", monkeypatch, tty=tty, **environment)
    assert "]8;" not in text
    assert str(tmp_path / "page.html") in text


def test_without_colours_a_link_stays_a_link(tmp_path, monkeypatch):
    text = written(tmp_path / "p.html", monkeypatch, tty=True, TERM="xterm", NO_COLOR="1")
    assert "\x1b]8;" in text
