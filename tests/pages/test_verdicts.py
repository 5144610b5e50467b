"""The answer of `replay` beside the verdict: how many presets are healthy."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import rcdiag
from rcdiag.diagnosis.checks import CHECKS, CheckInput
from rcdiag.pages.headline import counted, headline, with_findings
from rcdiag.pages.replay.words import answer
from rcdiag.results import Action, Finding, NamedCause, Rule
from tests.usecases.replay.builders import plan_of, replay_of, table_of

CASES = [
    (
        ("ok", "error"),
        "error",
        "1 of 2 presets passes all health rules (1 with an error); without correction: error",
    ),
    (("ok", "ok"), "ok", "2 of 2 presets pass all health rules; without correction: ok"),
    (
        ("warning", "error"),
        "ok",
        "none of 2 presets passes all health rules (1 with a warning, 1 with an error)",
    ),
    (("error", "error"), "warning", "(2 with an error); without correction: warning"),
    (("cannot judge", "cannot judge"), "ok", "(2 not judged)"),
]


@pytest.fixture
def replayed(tmp_path):
    table = table_of(tmp_path / "t.parquet", [[-1.0, -1.0], [-2.0]], advantage=[1.0, -1.0])
    result = replay_of(table, plan_of(one={"rollout_is": None}, two={"rollout_is": None}))
    return replace(result, findings=[])


def judged(result, **verdicts):
    """Set the verdicts of the presets; each keeps a different number of tokens."""
    rule = Rule(name="r", value=1.0, level="error", message="it is bad", source="a test")
    presets = {
        name: replace(
            preset,
            health=replace(preset.health, verdict=verdicts[name], rules=[rule]),
            kept_tokens=kept,
        )
        for kept, (name, preset) in enumerate(result.presets.items())
    }
    return replace(result, presets=presets)


@pytest.mark.parametrize(("presets", "naive", "sentence"), CASES)
def test_a_replay_counts_its_presets_by_health(replayed, presets, naive, sentence):
    assert sentence in answer(judged(replayed, one=presets[0], two=presets[1], naive=naive))


def test_unsafe_updates_are_counted_as_the_table_shows_them(replayed):
    """Only the trainer's presets count, although the evidence also includes no correction."""
    result = judged(replayed, one="error", two="ok", naive="error")
    (finding,) = CHECKS["unsafe-update"].findings(CheckInput(result=result))
    assert finding.message.startswith(
        "1 of 2 presets is unsafe by a health rule; e.g. one: it is bad"
    )
    assert set(finding.evidence) == {"one", "naive"}
    shown = [preset.health.verdict for preset in result.presets.values()]
    assert (shown.count("error"), len(shown)) == (2, 3)


def test_only_the_uncorrected_update_being_unsafe_gives_no_finding(replayed):
    result = judged(replayed, one="ok", two="warning", naive="error")
    assert CHECKS["unsafe-update"].findings(CheckInput(result=result)) == []


def test_findings_are_counted_beside_the_answer(replayed):
    error = Finding(slug="non-finite-log-probs", severity="error", message="", evidence={}, fix="")
    assert counted([]) == "no findings"
    broken = replace(replayed, diagnosis=replace(replayed.diagnosis, verdict="broken"))
    assert with_findings("two presets", broken, []) == "two presets"
    result = replace(replayed, findings=[error])
    assert headline(result, "two presets").numbers == "two presets; 1 error"


def test_the_headline_has_the_verdict_of_the_table(replayed):
    shown = headline(replayed, "")
    assert shown.verdict == replayed.diagnosis.verdict
    assert shown.summary == replayed.diagnosis.summary
    older = headline(replace(replayed, diagnosis=None), "")
    assert (older.verdict, older.level) == ("not judged", "unknown")


def test_the_headline_names_the_judged_policies_where_others_are_compared(replayed):
    pair = {"sampler": "rollout", "trainer": "old"}
    told = replace(replayed, diagnosis=replace(replayed.diagnosis, pair=pair))
    assert "verdict on" not in headline(told, "").about
    table = {"rollout_log_probs": [[-0.1, -2.0]], "old_log_probs": [[-0.2, -2.1]]}
    table |= {"response_ids": [[5, 6]], "x_log_probs": [[-0.3, -1.9]]}
    assert "verdict on" not in headline(rcdiag.score(table), "").about
    shown = headline(rcdiag.score(table, target="x"), "")
    assert shown.about.endswith("; verdict on rollout and old")


def of_one(result, verdict: str, slug: str, of_cause: str, confidence: float):
    """Return the headline of a result with one cause of this confidence."""
    cause = NamedCause(
        slug=slug,
        verdict=of_cause,
        confidence=confidence,
        side="engine",
        share_of_rows=1.0,
        message="",
        evidence=[],
        actions=[],
        also_possible=[],
        from_step=None,
    )
    told = replace(result.diagnosis, verdict=verdict, causes=[cause], next=[Action(text="try")])
    return headline(replace(result, diagnosis=told), "")


@pytest.mark.parametrize(
    ("slug", "of_cause", "confidence", "line", "known"),
    [
        ("forwards-differ", "inconclusive", 0.92, "92% sure; open: its cause", "sides differ"),
        ("weights-differ", "inconclusive", 0.6, "60% sure; open: whether weights are", "is known"),
        ("columns-identical", "inconclusive", 0.9, "90% sure; open: a copy, or", "are equal"),
        ("bos-differs", "broken", 0.55, "55% sure: too little to act on", "is a guess"),
    ],
)
def test_a_cause_with_an_inconclusive_verdict_says_what_is_open(
    replayed, slug, of_cause, confidence, line, known
):
    """It may be certain that two forward passes differ, but not whether weights are valid."""
    shown = of_one(replayed, "inconclusive", slug, of_cause, confidence)
    assert shown.cause.startswith(f"{slug}, {line}")
    assert known in shown.means
    assert shown.means.endswith("The next step below settles it.")


@pytest.mark.parametrize(
    ("verdict", "slug"), [("broken", "bos-differs"), ("correctable", "stale-weights")]
)
def test_a_cause_with_a_verdict_leaves_nothing_open(replayed, verdict, slug):
    shown = of_one(replayed, verdict, slug, verdict, 0.9)
    assert shown.cause == f"{slug}, 90% sure"
