"""A traced run writes only its outputs and caches, and leaves no temporary file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest

from tests.cli.test_hostile_input import rows_of

TRACED = """
import json, os, sys
log = open(sys.argv.pop(1), "w")
here = os.getpid()
def hook(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        path, mode, flags = arguments
        if (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            log.write(json.dumps([event, os.path.abspath(os.fsdecode(path))]) + "\\n")
    elif event == "os.remove" and arguments[1] != -1:
        pass  # named within an open folder: shutil.rmtree tells of that folder
    elif event == "os.rmdir" and arguments[1] != -1:
        pass
    elif event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree", "os.link"):
        log.write(json.dumps([event, os.path.abspath(os.fsdecode(arguments[0]))]) + "\\n")
    elif event in ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect"):
        log.write(json.dumps([event, repr(arguments)]) + "\\n")
sys.addaudithook(hook)
from cli.main import main
try:
    main()
finally:
    log.flush()
"""
COMMANDS = {
    "score": [
        *("score", "{in}/table.parquet", "--html", "{out}/a.html", "--csv", "{out}/a.csv"),
        *("--plots", "{out}/plots", "--figure", "concentration", "--result", "{out}/r"),
    ],
    "compare": ["compare", "{in}/table.parquet", "{in}/table.parquet", "--result", "{out}/r"],
    "convert": ["convert", "{in}/table.parquet", "-o", "{out}/c.parquet"],
    "sweep": ["sweep", "{in}/table.parquet", "--thresholds", "4", "--result", "{out}/r"],
    "refused": ["score", "{in}/none.parquet", "--result", "{out}/r"],
}


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_run_writes_what_it_was_asked_for(tmp_path, name):
    import pyarrow.parquet as pq

    folders = {key: tmp_path / key for key in ("in", "out", "home", "tmp", "cwd")}
    for folder in folders.values():
        folder.mkdir()
    pq.write_table(rows_of(), folders["in"] / "table.parquet")
    before, fonts = content(folders["in"]), matplotlib.get_configdir()
    trace = tmp_path / "trace"
    command = [
        word.replace("{in}", str(folders["in"])).replace("{out}", str(folders["out"]))
        for word in COMMANDS[name]
    ]
    environment = {
        **os.environ,
        "HOME": str(folders["home"]),
        "TMPDIR": str(folders["tmp"]),
        "PYTHONPATH": os.getcwd(),
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLCONFIGDIR": fonts,  # reuse it: building the list of fonts takes longer than the run
    }
    ran = subprocess.run(
        [sys.executable, "-c", TRACED, str(trace), *command],
        cwd=folders["cwd"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == (2 if name == "refused" else 0), ran.stderr
    allowed = (
        str(folders["out"]),
        str(folders["tmp"]),
        str(folders["home"] / ".cache"),
        fonts,
        os.devnull,
        "/dev/",
        "/proc/self",
        "('fc-list', ",  # the list of fonts, which matplotlib asks the system for once
        "('git', ['git', '--git-dir=",  # the commit of a checkout of rcdiag, for provenance
    )
    events = [json.loads(line) for line in trace.read_text().splitlines()]
    assert not [event for event in events if not event[1].startswith(allowed)]
    assert content(folders["in"]) == before
    assert not list(folders["cwd"].iterdir())
    assert not list(folders["tmp"].iterdir())
    assert bool(list(folders["out"].iterdir())) == (name != "refused")
