"""If stderr is not a terminal, long scoring prints its progress every 30 seconds."""

from __future__ import annotations

import pytest

from cli.terminal import progress
from cli.terminal.progress import progress_line
from cli.terminal.screen import Screen


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def lines_of(clock, capsys, *, quiet: bool = False) -> list[str]:
    """Score 300,000 tokens, 4,000 at a time, at 400 tokens a second for 70 seconds."""
    screen = Screen(quiet=quiet, verbose=False, json=False)
    with screen.progress() as bars:
        for scored in range(0, 28_001, 4_000):
            bars.tokens("hf_fp32", scored, 300_000)
            clock[0] += 10
    return capsys.readouterr().err.splitlines()


def test_a_line_comes_every_thirty_seconds_and_none_before(clock, capsys):
    assert lines_of(clock, capsys) == [
        "scoring hf_fp32: 12,000 of 300,000 tokens, 4%, about 12 min left",
        "scoring hf_fp32: 24,000 of 300,000 tokens, 8%, about 12 min left",
    ]


def test_quiet_says_nothing(clock, capsys):
    assert lines_of(clock, capsys, quiet=True) == []


@pytest.mark.parametrize(
    ("speed", "left"),
    [(10.0, ", about 60 s left"), (1.0, ", about 10 min left"), (0.1, ", about 1 h 40 min left")],
)
def test_the_time_left_is_rounded_as_a_reader_would(speed, left):
    assert progress_line("old", 400, 1000, speed) == f"scoring old: 400 of 1,000 tokens, 40%{left}"


def test_without_a_rate_no_remaining_time_is_printed():
    assert progress_line("old", 0, 1000, 0.0) == "scoring old: 0 of 1,000 tokens, 0%"
