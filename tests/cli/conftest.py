"""Running the command line in this process, and tables for it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
import typer

from cli.main import main
from tests.builders import ids_like, write_table


@dataclass(frozen=True)
class Ran:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Stdout as one strict JSON document."""

        def refuse(literal: str) -> None:
            raise AssertionError(f"{literal} is no JSON")

        return json.loads(self.out, parse_constant=refuse)

    def refuses(self, *words: str) -> None:
        """Check that the command printed only an error, and that it contains all these words."""
        assert (self.code, self.out) == (2, ""), self.err
        assert "\nerror: " in f"\n{self.err}"
        assert "Traceback" not in self.err
        for word in words:
            assert word in self.err


Rcdiag = Callable[..., Ran]
# Built once: Typer builds all commands at every start, which is slower than many tests.
built_once = cache(typer.main.get_command)


@pytest.fixture
def rcdiag(monkeypatch, capsys) -> Rcdiag:
    """`rcdiag(*arguments)`, with the exit code and both streams."""

    def run(*arguments: object) -> Ran:
        monkeypatch.setattr("typer.main.get_command", built_once)
        monkeypatch.setattr(sys, "argv", ["rcdiag", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        output = capsys.readouterr()
        return Ran(int(stopped.value.code or 0), output.out, output.err)

    return run


BEHAVIOR = [[-5.0, -5.0, -5.0], [-5.0], [-4.0, -4.5]]


def dump_with_shift(path: Path, shift: float, **columns: object) -> Path:
    """Write three sequences whose log-ratios are +shift and -shift."""
    target = [[a + shift * (-1) ** i for i, a in enumerate(row)] for row in BEHAVIOR]
    return write_table(
        path,
        response_ids=ids_like(BEHAVIOR),
        rollout_log_probs=BEHAVIOR,
        old_log_probs=target,
        **columns,
    )


@pytest.fixture(scope="module")
def run_once() -> Rcdiag:
    """`rcdiag(*arguments)` for fixtures whose files many tests read."""

    def run(*arguments: object) -> Ran:
        with pytest.MonkeyPatch.context() as patch:
            out, err = (TextIOWrapper(BytesIO(), "utf-8", write_through=True) for _ in range(2))
            patch.setattr("typer.main.get_command", built_once)
            patch.setattr(sys, "argv", ["rcdiag", *map(str, arguments)])
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            with pytest.raises(SystemExit) as stopped:
                main()
        texts = (stream.buffer.getvalue().decode() for stream in (out, err))
        return Ran(int(stopped.value.code or 0), *texts)

    return run


@pytest.fixture
def clean(tmp_path) -> Path:
    """A table of equal policies, without findings."""
    return dump_with_shift(tmp_path / "clean.parquet", 0.0)


@pytest.fixture
def doubtful(tmp_path) -> Path:
    """A table with findings of severity warning and none of error."""
    return dump_with_shift(tmp_path / "doubtful.parquet", 0.035)


@pytest.fixture
def bad(tmp_path) -> Path:
    """A table with findings of severity error."""
    return dump_with_shift(tmp_path / "bad.parquet", 1.0)
