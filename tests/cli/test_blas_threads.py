"""Idle threads of numpy's OpenBLAS sleep instead of spinning."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

NAME = "OPENBLAS_THREAD_TIMEOUT"
SEEN = f"""
import os, sys

class Watch:
    def find_spec(self, name, path, target=None):
        if name == "numpy":
            print(os.environ.get({NAME!r}))

sys.meta_path.insert(0, Watch())
sys.argv = ["rcdiag", "score", "no/such.parquet"]
from cli.main import main
main()
"""


@pytest.mark.parametrize(("own", "seen"), [(None, "4"), ("20", "20")])
def test_numpy_is_loaded_with_threads_that_sleep(own: str | None, seen: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != NAME}
    if own is not None:
        environment[NAME] = own
    run = subprocess.run(
        [sys.executable, "-c", SEEN], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 2, run.stderr
    assert run.stdout.split() == [seen]
