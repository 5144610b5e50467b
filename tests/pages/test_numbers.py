"""The page's script formats numbers as Python does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import rcdiag.pages
from rcdiag.formats import measured, number
from rcdiag.results import MetricValue

SCRIPTS = [
    Path(rcdiag.pages.__file__).parent / "script" / f"{name}.js" for name in ("base", "scales")
]
DRAWN = 400


@pytest.fixture(scope="module")
def script(browser):
    page = browser.new_page()
    page.set_content('<script type="application/json" id="page-data">{}</script>')
    page.add_script_tag(content="\n".join(path.read_text() for path in SCRIPTS))
    yield page
    page.close()


def numbers() -> list[float]:
    random = np.random.default_rng(0)
    sizes = 10 ** random.uniform(-6, 10, DRAWN) * random.choice([1.0, -1.0], DRAWN)
    near_one = 1 + random.choice([1.0, -1.0], DRAWN) * 10 ** random.uniform(-9, -1, DRAWN)
    return [0.0, 1.0, *sizes.tolist(), *near_one.tolist()]


def test_a_number_alone(script):
    values = numbers()
    written = script.evaluate(f"{json.dumps(values)}.map(number)")
    assert written == [number(value) for value in values]


def test_a_number_with_its_interval(script):
    random = np.random.default_rng(1)
    values = []
    for value in numbers():
        width = max(abs(value), 1e-3) * 10 ** random.uniform(-7, 1)
        low, high = value - width * random.random(), value + width * random.random()
        values += [(value, low, high), (value, None, high), (value, low, None)]
    written = script.evaluate(
        f"{json.dumps(values)}.map(([value, low, high]) => measured({{ value, low, high }}))"
    )
    assert written == [
        list(measured(MetricValue(value=value, low=low, high=high))) for value, low, high in values
    ]


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([1e-3, 1e3], ["0.001", "0.01", "0.1", "1", "10", "100", "1,000"]),
        ([1e-6, 1e-2], ["10⁻⁶", "10⁻⁵", "10⁻⁴", "10⁻³", "10⁻²"]),
        ([1e2, 1e6], ["10²", "10³", "10⁴", "10⁵", "10⁶"]),
    ],
)
def test_the_ticks_of_an_axis_have_one_notation(script, values, ticks):
    scale = f"makeScale({{ scale: 'log' }}, {json.dumps(values)})"
    assert (
        script.evaluate(f"(() => {{ const it = {scale}; return it.ticks.map(it.text); }})()")
        == ticks
    )
