"""Plugin packages, installed for the duration of a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent


def install(folder: Path, name: str, source: str, **modules: str) -> Path:
    """Write a package, as installed by pip, whose function `register` is a plugin of rcdiag.

    `source` is the package's own code, `modules` that of the modules in it, by their names.
    """
    about, package = folder / f"{name}-1.0.dist-info", folder / name
    about.mkdir(parents=True)
    package.mkdir()
    (package / "__init__.py").write_text(dedent(source))
    for module, code in modules.items():
        (package / f"{module}.py").write_text(dedent(code))
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[rcdiag.plugins]\n{name} = {name}:register\n")
    return folder


def rcdiag_with(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process that finds the packages in `folder`."""
    return _process(folder, "-m", "cli.main", *map(str, arguments))


ONE_AFTER_THE_OTHER = """
import contextlib, io, json, sys
from cli.main import main

printed = []
for words in json.loads(sys.argv[1]):
    sys.argv, out = ["rcdiag", *words], io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            main()
    except SystemExit as stop:
        assert not stop.code, (words, stop.code)
    printed.append(out.getvalue())
json.dump(printed, sys.stdout)
"""


def printed_with(folder: Path, *commands: Sequence[object]) -> list[str]:
    """Run several commands in one process that finds the packages in `folder`; returns stdout."""
    words = [[str(word) for word in command] for command in commands]
    ran = _process(folder, "-c", ONE_AFTER_THE_OTHER, json.dumps(words))
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def _process(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = [str(folder), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "COLUMNS": "300"},
        capture_output=True,
        text=True,
        check=False,
    )
