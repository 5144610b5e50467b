"""Every number in a caption or sentence of the page is in the result that it is made from."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from rcdiag.formats import effective, fraction, measured, number, percentage
from rcdiag.pages.blocks import Figure, Gauge, Lines, Paragraph, Tab
from rcdiag.pages.headline import Headline
from rcdiag.pages.merge import DumpResults, merged
from rcdiag.pages.page import _tabs
from rcdiag.results import MetricValue, to_json
from tests.pages.makers import FIRST, MAKERS, OTHERS, PAGES
from tests.pages.parts import parts_of

# Constants: the level of intervals, a factor in a name, ideals of 0 and 1.
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


def measurements(value: Any) -> Iterator[str]:
    """Return all numbers with intervals of a document, as written on the page."""
    if isinstance(value, dict):
        if {"value", "low", "high"} <= value.keys() and isinstance(value["value"], float):
            ends = {name: value[name] for name in ("value", "low", "high")}
            if not any(isinstance(end, str) for end in ends.values()):
                for text in measured(MetricValue(**ends)):
                    yield from NUMBER.findall(text)
        for item in value.values():
            yield from measurements(item)
    elif isinstance(value, list):
        for item in value:
            yield from measurements(item)


def counts(value: Any) -> Counter[tuple[str, str]]:
    """Count every word under every name: `health.verdict` is `warning` in 15 presets."""
    found: Counter[tuple[str, str]] = Counter()
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, item in items:
        if isinstance(item, str):
            found[str(name), item] += 1
        elif isinstance(item, (dict, list)):
            found += counts(item)
    return found


def sizes(value: Any) -> Iterator[int]:
    """Return the sizes of all lists and objects."""
    if isinstance(value, (dict, list)):
        yield len(value)
        for item in value.values() if isinstance(value, dict) else value:
            yield from sizes(item)


def sentences(part: Any) -> list[str]:
    """Return the sentences of a part of a page."""
    if isinstance(part, Paragraph):
        return [part.text]
    if isinstance(part, Tab):
        return [part.heading]
    if isinstance(part, Headline):
        return [part.summary, part.numbers, *part.evidence]
    return [item for item in part.items if isinstance(item, str)] if isinstance(part, Lines) else []


def of_page(name: str) -> tuple[DumpResults, list[Any]]:
    """Return the results that a page is made of, and their documents."""
    made = MAKERS[name]()
    dump = merged(made if isinstance(made, list) else [made])
    return dump, [json.loads(to_json(result)) for result in dump.results]


def forms_of(numbers: list[Any], forms: Iterable[Callable[[Any], str]]) -> set[str]:
    """Return all ways in which a sentence may write these numbers."""
    written = {form(leaf) for leaf in numbers for form in forms}
    return written | {f"{leaf:,}" for leaf in numbers} | {f"{abs(leaf):g}" for leaf in numbers}


# Hostile documents hold numbers that belong to none of their tables.
TRUE = [
    FIRST,
    *(page for name, page in zip(OTHERS, PAGES[1:], strict=True) if "hostile" not in name),
]


@pytest.mark.parametrize("name", TRUE)
def test_numbers_in_sentences_are_in_the_documents_or_are_counts(name):
    dump, documents = of_page(name)
    numbers = [leaf for document in documents for leaf in leaves(document)]
    written = forms_of(numbers, (number, percentage, fraction))
    for document in documents:
        written |= set(measurements(document))
        level = counts(document.get("presets", {}))
        written |= {f"{many:,}" for many in (*level.values(), *sizes(document))}
    written |= {
        effective(share * dump.largest.num_sequences) for share in numbers if 0 < share <= 1
    }
    if dump.score is not None:
        shown = dump.score.readable_sequences
        lengths = (sum(one.num_tokens for one in shown), sum(len(one.log_ratio) for one in shown))
        written |= {f"{tokens:,}" for tokens in lengths}
    spoken = " ".join(text for document in documents for text in texts(document))
    told = [sentence for part in parts_of(_tabs(dump)) for sentence in sentences(part)]
    assert len(told) > 2
    for sentence in told:
        for token in NUMBER.findall(sentence):
            plain = token.strip("%,")
            assert {token, plain} & (written | SAID) or plain in spoken, (token, sentence)


@pytest.mark.parametrize("name", PAGES)
def test_numbers_in_captions_are_in_the_documents(name):
    dump, documents = of_page(name)
    numbers = [leaf for document in documents for leaf in leaves(document)]
    written = forms_of(numbers, (number, percentage))
    written |= {text for document in documents for text in measurements(document)}
    spoken = " ".join(text for document in documents for text in texts(document))
    figures = [part for part in parts_of(_tabs(dump)) if isinstance(part, Figure)]
    for figure in figures:
        for token in NUMBER.findall(figure.caption):
            known = token in written or token.strip("%") in SAID or token.strip("%") in spoken
            assert known, (figure.name, token, figure.caption)
    assert not any("dark" in figure.caption or "pale" in figure.caption for figure in figures)


def test_a_gauge_shows_its_number_interval_and_level():
    dump = merged([MAKERS["score-temperature"]()])
    gauges = {part.name: part for part in parts_of(_tabs(dump)) if isinstance(part, Gauge)}
    assert list(gauges) == ["k3_kl", "ratio_outside_2", "ess_seq", "kappa"]
    k3 = dump.score.mismatch["k3_kl"]
    value, interval = measured(k3)
    assert gauges["k3_kl"].value == value
    assert f"95% interval {interval}" in gauges["k3_kl"].about
    assert gauges["k3_kl"].level == k3.level
    del gauges["kappa"]  # which is judged by the value in its interval nearest to 1
    for gauge in gauges.values():
        levels = [level for start, end, level in gauge.bands if start <= gauge.at <= end]
        assert gauge.level in (*levels, "unknown")
