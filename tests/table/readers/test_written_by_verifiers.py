"""Episodes written by verifiers' own classes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rcdiag.table.readers.prime_rl import PRIME_RL
from tests.table.readers.rows_of import drawn_floats, rows_of
from tests.table.readers.test_prime_rl import episode, node, trace

pytestmark = pytest.mark.oracle

PACKAGES = ("verifiers==0.4.0", "prime-pydantic-config", "renderers")
# Takes episodes as JSON and a file. Packages that verifiers imports, and that writing does not
# use, are replaced by empty ones.
WRITE = """
import importlib.machinery, json, sys
from unittest.mock import MagicMock

class Unused:
    names = {"prime_sandboxes", "prime_tunnel", "prime_runs", "tenacity", "tomli_w", "math_verify"}
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        return module
    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Unused())
from verifiers.v1.episode import WireEpisode

with open(sys.argv[2], "w") as file:
    for made in json.loads(sys.argv[1]):
        file.write(json.dumps(WireEpisode.model_validate(made).to_record()) + "\\n")
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("verifiers")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    subprocess.run([*pip, *PACKAGES], check=True, capture_output=True)
    return folder


def test_episodes_are_read_cell_by_cell(tmp_path, packages):
    rng = np.random.default_rng(0)
    r, advantages = drawn_floats(rng, 5), [0.5, -0.5, 0.25, 1.0, 2.0]
    nodes = [
        node(None, [1, 2], [0, 0]),
        node(0, [3, 4, 5], [0, 1, 1], r[:2], advantages=advantages[:2]),
        node(1, [6], [0]),
        node(2, [7, 8], [0, 1], r[2:3], advantages=advantages[2:3]),
        node(1, [9, 10], [1, 1], r[3:], advantages=advantages[3:]),
    ]
    made = [episode(trace(nodes), start=3, end=3), episode(trace(nodes[:2]), start=3, end=4)]
    file = tmp_path / "traces.jsonl"
    ran = subprocess.run(
        [sys.executable, "-c", WRITE, json.dumps(made), str(file)],
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    result = rows_of(PRIME_RL, file)
    rounded = np.round(r, 4).astype(np.float32).tolist()
    assert result.column("prompt_ids") == [[1, 2, 3]] * 3
    assert result.column("response_ids") == [[4, 5, 6, 7, 8], [4, 5, 9, 10], [4, 5]]
    assert result.column("response_mask") == [[1, 1, 0, 0, 1], [1] * 4, [1, 1]]
    assert result.column("rollout_log_probs") == [
        [*rounded[:2], 0.0, 0.0, rounded[2]],
        [*rounded[:2], *rounded[3:]],
        rounded[:2],
    ]
    assert result.column("advantages")[1] == [0.5, -0.5, 1.0, 2.0]
    assert result.column("reward") == [2.5] * 3
    assert result.column("temperature") == [0.7] * 3
    assert result.column("group_id") == ["g1"] * 3
    assert result.column("step") == [3] * 3
    assert result.column("policy_version") == [3, 3, None]
    assert result.policies == {"rollout": {"decimals": 4}}
