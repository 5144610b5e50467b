"""A real Ray cluster on this machine, and functions that wait for its processes."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from rcdiag.engines.command.supervisor import descendants

LIMIT = 240.0  # seconds for a whole run, or until it has reached the state that a test needs
Value = TypeVar("Value")


@pytest.fixture
def cluster(monkeypatch) -> Iterator[Any]:
    """A cluster of two idle nodes with one core each."""
    from ray.cluster_utils import Cluster

    # Ray's default is 15, with which tasks hardly run on a busy machine.
    monkeypatch.setenv("RAY_worker_niceness", "0")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    yield made
    made.shutdown()


def wait_for(run: subprocess.Popen[str], ready: Callable[[], Value]) -> Value:
    """Wait until `ready` returns a true value, and return it; fail if the run ends before."""
    end = time.monotonic() + LIMIT
    while not (value := ready()):
        assert run.poll() is None, run.communicate()[1]
        assert time.monotonic() < end, "nothing happens"
        time.sleep(0.005)
    return value


def processes(pattern: str) -> list[int]:
    """Return the ids of descendant processes whose command line matches a pattern.

    Only descendants, since tests kill them and other runs have processes of the same names.
    """
    command = ["pgrep", "-f", pattern]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    return sorted(descendants(os.getpid()) & {int(line) for line in listed.stdout.split()})
