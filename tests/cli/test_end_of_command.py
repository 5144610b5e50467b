"""What a command's process prints when it ends: nothing of the libraries that it has loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[2] / "sample_data"


@pytest.mark.slow
@pytest.mark.engine
def test_a_model_and_a_page_in_one_process_end_without_a_word(tmp_path):
    """Libraries of torch print what they think has leaked where no last collection is allowed."""
    table, page = SAMPLES / "stale.parquet", tmp_path / "page.html"
    words = ["diagnose", table, "--model", SAMPLES / "policy/step_8", "--budget", "0.01"]
    command = [sys.executable, "-m", "cli.main", *map(str, words), "--html", str(page), "-q"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert page.stat().st_size > 10_000
    assert ran.stderr == ""
