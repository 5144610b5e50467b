"""The shipped JSON Schemas match the code, and result documents are valid."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator, ValidationError

import rcdiag
from rcdiag.results import KINDS, from_json
from rcdiag.results.schema import FOLDER, json_schema, write_schemas
from tests.results.stored import stored

SAMPLE = Path(__file__).parents[2] / "sample_data" / "temperature.parquet"


@cache
def validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator(json_schema(kind))


def valid(document: dict) -> None:
    validator(document["kind"]).validate(document)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """A folder with schemas generated from the code."""
    folder = tmp_path_factory.mktemp("schemas")
    write_schemas(folder)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_the_shipped_schema_matches_the_code(kind, written):
    name = f"{kind}.schema.json"
    assert (FOLDER / name).read_text() == (written / name).read_text(), "run `make schema`"
    Draft202012Validator.check_schema(json_schema(kind))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_stored_results_obey_their_schema(kind, version):
    if kind in ("diagnose", "convert") and version == 1:
        return  # these commands came with format 2
    valid(json.loads(from_json(stored(kind, version), kind).to_json()))


@pytest.mark.parametrize("kind", KINDS)
def test_new_results_obey_their_schema(kind, tmp_path):
    output = [tmp_path / "table.parquet"] if kind == "convert" else []
    few = {"thresholds": 4} if kind == "sweep" else {}
    result = getattr(rcdiag, kind)(SAMPLE, *output, **few)
    valid(json.loads(result.to_json()))


@pytest.fixture(scope="module")
def document():
    return json.loads(from_json(stored("score"), "score").to_json())


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", None, 3, 0.5])
def test_a_number_may_be_a_string_for_nan_and_infinities(document, value):
    changed = deepcopy(document)
    changed["mismatch"]["k3_kl"]["value"] = value
    valid(changed)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("mismatch", "k3_kl", "value"), "much"),
        (("mismatch", "k3_kl", "level"), "fatal"),
        (("worst_tokens", 0, "row"), 1.5),
        (("provenance", "seed"), "0"),
        (("format_version",), 99),
        (("unheard_of",), 1),
    ],
)
def test_other_documents_are_refused(document, where, value):
    changed = deepcopy(document)
    *way, last = where
    place = changed
    for step in way:
        place = place[step]
    place[last] = value
    with pytest.raises(ValidationError):
        valid(changed)


def test_a_description_has_formula_unit_and_direction():
    output = json_schema("score")["$defs"]["SequenceTokens"]["properties"]["log_ratio_sum"]
    assert "Summed log-ratio of a sequence" in output["description"]
    assert "Formula: sum log_ratio" in output["description"]
    assert "Unit: nats." in output["description"]
    assert "target - behavior" in output["description"]
