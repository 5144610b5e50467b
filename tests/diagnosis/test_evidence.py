"""Words of evidence say what a number tells, and not more."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rcdiag.diagnosis.causes.evidence import ratio_fact
from rcdiag.pages.headline import fact_text


@pytest.mark.parametrize(
    ("mean", "z", "reads"),
    [
        (1.0, 0.0, "near 1, as where the recorded law sampled"),
        (0.98, -1.0, "near 1, as where the recorded law sampled"),
        (0.373, -1.84, "its error is too large to tell which law sampled"),
    ],
)
def test_a_mean_with_a_large_error_tells_of_no_law(mean, z, reads):
    entry = ratio_fact(SimpleNamespace(ratio_mean=(mean, z)))
    assert entry == {"name": "E[ratio]", "value": mean, "z": z, "reads": reads}


def test_a_ratio_that_is_not_1_is_read_as_the_cause_reads_it():
    entry = ratio_fact(SimpleNamespace(ratio_mean=(2.0, 9.0)), otherwise="not 1")
    assert entry["reads"] == "not 1"


def test_names_that_end_in_a_number_do_not_run_into_their_values():
    entry = {"name": "share", "step_4": 0, "bf16_pass": 2, "reads": "older weights"}
    assert fact_text(entry) == "share: step_4 = 0, bf16 pass 2 (older weights)"
