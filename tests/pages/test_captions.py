"""Every number of a caption or sentence of the page stands in the result that it is made from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from rcdiag.pages.blocks import Figure, Gauge
from rcdiag.pages.formats import number, percentage
from rcdiag.pages.merge import merged
from rcdiag.pages.page import _parts, _tabs
from rcdiag.results import to_json
from tests.pages.makers import MAKERS, PAGES

# Numbers that are no measurement: the level of intervals, a factor in a name, an ideal of 0 and 1.
SAID = {"95", "0", "1", "2", "5", "100", "400", "0.01"}
NUMBER = re.compile(r"(?<![\w.-])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?%?")


def leaves(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("name", PAGES)
def test_numbers_of_captions_stand_in_the_documents(name):
    made = MAKERS[name]()
    dump = merged(made if isinstance(made, list) else [made])
    documents = [json.loads(to_json(result)) for result in dump.results]
    numbers = [leaf for document in documents for leaf in leaves(document)]
    written = {form(leaf) for leaf in numbers for form in (number, percentage)}
    written |= {f"{leaf:,}" for leaf in numbers} | {f"{abs(leaf):g}" for leaf in numbers}
    spoken = " ".join(text for document in documents for text in texts(document))
    figures = [part for part in _parts(_tabs(dump)) if isinstance(part, Figure)]
    for figure in figures:
        for token in NUMBER.findall(figure.caption):
            known = token in written or token.strip("%") in SAID or token.strip("%") in spoken
            assert known, (figure.name, token, figure.caption)
    assert not any("dark" in figure.caption or "pale" in figure.caption for figure in figures)


def test_a_gauge_shows_its_number_interval_and_level():
    dump = merged([MAKERS["score-temperature"]()])
    gauges = {part.name: part for part in _parts(_tabs(dump)) if isinstance(part, Gauge)}
    assert list(gauges) == ["k3_kl", "ratio_outside_2", "ess_seq", "kappa"]
    k3 = dump.score.mismatch["k3_kl"]
    assert gauges["k3_kl"].value == number(k3.value)
    assert f"{number(k3.low)} to {number(k3.high)}" in gauges["k3_kl"].about
    assert gauges["k3_kl"].level == k3.level
    del gauges["kappa"]  # which is judged by the value of its interval that is nearest to 1
    for gauge in gauges.values():
        levels = [level for start, end, level in gauge.bands if start <= gauge.at <= end]
        assert gauge.level in (*levels, "unknown")
