"""A check registered by a plugin runs in the commands of its stages, and is explained."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rcdiag.diagnosis.checks import CHECKS, Check, CheckInput, Observation
from rcdiag.glossary import explain, names
from rcdiag.pages.page import page
from rcdiag.statistics.metrics import FAMILIES, METRICS, Metric, MetricFamily
from rcdiag.table.opening import open_table
from rcdiag.usecases.compare.run import compare
from rcdiag.usecases.score import score
from rcdiag.usecases.sweep.run import sweep
from tests.builders import write_table
from tests.cli.conftest import dump_with_shift, rcdiag  # noqa: F401
from tests.usecases.replay.builders import replay_of


def _short(given: CheckInput) -> Iterator[Observation]:
    tokens, sequences = given.result.num_tokens, given.result.num_sequences
    if tokens < 4 * sequences:
        yield Observation(
            message=f"{sequences} sequences have {tokens} tokens in all",
            evidence={"tokens": tokens, "sequences": sequences},
        )


SHORT_RESPONSES = Check(
    slug="short-responses",
    severity="warning",
    stages=("score", "compare", "sweep", "replay"),
    asks="Are responses longer than four tokens?",
    says="Sequences have fewer than four tokens on average, so that there is little to learn from.",
    fix="look for an early stop",
    example="a stop token that is the first word of every answer",
    find=_short,
)


@pytest.fixture
def added():
    with CHECKS.with_added(SHORT_RESPONSES):
        yield


@pytest.fixture
def table(tmp_path):
    return dump_with_shift(tmp_path / "t.parquet", 0.0, advantage=[1.0, -1.0, 0.5])


def test_every_command_of_its_stages_runs_it(added, table):
    rows = open_table(table)
    for result in (score(rows), compare(rows), sweep(rows, thresholds=2), replay_of(table)):
        (finding,) = [item for item in result.findings if item.slug == "short-responses"]
        assert finding.severity == "warning"
        assert finding.message == "3 sequences have 6 tokens in all"
        assert finding.fix == "look for an early stop"
        assert finding.evidence == {"tokens": 6, "sequences": 3}


def test_other_stages_do_not_run_it(table):
    check = Check(
        slug="short-for-sweeps",
        severity="note",
        stages=("sweep",),
        asks="Are responses longer than four tokens?",
        says="Only sweeps are asked this one question.",
        fix="look for an early stop",
        find=_short,
    )
    with CHECKS.with_added(check):
        assert check.slug not in {item.slug for item in score(open_table(table)).findings}
        assert check.slug in {item.slug for item in sweep(open_table(table), thresholds=2).findings}


def test_it_counts_for_the_exit_code(added, table, rcdiag, monkeypatch):  # noqa: F811
    """Screens, page and `explain` are tested in tests/test_contributing.py."""
    monkeypatch.setenv("COLUMNS", "100")  # a line for the sentence and the advice
    ran = rcdiag("sweep", table, "--thresholds", 2, "--fail-on", "warning")
    assert ran.code == 1
    assert "short-responses" in ran.out
    assert "look for an early stop" in ran.out


def test_it_is_explained(added):
    entry = explain("short-responses")
    assert entry.kind == "finding"
    assert SHORT_RESPONSES.says in entry.what
    assert "What to do: look for an early stop." in entry.what
    assert names()["finding"]["short-responses"] == SHORT_RESPONSES.asks


def test_an_added_family_has_its_finding(table, tmp_path):
    family = MetricFamily(
        name="calm",
        question="Is the table calm?",
        slug="table-not-calm",
        fix="wait",
    )
    k3 = METRICS["k3_kl"]
    metric = Metric(
        name="calm_k3",
        family=family,
        label="KL again",
        says="The same number once more, in a family of its own.",
        formula=k3.formula,
        ideal=0.0,
        guide=k3.guide,
        from_totals=k3.from_totals,
    )
    shifted = dump_with_shift(tmp_path / "shifted.parquet", 1.0)
    with FAMILIES.with_added(family), METRICS.with_added(metric):
        slugs = [item.slug for item in score(open_table(shifted)).findings]
        assert "table-not-calm" in slugs
        assert "calm_k3" in page(score(open_table(shifted)))
        assert explain("table-not-calm").see == ("calm_k3",)


def test_an_unknown_level_gives_no_finding(tmp_path):
    rows = [[-5.0, -4.0, -3.0]] * 6
    path = write_table(
        tmp_path / "one.parquet",
        response_ids=[[1, 2, 3]] * 6,
        rollout_log_probs=rows,
        old_log_probs=[[-6.0, -3.0, -2.0]] * 6,
        group_id=[7] * 6,
    )
    result = score(open_table(path))
    assert result.mismatch["k3_kl"].level == "unknown"
    slugs = {item.slug for item in result.findings}
    assert "few-clusters" in slugs
    assert not slugs & {family.slug for family in FAMILIES.values()}
