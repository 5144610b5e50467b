"""A real Ray cluster on this machine, and waiting for what a run does there."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from rcdiag.engines.command.supervisor import descendants

LIMIT = 240.0  # seconds for a whole run, or until it has come as far as a test needs it
Value = TypeVar("Value")


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two nodes with a core each; nothing runs on them yet."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    yield made
    made.shutdown()


def wait_for(run: subprocess.Popen[str], ready: Callable[[], Value]) -> Value:
    """Wait until `ready` returns something true, and return it; the run must not end before."""
    end = time.monotonic() + LIMIT
    while not (value := ready()):
        assert run.poll() is None, run.communicate()[1]
        assert time.monotonic() < end, "nothing happens"
        time.sleep(0.005)
    return value


def processes(pattern: str) -> list[int]:
    """Return the ids of the processes that stem from this one, whose command line has a pattern.

    Tests kill what they find, and other runs on this machine have processes of the same names.
    """
    command = ["pgrep", "-f", pattern]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    return sorted(descendants(os.getpid()) & {int(line) for line in listed.stdout.split()})
