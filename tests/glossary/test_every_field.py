"""Every field of a result is explained by its own annotation."""

from __future__ import annotations

import json
import re

from rcdiag.glossary import explain, names
from rcdiag.glossary.fields import TITLE, guides, meanings, part_of
from rcdiag.results.doc import documented_fields
from tests.results.stored import stored
from tests.results.test_docs import ALL


def test_every_field_is_found_with_and_without_its_prefix():
    for owner in ALL:
        for field in documented_fields(owner):
            dotted = f"{part_of(owner)}.{field.name}"
            told = (explain(field.name).what, explain(dotted).what)
            assert told[1].startswith(field.doc.says.rstrip("."))
            assert explain(dotted).example or explain(dotted).see


def test_a_name_with_several_meanings_lists_all_of_them():
    assert {"level", "rows", "policies", "message"} <= {
        name for name, fields in meanings().items() if len(fields) > 1
    }
    for name, other in (
        ("level", "rule.level"),
        ("trainer", "correction.trainer"),
        ("ess_seq", "factor.ess_seq"),
        ("kept", "denominator.kept"),
    ):
        assert f"As {other}: " in explain(name).what
        assert other in explain(name).see
        assert explain(other).name == other


def test_formula_unit_direction_and_trainers_come_from_the_annotation():
    result = explain("squared_bias")
    assert result.kind == TITLE
    assert result.formula.startswith("max(<G - R, G - R>, 0) / <R, R>")
    assert result.units == "none"
    assert explain("loss").generations == {"verl": "actor/pg_loss", "slime": "pg_loss"}


def test_a_field_without_an_example_shows_its_location():
    assert explain("choice").example == (
        "rcdiag sweep rollouts.parquet --json | jq '.recommendation.choice'"
    )
    assert explain("skew").example == (
        "rcdiag replay rollouts.parquet --model CHECKPOINT --json | jq '.presets[].gradient.skew'"
    )
    assert explain("log_bounds").example.endswith("[-0.47, 0.5108]")


def test_a_judged_field_states_its_thresholds():
    assert set(guides()) <= set(meanings())
    for name in guides():
        assert re.search("warning (from|at or below) ", explain(name).healthy)
    assert "ideal 0; warning from 0.05" in explain("truncation_loss").healthy


def test_each_field_is_listed_under_one_name():
    listed = names()[TITLE]
    assert "kept_tokens" in listed
    assert "sweep_row.kept_tokens" not in listed
    assert "squared_bias" in listed


def test_every_setting_of_a_stored_replay_is_explained():
    """The schema refuses unknown fields; the keys of `model` and `metrics` are free."""
    document = json.loads(stored("replay"))
    metrics = {key for preset in document["presets"].values() for key in preset["metrics"]}
    assert len(metrics) > 30
    for key in {*document["model"], *metrics, *document["factors"], *document["presets"]}:
        assert explain(key).what
