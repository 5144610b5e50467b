"""Results as JSON and back."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from rcdiag.errors import RcdiagError
from rcdiag.results import (
    FORMAT_VERSION,
    Finding,
    MetricValue,
    ScoreResult,
    StepResult,
    WorstToken,
    from_json,
    to_json,
)


def make(**fields: object) -> ScoreResult:
    plain = {
        "provenance": {"command": "rcdiag score x.parquet", "seed": 0},
        "behavior": "rollout",
        "target": "old",
        "num_sequences": 2,
        "num_tokens": 5,
        "empty_sequences": 1,
        "num_clusters": 2,
        "scoring": {"old": {"dtype": "float32"}},
        "mismatch": {"k3_kl": MetricValue(value=0.1, low=0.05, high=0.2, level="error")},
    }
    return ScoreResult(**{**plain, **fields})


def worst_token(log_ratio: float, **more: str) -> WorstToken:
    log_probs = {"behavior_log_prob": -1.0, "target_log_prob": -1.0}
    return {"row": 0, "position": 3, "token_id": 7, **log_probs, "log_ratio": log_ratio, **more}


def finding(severity: str) -> Finding:
    return Finding(slug="slug", severity=severity, message="m", fix="f", evidence={"rows": [1, 2]})


def strict(text: str) -> dict:
    def refuse(literal: str) -> None:
        raise AssertionError(f"{literal} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_a_result_survives_a_round_trip():
    values = {"k3_kl": MetricValue(value=0.25), "ess_seq": MetricValue(value=1.0, level="ok")}
    step = StepResult(num_sequences=1, num_tokens=2, mismatch=values, corrections={})
    figures = {"log_ratio_histogram": {"edges": [-1.0, 1.0], "counts": [3]}}
    result = make(
        findings=[finding("warning")],
        steps={"40": step},
        figures=figures,
        worst_tokens=[worst_token(-0.5)],
    )
    assert from_json(to_json(result), "r.json") == result


@pytest.mark.parametrize(
    ("value", "word"), [(math.inf, "Infinity"), (-math.inf, "-Infinity"), (math.nan, "NaN")]
)
def test_nan_and_infinities_are_strings_in_json_and_floats_when_read(value, word):
    metric = {"k3_kl": MetricValue(value=value)}
    step = StepResult(num_sequences=1, num_tokens=2, mismatch=metric, corrections={})
    worst = [worst_token(value)]
    evidence = Finding(slug="s", severity="error", message="", fix="", evidence={"k3_kl": value})
    result = make(mismatch=metric, steps={"1": step}, worst_tokens=worst, findings=[evidence])
    text = to_json(result)
    document = strict(text)
    assert document["mismatch"]["k3_kl"]["value"] == word
    assert document["steps"]["1"]["mismatch"]["k3_kl"]["value"] == word
    assert document["worst_tokens"][0]["log_ratio"] == word
    back = from_json(text, "r.json")
    assert repr(back.mismatch["k3_kl"].value) == repr(value)
    assert repr(back.steps["1"].mismatch["k3_kl"].value) == repr(value)
    assert repr(back.worst_tokens[0]["log_ratio"]) == repr(value)
    assert to_json(back) == text


def test_such_strings_in_text_fields_stay_strings():
    result = make(findings=[Finding(slug="NaN", severity="note", message="NaN", fix="Infinity")])
    back = from_json(to_json(result), "r.json")
    assert (back.findings[0].message, back.findings[0].fix) == ("NaN", "Infinity")


def test_a_file_name_that_is_not_utf8_survives_a_round_trip():
    """Python represents a non-UTF-8 byte of a file name as a lone surrogate."""
    name = "dump_\udcff.parquet"
    result = make(pair_reason=name)
    assert from_json(to_json(result), "r.json").pair_reason == name


def test_a_token_whose_text_looks_like_a_number_keeps_its_text():
    result = make(worst_tokens=[worst_token(-0.5, text="NaN"), worst_token(0.1)])
    back = from_json(to_json(result), "r.json")
    assert back.worst_tokens == result.worst_tokens


@pytest.mark.parametrize("name", ["text", "label", "sample_id"])
def test_a_metric_may_be_called_like_a_text(name):
    result = make(mismatch={name: MetricValue(value=math.inf)})
    assert from_json(to_json(result), "r.json") == result


def test_the_document_states_its_kind_and_version():
    document = strict(to_json(make()))
    assert (document["kind"], document["format_version"]) == ("score", FORMAT_VERSION)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "divination"},
        {"kind": None},
        {"format_version": FORMAT_VERSION + 1},
        {"format_version": "1"},
        {"mismatch": None},
        {"findings": [{"slug": "only"}]},
        {"worst_tokens": [{"row": 0}]},
        {"worst_tokens": [{**worst_token(0.0), "unheard_of": 1}]},
        {"unheard_of": 1},
    ],
)
def test_other_documents_are_refused_by_the_name_of_their_file(change):
    document = {**strict(to_json(make())), **change}
    with pytest.raises(RcdiagError, match=r"r\.json") as caught:
        from_json(json.dumps(document), "r.json")
    assert caught.value.hint


@pytest.mark.parametrize("left_out", ["kind", "format_version", "mismatch", "findings", "behavior"])
def test_documents_with_a_part_missing_are_refused(left_out):
    document = strict(to_json(make()))
    del document[left_out]
    with pytest.raises(RcdiagError, match=r"r\.json"):
        from_json(json.dumps(document), "r.json")


@pytest.mark.parametrize(
    ("place", "value", "fault"),
    [
        (("findings", 0, "slug"), 3, "in `findings.0.slug` wanted text, got a number"),
        (("num_tokens",), "5", "in `num_tokens` wanted a number, got text"),
        (("num_tokens",), None, "in `num_tokens` wanted a number, got null"),
        (
            ("mismatch", "k3_kl", "value"),
            "much",
            "in `mismatch.k3_kl.value` wanted a number, got text",
        ),
        (
            ("mismatch", "k3_kl", "value"),
            True,
            "in `mismatch.k3_kl.value` wanted a number, got true",
        ),
        (
            ("worst_tokens", 0, "log_ratio"),
            [1.0],
            "in `worst_tokens.0.log_ratio` wanted a number",
        ),
        (("worst_tokens", 0, "unheard_of"), 1, "`worst_tokens.0.unheard_of` is unknown"),
        (("unheard_of",), 1, "`unheard_of` is unknown"),
        (("mismatch", "k3_kl", "value"), 10**400, "int too large to convert to float"),
    ],
)
def test_a_field_of_wrong_type_is_named(place, value, fault):
    document = strict(to_json(make(findings=[finding("note")], worst_tokens=[worst_token(0.1)])))
    holder: Any = document
    for name in place[:-1]:
        holder = holder[name]
    holder[place[-1]] = value
    with pytest.raises(RcdiagError) as caught:
        from_json(json.dumps(document), "r.json")
    assert f"r.json: not a complete result: {fault}" in caught.value.message


def test_a_required_field_with_a_default_is_still_required():
    document = strict(to_json(make()))
    del document["mismatch"]["k3_kl"]["level"]
    with pytest.raises(RcdiagError, match=r"complete result: `mismatch\.k3_kl\.level` is missing"):
        from_json(json.dumps(document), "r.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"score"', "null"])
def test_a_file_that_is_not_a_document_is_refused(text):
    with pytest.raises(RcdiagError, match=r"r\.json"):
        from_json(text, "r.json")
