"""Time budget: an experiment that would exceed it is not started; loading is lazy."""

from __future__ import annotations

import time

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.experiments.conclude import ExperimentOptions, run_experiments
from rcdiag.diagnosis.experiments.order import EXPERIMENTS, run_with_passes
from rcdiag.diagnosis.experiments.rescored_sample import rows_in_time
from rcdiag.diagnosis.verdict import verdict_with_experiments
from tests.diagnosis.experiments.samples import TableOfLogits, made_tester, made_up

PASS = 0.05  # seconds


class Slow(TableOfLogits):
    """A slow model that counts its passes."""

    passes = 0

    def log_probs(self, passages, change=None):
        self.passes += 1
        time.sleep(PASS)
        return super().log_probs(passages, change)


def unexplained_bench():
    case, table = made_up()
    stored = case.log_probs["rollout"] + np.random.default_rng(0).normal(0, 1, len(case.token_id))
    model = Slow(table.logits)
    return made_tester(case.with_log_probs("rollout", stored), model), model


def test_only_experiments_that_fit_in_the_remaining_time_are_started():
    tester, model = unexplained_bench()
    sizes = {name: one.passes(tester) for name, one in EXPERIMENTS.items()}
    model.passes = 0
    hurried = replace(tester, deadline=time.monotonic() + 12.0 * PASS)
    ran = run_with_passes(hurried)
    begun = {test.experiment for test in ran.tests}
    assert "rotary" in ran.open
    assert sizes["rotary"] > 12.0
    assert begun
    assert not begun & set(ran.open)
    assert all(sizes[name] < 12.0 for name in begun)
    # Only the first pass is measured; no experiment exceeds its estimate several times.
    assert model.passes < 40


def test_without_a_deadline_no_pass_is_spent_on_measuring_time():
    tester, model = unexplained_bench()
    model.passes = 0
    assert tester.has_time_for(1e9)
    assert model.passes == 0


def test_the_tokenizer_is_loaded_once_and_only_where_text_is_asked_for():
    asked: list[int] = []

    def coders():
        asked.append(1)
        return None, None

    case, model = made_up()
    outcome = run_experiments(case, model, ExperimentOptions(coders=coders))
    assert all(side.explained for side in outcome.sides)
    assert asked == []
    tester, _ = unexplained_bench()
    tester.coders = coders
    assert tester.encode is None
    assert tester.decode is None
    assert asked == [1]


class Loading(Slow):
    """A slow model whose first pass also loads it."""

    def log_probs(self, passages, change=None):
        if not self.passes:
            time.sleep(40.0 * PASS)
        return super().log_probs(passages, change)


def test_loading_time_is_not_counted_as_time_per_row():
    case, table = made_up()
    deadline = time.monotonic() + 200.0 * PASS
    # Four timed rows take 1/50 s each; with the loading they would take half a second each.
    rows = rows_in_time(case, Loading(table.logits), 256, deadline, 0)
    assert len(rows) == len(case.lengths)


def scattered():
    """Return a case whose recorded log-probs have independent random factors, and its model."""
    case, table = made_up()
    factor = np.exp(np.random.default_rng(0).normal(0, 0.1, len(case.token_id)))
    return case.with_log_probs("rollout", case.log_probs["rollout"] * factor), table


def test_experiments_that_did_not_run_leave_the_verdict_open():
    """Experiments that did not run rule nothing out."""
    case, table = scattered()
    case = replace(case, trainer=None, log_probs={"rollout": case.log_probs["rollout"]})
    given = ExperimentOptions(deadline=time.monotonic() - 1.0)
    diagnosis, outcome = verdict_with_experiments(
        case, lambda one: run_experiments(one, table, given)
    )
    assert outcome is not None
    residual = len(set(outcome.open))
    assert residual > 10
    assert diagnosis.verdict == "inconclusive"
    assert f"No time was left for any of {residual} experiments" in diagnosis.summary


def test_inconclusive_experiments_do_not_overrule_the_whole_table():
    """The diagnosis of the table stands, with a note that no experiment explained it."""
    case, table = scattered()
    alone, _ = verdict_with_experiments(case, None)
    given = ExperimentOptions(deadline=time.monotonic() - 1.0)
    diagnosis, _ = verdict_with_experiments(case, lambda one: run_experiments(one, table, given))
    assert diagnosis.causes[0].slug == alone.causes[0].slug
    assert diagnosis.causes[0].confidence == alone.causes[0].confidence
    assert diagnosis.summary.startswith(alone.causes[0].message)
    assert "No time was left" in diagnosis.summary
