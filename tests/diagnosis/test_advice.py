"""The advice of findings follows from the cause that the same result names."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rcdiag.diagnosis.causes.cause_words import cause_words
from rcdiag.diagnosis.checks.check import advice_of_cause
from rcdiag.diagnosis.conclusion import see_how
from rcdiag.results import Action, Diagnosis, NamedCause
from rcdiag.table.opening import open_table
from rcdiag.usecases.score import score

SAMPLES = Path(__file__).parents[2] / "sample_data"
FAMILIES = ("mismatch-above-guide", "heavy-tail", "behavior-is-not-the-sampler")


def judged(verdict: str, slug: str, *actions: str, next: str = "") -> SimpleNamespace:
    cause = NamedCause(
        slug=slug,
        verdict=verdict,
        confidence=0.9,
        side="sampler",
        share_of_rows=1.0,
        message="",
        actions=[Action(text=text) for text in actions],
    )
    diagnosis = Diagnosis(
        verdict=verdict,
        summary="",
        pair={},
        causes=[] if verdict == "inconclusive" else [cause],
        next=[Action(text=next)] if next else [],
    )
    return SimpleNamespace(diagnosis=diagnosis)


@pytest.mark.parametrize(
    ("result", "advice"),
    [
        (
            judged("broken", "shift-by-one", "Shift."),
            "fix shift-by-one first: no importance weights repair it",
        ),
        (
            judged("correctable", "stale-weights", "Sync weights."),
            "stale-weights explains it: sync weights; meanwhile `rcdiag sweep` picks a "
            "correction, if any helps",
        ),
        (
            judged("correctable", "added", "GPU clocks differ."),
            "added explains it: GPU clocks differ; meanwhile `rcdiag sweep` picks a "
            "correction, if any helps",
        ),
        (
            judged("healthy", "moe-routing", "Replay the experts."),
            "moe-routing explains it, and it costs nothing here",
        ),
        (
            judged("inconclusive", "", next="Score with the checkpoint:"),
            "find the cause first: score with the checkpoint",
        ),
        (judged("healthy", "engine-noise", "Nothing."), None),
        (judged("correctable", "engine-noise", "Nothing."), None),
        (SimpleNamespace(diagnosis=None), None),
    ],
)
def test_an_advice_follows_from_verdict_and_cause(result, advice):
    assert advice_of_cause(result) == advice


@pytest.mark.parametrize(
    ("name", "cause"), [("stale", "stale-weights"), ("temperature", "temperature-raw-recorded")]
)
def test_findings_advise_the_fix_of_the_named_cause(name, cause):
    findings = score(open_table(SAMPLES / f"{name}.parquet")).findings
    found = [finding for finding in findings if finding.slug in FAMILIES]
    assert found
    for finding in found:
        assert cause in finding.fix
        assert "precision" not in finding.fix


def test_explain_is_named_for_the_options_of_trainers_only_where_it_lists_some():
    words = cause_words()
    assert see_how(words["floor-clip"]) == []
    for one in words.values():
        assert bool(see_how(one)) == bool(one.entry().generations), one.slug
