"""The program itself: help, version, how errors become exit codes, imports, colours."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys

import pytest

from cli.app import COMMANDS
from cli.main import main


def in_a_process(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    plain = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "TERM")}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**plain, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_version_is_printed(rcdiag):
    ran = rcdiag("--version")
    assert (ran.code, ran.out) == (0, f"rcdiag {importlib.metadata.version('rcdiag')}\n")


def test_help_names_every_command(rcdiag):
    ran = rcdiag("--help")
    assert ran.code == 0
    for command in COMMANDS:
        assert command in ran.out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_an_example_that_starts_with_it(rcdiag, command):
    ran = rcdiag(command, "--help")
    assert ran.code == 0
    assert "Example" in ran.out
    assert f"rcdiag {command} " in ran.out


@pytest.mark.parametrize("arguments", [["nonsense"], ["score"], ["score", "--nonsense", "x"]])
def test_usage_errors_exit_2(rcdiag, arguments):
    ran = rcdiag(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err


def test_an_internal_error_exits_2_with_its_traceback(rcdiag, doubtful, monkeypatch):
    def crash(*_, **__):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("rcdiag.score", crash)
    ran = rcdiag("score", doubtful)
    assert ran.code == 2
    assert "a bug" in ran.err


class OutOfMemoryError(RuntimeError):
    """Stands for torch's error of a GPU."""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 8. EiB"),
        OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 EiB.\nMore lines"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 EiB"),
    ],
)
def test_too_little_memory_is_an_error_without_a_traceback(rcdiag, doubtful, monkeypatch, error):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr("rcdiag.score", fails)
    ran = rcdiag("score", doubtful)
    first, hint = ran.err.splitlines()[-2:]
    assert (ran.code, first) == (2, f"error: out of memory ({str(error).splitlines()[0]})")
    assert "a larger machine or GPU" in hint
    assert "Traceback" not in ran.err


def test_an_interrupt_exits_130_without_a_traceback(rcdiag, doubtful, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("rcdiag.score", interrupt)
    ran = rcdiag("score", doubtful)
    assert ran.code == 130
    assert "Traceback" not in ran.err


def test_a_command_terminated_as_it_ends_exits_130(monkeypatch, capsys):
    """The signal arrives after the command is done, while its handler is being removed."""
    before = signal.getsignal(signal.SIGTERM)
    set_handler = signal.signal

    def late(number, handler):
        if handler is before:
            monkeypatch.setattr(signal, "signal", set_handler)
            signal.raise_signal(signal.SIGTERM)  # the handler of the command runs
        return set_handler(number, handler)

    monkeypatch.setattr(signal, "signal", late)
    monkeypatch.setattr("cli.main._run", lambda: None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_command_line_loads_nothing_heavy_until_a_command_runs():
    heavy = ("torch", "transformers", "vllm", "matplotlib", "polars", "pyarrow", "scipy")
    code = f"import sys, cli.main; print([name for name in {heavy!r} if name in sys.modules])"
    assert in_a_process("-c", code).stdout == "[]\n"


def test_run_as_a_module_it_prints_one_document_and_exits_as_it_should(doubtful):
    ran = in_a_process("-m", "cli.main", "score", doubtful, "--json", "--fail-on", "warning")
    assert ran.returncode == 1
    assert json.loads(ran.stdout)["kind"] == "score"
    assert "Traceback" not in ran.stderr


def test_no_escape_codes_reach_a_pipe(doubtful):
    colours = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    ran = in_a_process("-m", "cli.main", "score", doubtful, **colours)
    assert ran.returncode == 0
    assert "\x1b" not in ran.stdout + ran.stderr
    assert "k3_kl" in ran.stdout


def test_a_closed_stdout_does_not_exit_1(doubtful):
    command = (
        f"{sys.executable} -m cli.main score {doubtful} --json | true; exit ${{PIPESTATUS[0]}}"
    )
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert ran.returncode != 1
    assert "Traceback" not in ran.stderr


def test_a_closed_stderr_does_not_exit_1(doubtful):
    """`rcdiag score ... --dry-run 2>&1 | head -1` succeeds."""
    command = f"{sys.executable} -m cli.main score {doubtful} --dry-run 2>&1 | true; "
    ran = subprocess.run(
        ["bash", "-c", command + "exit ${PIPESTATUS[0]}"], capture_output=True, check=False
    )
    assert ran.returncode == 0
