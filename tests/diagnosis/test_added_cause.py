"""A cause registered by a plugin is weighed by every command, shown and explained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rcdiag.diagnosis.causes.cause import CAUSES, Cause, Suspicion, fact
from rcdiag.diagnosis.causes.cause_words import CauseWords
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.signs import Signs
from rcdiag.glossary import explain, names
from rcdiag.table.opening import open_table
from rcdiag.usecases.compare.run import compare
from rcdiag.usecases.score import score
from rcdiag.usecases.sweep.run import sweep
from tests.diagnosis.tables import made, write
from tests.usecases.replay.builders import replay_of


def _first_token(features: Features) -> Suspicion | None:
    tokens = features.case.tokens
    first = tokens.sampler[tokens.position == 0]
    if len(first) < 20 or np.ptp(first) > 0:
        return None
    return Suspicion(
        confidence=0.95,
        message=f"The first token of {len(first)} responses has one log-prob.",
        evidence=[fact("values at first tokens", "one and the same", value=float(first[0]))],
        repaired=features.case.without_tokens(features.case.position == 0),
    )


CONSTANT = Cause(
    words=CauseWords(
        slug="first-token-constant",
        family="recording",
        title="the first token has no log-prob of its own",
        says="The engine starts to record at the second token.",
        shows="One value stands at the first token of every response.",
        told_apart="A placeholder stands at other tokens too.",
        side="recorder",
        verdict="broken",
        mend=("Record the log-prob of the first token too.",),
    ),
    stage="recording",
    weigh=_first_token,
)


@pytest.fixture
def added():
    with CAUSES.with_added(CONSTANT):
        yield


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    case = made(rows=64, length=30)
    values = np.where(case.position == 0, -1.5, case.log_probs["rollout"])
    path = tmp_path_factory.mktemp("added") / "t.parquet"
    advantages = np.random.default_rng(0).standard_normal(64)
    return write(case.with_log_probs("rollout", values), path, advantage=advantages)


def test_every_command_weighs_it(added, table):
    rows = open_table(table)
    for result in (score(rows), compare(rows), sweep(rows, thresholds=2), replay_of(table)):
        first, *others = result.diagnosis.causes
        assert result.diagnosis.verdict == "broken"
        assert (first.slug, first.side, first.verdict) == (CONSTANT.name, "recorder", "broken")
        assert first.evidence[0]["value"] == -1.5
        assert first.actions[0].text == "Record the log-prob of the first token too."
        # The repaired table is judged again: only rounding remains.
        assert others == []
        assert first.evidence[1]["name"] == "rms log-ratio without that fault"


def test_it_is_explained(added):
    """Screens, page and `rcdiag explain` are tested in tests/test_contributing.py."""
    entry = explain("first-token-constant")
    assert entry.kind == "cause"
    assert entry.what.startswith("The first token has no log-prob of its own.")
    assert entry.parts["similar"] == CONSTANT.words.told_apart
    assert names()["cause"]["first-token-constant"] == CONSTANT.words.title


def test_an_unknown_stage_is_refused():
    with pytest.raises(ValueError, match="stage 'law' of first-token-constant: one of storage"):
        Cause(words=CONSTANT.words, stage="law", weigh=CONSTANT.weigh)


def test_plugins_may_import_the_features_by_their_earlier_name():
    assert Signs is Features
