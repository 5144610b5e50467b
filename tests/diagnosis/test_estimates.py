"""Sentences about causes have no more digits than the estimate supports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from rcdiag.formats import mean_ratio, rough, share_of
from rcdiag.table.opening import open_table
from rcdiag.usecases.score import score

SAMPLES = Path(__file__).parents[2] / "sample_data"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (2.34, "2.3"),
        (14.6, "15"),
        (242.501, "240"),
        (18_993.0, "19,000"),
        (999_999.0, "1 million"),
        (18_993_479.0, "19 million"),
        (2.512e9, "2.5 billion"),
        (3.14e14, "3.1e+14"),
        (float("inf"), "inf"),
    ],
)
def test_estimates_have_two_significant_digits(value, words):
    assert rough(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1.0, "1.0000"),
        (1.00417, "1.0042"),
        (1.000013, "1.000013"),
        (0.8744, "0.874"),
        (1.52, "1.520"),
        (242.501, "240"),
    ],
)
def test_mean_ratios_say_how_far_from_1_they_are(value, words):
    assert mean_ratio(value) == words


@pytest.mark.parametrize(
    ("share", "words"),
    [(1.0, "all rows"), (0.996, "all rows"), (0.994, "99% of the rows"), (0.27, "27% of the rows"),
     (0.004, "under 1% of the rows")],
)  # fmt: skip
def test_a_share_is_written_as_a_percentage_of_its_whole(share, words):
    assert share_of(share) == words


def test_a_collapse_at_the_last_step_is_stated(tmp_path):
    """Noise of a thousandth for nine steps, then of half a nat."""
    random = np.random.default_rng(0)
    table = pl.read_parquet(SAMPLES / "rollouts.parquet")
    last = table["step"].max()
    rows = [
        [
            min(value + float(noise), 0.0)
            for value, noise in zip(
                row, random.normal(0.0, 0.5 if step == last else 1e-5, len(row)), strict=True
            )
        ]
        for row, step in zip(table["old_log_probs"], table["step"], strict=True)
    ]
    series = pl.Series("rollout_log_probs", rows, dtype=pl.List(pl.Float32))
    table.with_columns(series).write_parquet(tmp_path / "collapse.parquet")
    diagnosis = score(open_table(tmp_path / "collapse.parquet")).diagnosis
    times = diagnosis.summary.split("k3 is ")[1].split(" its median")[0]
    assert times.endswith(("million times", "billion times"))
    digits = times.split()[0].replace(".", "").strip("0")
    assert len(digits) <= 2
