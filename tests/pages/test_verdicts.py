"""The one word above a replay: as good as its best preset, the naive update left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rcdiag.diagnosis.checks import CHECKS, CheckInput
from rcdiag.pages.replay.words import verdict as verdict_of
from rcdiag.results import Finding, Rule
from tests.usecases.replay.builders import plan_of, replay_of, table_of

CASES = [
    (("ok", "error"), "error", "fine", "2 presets: 1 ok, 1 error (without correction: error)"),
    (("warning", "error"), "ok", "doubtful", "2 presets: 1 warning, 1 error"),
    (("error", "error"), "ok", "bad", "2 presets: 2 error (without correction: ok)"),
    (("cannot judge", "cannot judge"), "ok", "doubtful", "2 cannot judge"),
]


@pytest.fixture
def replayed(tmp_path):
    table = table_of(tmp_path / "t.parquet", [[-1.0, -1.0], [-2.0]], advantage=[1.0, -1.0])
    found = replay_of(table, plan_of(one={"rollout_is": None}, two={"rollout_is": None}))
    return replace(found, findings=[])


def judged(found, **verdicts):
    rule = Rule(name="r", value=1.0, level="error", message="it is bad", source="a test")
    presets = {
        name: replace(each, health=replace(each.health, verdict=verdicts[name], rules=[rule]))
        for name, each in found.presets.items()
    }
    return replace(found, presets=presets)


@pytest.mark.parametrize(("presets", "naive", "word", "said"), CASES)
def test_a_replay_is_as_good_as_its_best_preset(replayed, presets, naive, word, said):
    verdict = verdict_of(judged(replayed, one=presets[0], two=presets[1], naive=naive))
    assert verdict.word == word
    assert said in verdict.sentence


def test_unsafe_updates_are_counted_as_the_table_shows_them(replayed):
    """The update without correction and one without a loss are in the table, so they count."""
    result = judged(replayed, one="error", two="ok", naive="error")
    (finding,) = CHECKS["unsafe-update"].findings(CheckInput(result=result))
    assert finding.message.startswith("2 of 3 updates are unsafe, that without correction too, ")
    assert set(finding.evidence) == {"one", "naive"}
    shown = [preset.health.verdict for preset in result.presets.values()]
    assert (shown.count("error"), len(shown)) == (2, 3)


def test_the_update_without_correction_alone_raises_no_alarm(replayed):
    result = judged(replayed, one="ok", two="warning", naive="error")
    assert CHECKS["unsafe-update"].findings(CheckInput(result=result)) == []


def test_an_error_among_the_findings_is_not_hidden_by_a_good_preset(replayed):
    found = judged(replayed, one="ok", two="ok", naive="ok")
    error = Finding(slug="non-finite-log-probs", severity="error", message="", evidence={}, fix="")
    verdict = verdict_of(replace(found, findings=[error]))
    assert (verdict.word, verdict.level) == ("bad", "error")
