"""The first screen says which causes are ruled out, and by which evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from rcdiag.diagnosis.ruled_out import RULED_OUT_BY

SAMPLES = Path(__file__).parents[2] / "sample_data"


@pytest.mark.parametrize("name", ["stale", "temperature", "rollouts"])
def test_the_first_screen_lists_ruled_out_causes_with_evidence(rcdiag, name):
    out = rcdiag("score", SAMPLES / f"{name}.parquet").out
    (line,) = [one for one in out.splitlines() if one.startswith("not  ")]
    assert "shift-by-one" in line
    assert "(why: -v)" in line
    out = rcdiag("score", SAMPLES / f"{name}.parquet", "-v").out
    assert RULED_OUT_BY["rows-swapped"] in " ".join(out.split())


def test_a_single_declared_temperature_rules_out_temperature_causes(rcdiag):
    """Its log-ratios are large, and its metadata state temperature 1 throughout."""
    document = rcdiag("score", SAMPLES / "stale.parquet", "--json").document
    against = document["diagnosis"]["ruled_out"]
    assert {"temperature-raw-recorded", "shift-some-rows", "rows-swapped"} <= set(against)
    recorded_raw = rcdiag("score", SAMPLES / "temperature.parquet", "--json").document
    assert "trainer-without-temperature" not in recorded_raw["diagnosis"]["ruled_out"]
