"""Libraries print nothing when the process of a command ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[2] / "sample_data"


@pytest.mark.slow
@pytest.mark.engine
def test_libraries_print_nothing_at_the_end_of_a_process_with_model_and_page(tmp_path):
    """Without a final garbage collection, torch's libraries print supposed leaks."""
    table, page = SAMPLES / "stale.parquet", tmp_path / "page.html"
    words = ["diagnose", table, "--model", SAMPLES / "policy/step_8", "--budget", "0.01"]
    command = [sys.executable, "-m", "cli.main", *map(str, words), "--html", str(page), "-q"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert page.stat().st_size > 10_000
    assert ran.stderr == ""
