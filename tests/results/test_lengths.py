"""Parallel lists of a result are refused if their lengths differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rcdiag.errors import RcdiagError
from rcdiag.results import from_json, to_json
from rcdiag.table.opening import open_table
from rcdiag.usecases.score import score
from tests.results.stored import stored


def inner(document: Any, place: str) -> tuple[Any, Any]:
    """Return the container of the value at a path, and the last name of the path."""
    *path, last = [int(part) if part.isdigit() else part for part in place.split("/")]
    for part in path:
        document = document[part]
    return document, last


def dotted(place: str) -> str:
    return place.replace("/", ".")


@pytest.mark.parametrize("change", [lambda some: some[:-1], lambda some: [*some, some[-1]]])
@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("score", "figures/paths/0/sums"),
        ("score", "figures/log_ratio_histogram/counts"),
        ("score", "figures/geometric_log_ratio"),
        ("score", "worst_sequences/0/token_ids"),
        ("score", "worst_sequences/0/log_ratio"),
        ("compare", "ladder/rungs"),
        ("sweep", "length_quartiles"),
        ("sweep", "forecast/seq_bounds"),
        ("sweep", "families/token_tis/rows/2/kept_by_length"),
        ("sweep", "families/token_tis/configurations/verl/entries"),
        ("replay", "presets/disabled/shares/by_length"),
        ("replay", "presets/naive/shares/histogram/counts"),
    ],
)
def test_a_list_of_wrong_length_is_refused_by_its_name(kind, place, change):
    document = json.loads(stored(kind))
    holder, last = inner(document, place)
    holder[last] = change(holder[last])
    with pytest.raises(RcdiagError) as raised:
        from_json(json.dumps(document), "changed.json")
    many = len(holder[last])
    entries = f"{many:,} {'entry' if many == 1 else 'entries'}"
    assert f"changed.json: not a complete result: `{dotted(place)}` has {entries}, not" in str(
        raised.value
    )


def test_a_family_without_settings_is_refused_by_its_name():
    document = json.loads(stored("sweep"))
    document["families"]["seq_tis"]["rows"] = []
    with pytest.raises(
        RcdiagError, match=r"`families\.seq_tis\.rows` has 0 entries, not 1 or more"
    ):
        from_json(json.dumps(document), "changed.json")


@pytest.mark.parametrize(
    "place",
    [
        "worst_sequences/0/behavior_log_probs",
        "worst_sequences/0/context/masked_ids",
        "examples/log_ratio",
        "examples/before",
    ],
)
def test_lists_of_tokens_have_equal_lengths(place):
    table = Path(__file__).parents[2] / "sample_data" / "multi_turn.parquet"
    document = json.loads(to_json(score(open_table(table))))
    from_json(json.dumps(document), "whole.json")
    holder, last = inner(document, place)
    holder[last] = holder[last][1:]
    with pytest.raises(RcdiagError, match=f"`{dotted(place)}` has "):
        from_json(json.dumps(document), "changed.json")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", ["score", "compare", "sweep", "replay"])
def test_unchanged_documents_are_read(kind, version):
    assert from_json(stored(kind, version), kind).kind == kind


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": None}, "`kind` None"),
        ({"format_version": []}, "`format_version` []"),
        ({"format_version": 99}, "`format_version` 99"),
    ],
)
def test_a_document_of_no_known_kind_or_version_names_the_field(change, words):
    document = {**json.loads(stored("score")), **change}
    with pytest.raises(RcdiagError, match=r"changed\.json: cannot read") as raised:
        from_json(json.dumps(document), "changed.json")
    assert words in str(raised.value)


@pytest.mark.parametrize("name", ["kind", "format_version"])
def test_a_document_without_kind_or_version_is_refused(name):
    document = json.loads(stored("score"))
    del document[name]
    with pytest.raises(RcdiagError, match=f"not a result of rcdiag: `{name}` is missing"):
        from_json(json.dumps(document), "changed.json")


def test_an_integer_of_any_size_is_read():
    document = json.loads(stored("score"))
    document["mismatch"]["k3_kl"]["high"] = 10**30
    assert isinstance(from_json(json.dumps(document), "r.json").mismatch["k3_kl"].high, float)
