"""The one word above a replay: as good as its best preset, the naive update left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rcdiag.pages.replay.words import verdict as verdict_of
from rcdiag.results import Finding
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
    presets = {
        name: replace(each, health=replace(each.health, verdict=verdicts[name]))
        for name, each in found.presets.items()
    }
    return replace(found, presets=presets)


@pytest.mark.parametrize(("presets", "naive", "word", "said"), CASES)
def test_a_replay_is_as_good_as_its_best_preset(replayed, presets, naive, word, said):
    verdict = verdict_of(judged(replayed, one=presets[0], two=presets[1], naive=naive))
    assert verdict.word == word
    assert said in verdict.sentence


def test_an_error_among_the_findings_is_not_hidden_by_a_good_preset(replayed):
    found = judged(replayed, one="ok", two="ok", naive="ok")
    error = Finding(slug="non-finite-log-probs", severity="error", message="", evidence={}, fix="")
    verdict = verdict_of(replace(found, findings=[error]))
    assert (verdict.word, verdict.level) == ("bad", "error")
