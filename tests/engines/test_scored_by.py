"""Facts that engines report for each part are merged into the policy's metadata."""

from __future__ import annotations

import pytest

from rcdiag.engines.process import Job
from rcdiag.engines.scored_by import NOTE, engine_differences, facts_of, notes_of, rate_of
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError
from tests.engines.toy_engine import ToyEngine, make_checkpoint


def part(host: str = "a", device: str = "H200", torch: str = "2.8", tokens: int = 10, **more):
    return {
        "backend": "hf",
        "host": host,
        "device": device,
        "versions": {"torch": torch, "transformers": "5"},
        "tokens": tokens,
        "seconds": 2.0,
        **more,
    }


def test_equal_engines_give_one_set_of_facts():
    facts = facts_of([part(), part(), part(tokens=3)])
    assert facts == {
        "backend": "hf",
        "device": "H200",
        "versions": {"torch": "2.8", "transformers": "5"},
    }
    assert engine_differences(facts) == ""


def test_notes_are_reported_once_and_are_not_facts():
    parts = [part(), part(**{NOTE: "less"}), part(**{NOTE: "less"}), part(**{NOTE: "least"})]
    assert notes_of(parts) == ["least", "less"]
    assert facts_of(parts) == facts_of([part()])


def test_unlike_engines_are_listed_with_their_differences():
    facts = facts_of([part(), part("b", "A100", "2.7", tokens=25), part()])
    assert facts["device"] == "A100", "of the engine that scored most"
    assert facts["differs"] == ["device", "host", "versions.torch"]
    assert facts["engines"] == [
        {"host": "a", "device": "H200", "versions.torch": "2.8", "parts": 2, "tokens": 20},
        {"host": "b", "device": "A100", "versions.torch": "2.7", "parts": 1, "tokens": 25},
    ]
    assert "a: H200, 2.8; b: A100, 2.7" in engine_differences(facts)


def test_like_engines_on_two_hosts_are_listed_and_are_not_unlike():
    facts = facts_of([part("a"), part("b")])
    assert [engine["host"] for engine in facts["engines"]] == ["a", "b"]
    assert engine_differences(facts) == ""


def test_a_fact_missing_for_one_engine_is_a_difference():
    facts = facts_of([part(), part(matmul="rounded")])
    assert facts["differs"] == ["matmul"]
    assert [engine["matmul"] for engine in facts["engines"]] == [None, "rounded"]


@pytest.mark.parametrize("broken", [{"differs": 3}, {"differs": ["device"], "engines": "x"}])
def test_malformed_facts_in_a_file_are_ignored(broken):
    assert engine_differences(broken) == ""


def test_the_rate_is_that_of_one_engine():
    assert rate_of([part(tokens=10), part(tokens=30)]) == 10.0
    assert rate_of([{**part(), "seconds": "2"}, {**part(), "tokens": None}]) is None
    assert rate_of([]) is None


def test_other_weights_under_the_same_path_are_refused(tmp_path):
    model = make_checkpoint(tmp_path / "model")
    spec = PolicySpec(name="old", backend="toy", dtype="float32", model=str(model))
    job = Job(spec=spec, max_length=4, folder=tmp_path, weights="another")
    with pytest.raises(RcdiagError, match="has other weights"):
        job.about({**ToyEngine(spec, 4, tmp_path).provenance(), "host": "here"})
