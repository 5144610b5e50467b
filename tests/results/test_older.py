"""Documents of earlier formats: one of each kind, written by the rcdiag of that format."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from rcdiag import load_result
from rcdiag.errors import RcdiagError
from rcdiag.pages.page import page
from rcdiag.results import FORMAT_VERSION, from_json
from rcdiag.results.older import FROM_1, upgraded
from rcdiag.results.plain import to_plain
from tests.results.stored import stored

PARTS = {
    "score": "corrections",
    "compare": "policies",
    "sweep": "families",
    "replay": "presets",
}


def older(kind: str) -> str:
    return stored(kind, version=1)


def leaves(part: Any) -> Iterator[Any]:
    """Return the values of a document without names."""
    if isinstance(part, dict):
        for item in part.values():
            yield from leaves(item)
    elif isinstance(part, list):
        for item in part:
            yield from leaves(item)
    else:
        yield part


@pytest.mark.parametrize("kind", FROM_1)
def test_a_document_of_format_1_is_read_with_every_value(kind):
    text = older(kind)
    document = json.loads(text)
    assert (document["kind"], document["format_version"]) == (kind, 1)
    result = from_json(text, "older.json")
    assert result.format_version == FORMAT_VERSION
    document["format_version"] = FORMAT_VERSION
    if kind == "sweep":
        assert document["recommendation"]["answer"] == "do-not-correct"
        document["recommendation"]["answer"] = "no-correction"
    assert Counter(leaves(document)) <= Counter(leaves(to_plain(result)))
    assert from_json(result.to_json(), "newer.json") == result


def test_values_of_a_score_have_the_current_names():
    old, new = json.loads(older("score")), from_json(older("score"), "older.json")
    assert new.scoring == old["policies"]
    step = next(iter(old["steps"]))
    for name, item in old["corrections"].items():
        assert new.corrections[name].actual == item["honest"]
        assert new.steps[step].corrections[name].actual.keys() == item["honest"].keys()
    assert new.figures["log_ratio_histogram"] == old["figures"]["log_ratio"]
    assert new.figures["paths"][0]["token_counts"] == old["figures"]["paths"][0]["tokens"]
    assert new.worst_sequences[0].num_tokens == old["worst_sequences"][0]["length"]


def test_values_of_a_comparison_have_the_current_names():
    old, new = json.loads(older("compare")), from_json(older("compare"), "older.json")
    assert new.nearest_policies == old["nearest"]
    for name, item in old["policies"].items():
        policy = new.policies[name]
        told = (policy.setup, policy.may_be_nearest, policy.scoring)
        assert told == (item["about"], item["nearest"], item["provenance"])
    three, before = new.triangulation, old["triangulation"]
    assert (three.sampler_policy, three.engine_policy) == (before["sampler"], before["engine"])
    assert (three.trainer_policy, three.agreement) == (before["trainer"], before["verdict"])
    joined, before = new.joined, old["joined"]
    assert (joined.table_rows, joined.common_samples) == (before["rows"], before["joined"])
    assert (joined.missing_rows, joined.left_out) == (before["missing"], before["named"])


def test_values_of_a_sweep_have_the_current_names():
    old, new = json.loads(older("sweep")), from_json(older("sweep"), "older.json")
    assert new.num_groups_with_two == old["num_groups"]
    for name, family in old["families"].items():
        assert new.families[name].scope == family["level"]
        for row, before in zip(new.families[name].rows, family["rows"], strict=True):
            assert row.ess_token_applied == before["ess_token"]
            assert row.ess_seq_applied.value == before["ess_seq"]["value"]
            told = (row.weight_variance, row.weight_distance)
            assert told == (before["variance"], before["bias"])
    advice, before = new.recommendation, old["recommendation"]
    assert advice.choice_yaml == before["configurations"]
    close = [item.name for item in advice.candidates if item.within_error_of_best]
    assert sorted(close) == sorted(before["indistinguishable"])
    assert new.forecast.points[0].response_length == old["forecast"]["points"][0]["length"]
    held_out, before = new.forecast.held_out[0], old["forecast"]["held_out"][0]
    told = (held_out.num_sequences, held_out.mean_length)
    assert told == (before["sequences"], before["length"])


def test_values_of_a_replay_have_the_current_names():
    old, new = json.loads(older("replay")), from_json(older("replay"), "older.json")
    assert new.policy_loss == old["loss"]
    now = [new.presets, *(step.presets for step in new.steps)]
    then = [old["presets"], *(step["presets"] for step in old["steps"])]
    assert len(now) == 3
    for presets, before in zip(now, then, strict=True):
        for name, preset in presets.items():
            _same_preset(preset, before[name])
    assert all(preset.gradient is not None for preset in new.presets.values())


def _same_preset(preset: Any, old: dict[str, Any]) -> None:
    assert preset.weight_histogram == old["weights"]
    by, before = preset.denominator, old["denominator"]
    told = (by.basis, by.counted, by.divisor, by.kept_count, by.full_count)
    assert told == tuple(before[name] for name in ("which", "unit", "used", "kept", "all"))
    gradient, before = preset.gradient, old["gradient"]
    assert (gradient is None) == (before is None)
    if gradient is not None:
        assert gradient.grad_norm == before["norm"]
        assert gradient.squared_bias.value == before["bias"]["value"]
        assert gradient.relative_variance == before["variance"]
        assert gradient.top_norm_share == before["top_share"]
    assert preset.health.not_judged == old["health"]["missing"]
    messages = [rule.message for rule in preset.health.rules]
    assert messages == [rule["said"] for rule in old["health"]["rules"]]


@pytest.mark.parametrize("kind", FROM_1)
def test_a_document_of_format_1_has_its_page(kind, tmp_path):
    (tmp_path / "older.json").write_text(older(kind))
    assert "<html" in page(load_result(tmp_path / "older.json"))


@pytest.mark.parametrize("version", [0, -1, FORMAT_VERSION + 1, 1.5, "1", None, [1]])
def test_an_unknown_format_is_refused_with_the_supported_ones(version):
    document = {**json.loads(older("compare")), "format_version": version}
    with pytest.raises(RcdiagError, match=r"r\.json: cannot read `kind` 'compare'") as caught:
        from_json(json.dumps(document), "r.json")
    assert f"1 to {FORMAT_VERSION}" in caught.value.hint


@pytest.mark.parametrize("kind", FROM_1)
@pytest.mark.parametrize("part", [None, 3, "words", [], {}])
def test_a_document_of_format_1_that_was_edited_is_refused(kind, part):
    document = json.loads(older(kind))
    document[PARTS[kind]] = {"it": part}
    with pytest.raises(RcdiagError, match=r"r\.json: not a complete result"):
        from_json(json.dumps(document), "r.json")


def test_verdicts_of_former_formats_are_renamed():
    document = json.loads(older("score"))
    document["format_version"] = 2
    cause = {"slug": "stale-weights", "verdict": "correct"}
    for former, present in (
        ("fine", "healthy"),
        ("correct", "correctable"),
        ("fix", "broken"),
        ("cannot-tell", "inconclusive"),
    ):
        diagnosis = {"verdict": former, "causes": [cause]}
        read = upgraded({**document, "diagnosis": diagnosis}, "score")["diagnosis"]
        assert read == {"verdict": present, "causes": [{**cause, "verdict": "correctable"}]}


@pytest.mark.parametrize(("version", "kept"), [(1, False), (2, False), (FORMAT_VERSION, True)])
def test_expected_values_of_older_formats_are_dropped(version, kept):
    """They were computed from the mismatch itself."""
    number = {"value": 0.3, "low": 0.2, "high": 0.4, "level": "warning", "expected": 0.01}
    document = {
        "format_version": version,
        "mismatch": {"ess_seq": number},
        "evidence": [{"expected": 3}],
    }
    read = upgraded(document, "score")
    assert ("expected" in read["mismatch"]["ess_seq"]) == kept
    assert read["evidence"] == [{"expected": 3}]
    assert number["expected"] == 0.01
