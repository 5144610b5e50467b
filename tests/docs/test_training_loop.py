"""The training loop in examples/ runs and records a table that every command reads."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rcdiag
from tools.docs.commands import ROOT


@pytest.mark.slow
def test_the_loop_records_a_table(tmp_path):
    pytest.importorskip("torch")
    script = ROOT / "examples" / "training_loop.py"
    command = [sys.executable, str(script), str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    table = rcdiag.open_table(tmp_path)
    assert table.num_rows == 4 * 64
    result = rcdiag.score(table)
    assert list(result.steps) == ["0", "1", "2", "3"]
    assert 0 < result.mismatch["k3_kl"].value < 0.01
    assert result.diagnosis.verdict in ("healthy", "correctable")
    assert rcdiag.replay(table).presets
