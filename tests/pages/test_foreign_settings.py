"""Figures are drawn with fixed settings, whatever settings the current folder holds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rcdiag
from tests.results.stored import stored

DRAW = """
import sys
import rcdiag
page = "page.html" if "score" in sys.argv[1] else None
rcdiag.report(sys.argv[1], page, plots="plots", figures=sys.argv[2:])
"""
FIGURES = {
    "score": ["mismatch-by-position", "tokens-beyond-ratio"],
    "sweep": ["family-token_tis"],
}


def drawn(kind: str, folder: Path, settings: bytes) -> subprocess.CompletedProcess[str]:
    """Draw figures in a folder with a matplotlibrc, and a `latex` on PATH that creates a file."""
    folder.mkdir()
    file = folder.parent / f"{kind}.json"
    file.write_text(stored(kind))
    programs = folder.parent / "bin"
    programs.mkdir(exist_ok=True)
    for name in ("latex", "xelatex", "pdflatex", "lualatex"):
        (programs / name).write_text(f"#!/bin/sh\ntouch {folder.parent}/ran\nexit 1\n")
        (programs / name).chmod(0o755)
    (folder / "matplotlibrc").write_bytes(settings)
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.getcwd(),
        "SOURCE_DATE_EPOCH": "0",
    }
    return subprocess.run(
        [sys.executable, "-c", DRAW, str(file), *FIGURES[kind]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def written(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "matplotlibrc"
    }


@pytest.mark.parametrize("kind", ["score", pytest.param("sweep", marks=pytest.mark.slow)])
def test_a_matplotlibrc_changes_no_figure_and_runs_nothing(tmp_path, kind):
    settings = b"text.usetex: True\ntext.latex.preamble: \\input{x}\nlines.linewidth: 9\n"
    settings += b"axes.titlesize: 40\nxtick.labelsize: 30\npath.sketch: 9, 9, 9\n"
    ran = drawn(kind, tmp_path / "foreign", settings)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    assert not (tmp_path / "ran").exists()
    page = tmp_path / "plain" / "page.html" if kind == "score" else None
    rcdiag.report(
        tmp_path / f"{kind}.json", page, plots=tmp_path / "plain" / "plots", figures=FIGURES[kind]
    )
    assert written(tmp_path / "foreign") == written(tmp_path / "plain")


def test_a_matplotlibrc_that_cannot_be_read_is_named(tmp_path):
    ran = drawn("score", tmp_path / "foreign", b"lines.linewidth: \xff\xfe\n")
    assert "RcdiagError" in ran.stderr
    assert "its matplotlibrc cannot be read" in ran.stderr
