"""Captures written by tinker-cookbook's own store and sink."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rcdiag.table.readers.tinker import TINKER
from tests.table.readers.rows_of import rows_of
from tests.table.readers.test_tinker import call

pytestmark = pytest.mark.oracle

VERSION = "0.6.1"
# Takes the calls as JSON and a folder; writes both forms of a capture into it.
WRITE = """
import json, sys
from tinker_cookbook.capture.exporter import JsonlFileSink
from tinker_cookbook.capture.store.client import wire_rows_from_sample_record
from tinker_cookbook.capture.store.db import CaptureDB

class Folder:
    def append(self, path, content):
        with open(f"{sys.argv[2]}/sample.jsonl", "ab") as file:
            file.write(content)

calls = json.loads(sys.argv[1])
JsonlFileSink(Folder()).export(calls)
store = CaptureDB(f"{sys.argv[2]}/capture.sqlite")
for record in calls:
    store.ingest_wire(wire_rows_from_sample_record(record))
store.close()
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tinker")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    subprocess.run([*pip, f"tinker-cookbook=={VERSION}"], check=True, capture_output=True)
    return folder


def test_both_forms_are_read_cell_by_cell(tmp_path, package):
    float32 = [-0.20000000298023224, -1.0999999046325684]
    calls = [
        call([1, 2], ([3, 4], float32), seq=1),
        call([1, 2], ([5], [-0.5]), seq=2, scope={"traj_idx": 1}),
        call([1, 2, 3, 4, 6], ([7], [-0.25]), seq=3),
        call([1], status="error", seq=4, scope={"traj_idx": 2}),
        call([9], ([8], [-2.0]), seq=5, scope={"run_attempt": 0}),
        call([9], ([8], [-2.0]), ([7], [-1.0]), seq=6, scope={"iteration": 5}),
    ]
    ran = subprocess.run(
        [sys.executable, "-c", WRITE, json.dumps(calls), str(tmp_path)],
        env={"PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    lines = rows_of(TINKER, tmp_path / "sample.jsonl")
    store = rows_of(TINKER, tmp_path / "capture.sqlite")
    assert lines.rows == store.rows
    assert lines.column("response_ids") == [[3, 4, 6, 7], [5], [8], [7]]
    assert lines.column("response_mask") == [[1, 1, 0, 1], [1], [1], [1]]
    assert lines.rows[0]["rollout_log_probs"] == [*float32, 0.0, -0.25]
    assert lines.column("step") == [4, 4, 5, 5]
    assert lines.column("group_id") == ["run/train/4/2"] * 2 + ["run/train/5/2"] * 2
    assert set(lines.column("temperature")) == {0.7}
