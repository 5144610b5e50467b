"""Examples in the documentation of result fields equal what the code computes."""

from __future__ import annotations

from typing import Any

import pytest

from rcdiag.results import MetricValue
from rcdiag.results.coefficients import Coefficients, Shares
from rcdiag.results.correction import CorrectionNumbers, CorrectionResult
from rcdiag.results.doc import Doc, documented_fields
from rcdiag.results.model_step import AfterStep, GradientReport
from rcdiag.results.sweep import SweepRow
from tests.results import worked

# Beginning of a field's example -> numbers of that update, correction or row.
WORKED = {
    "sequence weights truncated at 2, token_k1 0.6_1.6 (verl-0.9), log-ratios": worked.correction,
    "log-ratios [0.1, -0.1, 1.5], [-1.2, -0.5] under token_k1 0.6_1.6": worked.correction,
    "sequences of ratios e^1.5 and e^-1.7": worked.correction,
    "the longer of two sequences is kept": worked.correction,
    "of two sequences the one with the higher reward is kept": worked.correction,
    "geo_rs_seq_tis with rs_lower 0.5": lambda: worked.named(worked.sweep_row()),
    "coefficients [-0.2": worked.coefficients,
    "old to new log-ratios": worked.after,
    "gradients of three groups": worked.gradient,
}
OWNERS = (
    *(CorrectionNumbers, CorrectionResult, SweepRow),
    *(Coefficients, Shares, AfterStep, GradientReport),
)


def found() -> list[tuple[type, str, Doc, str]]:
    return [
        (owner, field.name, field.doc, start)
        for owner in OWNERS
        for field in documented_fields(owner)
        for start in WORKED
        if (field.doc.example or "").startswith(start)
    ]


def written(value: Any) -> str:
    """Parse a number, list or dictionary as written in the examples."""
    if isinstance(value, MetricValue):
        return written(value.value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {_within(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(written, value))
    return f"{value:.4g}"


def _within(value: Any) -> str:
    return f"[{written(value)}]" if isinstance(value, list) else written(value)


@pytest.mark.parametrize(
    ("owner", "name", "doc", "start"),
    [pytest.param(*each, id=f"{each[0].__name__}.{each[1]}") for each in found()],
)
def test_an_example_equals_what_the_code_computes(owner, name, doc, start):
    value = WORKED[start]()[name]
    assert doc.example.endswith(f": {written(value)}")


def test_every_part_has_examples():
    assert {owner for owner, *_ in found()} == set(OWNERS)
    assert {start for *_, start in found()} == set(WORKED)
    assert len(found()) > 50
