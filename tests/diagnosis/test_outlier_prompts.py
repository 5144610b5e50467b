"""Prompts that are outliers at every step, against outliers that change with the step."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from rcdiag.diagnosis.causes.outlier_prompts import intraclass_correlation
from rcdiag.diagnosis.judge import diagnose
from tests.questions.tables import by_row, made, noisy, prompts_over_steps


def named(case):
    return [cause.slug for cause in diagnose(case).causes]


def test_a_hand_computed_intraclass_correlation():
    """Shrout and Fleiss (1979), table 2: six targets, four judges; ICC(1, 1) is 0.17."""
    ratings = np.array(
        [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]], float
    )
    # Two copies of the targets: the mean square between is 20/11 of that with 5 degrees.
    found = intraclass_correlation(np.tile(ratings, (2, 1)).ravel(), np.repeat(np.arange(12), 4))
    between = 4 * 2 * np.sum((ratings.mean(axis=1) - ratings.mean()) ** 2) / 11
    within = np.sum((ratings - ratings.mean(axis=1, keepdims=True)) ** 2) / 18
    assert found.value == pytest.approx((between - within) / (between + 3 * within))
    assert found.low < found.value < found.high
    assert found.prompts == 12


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_the_interval_covers_the_true_share(share):
    """With unequal numbers of steps, 95% of 300 intervals contain the share (4 std errors)."""
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(300):
        prompt = np.repeat(np.arange(25), rng.integers(2, 6, 25))
        values = np.sqrt(share) * rng.standard_normal(25)[prompt]
        values += np.sqrt(1 - share) * rng.standard_normal(len(prompt))
        found = intraclass_correlation(values, prompt)
        covered += found.low <= share <= found.high
    assert covered / 300 > 0.90


def test_too_few_prompts_give_no_estimate():
    assert intraclass_correlation(np.arange(20.0), np.arange(20)) is None
    assert intraclass_correlation(np.arange(14.0), np.repeat(np.arange(7), 2)) is None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.35, 0.7])
def test_prompts_that_are_outliers_at_every_step_are_named(share, seed):
    said = diagnose(prompts_over_steps(4, 24, 4, share, seed=seed))
    assert said.causes[0].slug == "outlier-prompts"
    assert said.verdict == "correctable"
    assert "The same prompts are outliers at every step: " in said.summary


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.15, 0.35, 0.7])
def test_outliers_that_change_with_the_step_are_not_prompts(share, seed):
    assert "outlier-prompts" not in named(prompts_over_steps(4, 24, 4, share, seed, again=False))


@pytest.mark.parametrize("seed", range(3))
def test_prompts_that_differ_a_little_are_not_outliers(seed):
    """The noise of prompts varies by a factor of about two: hard prompts have more."""
    case = prompts_over_steps(4, 24, 4, 0.0, seed=seed)
    own = 0.05 * np.exp(0.5 * np.random.default_rng(seed).standard_normal(24))
    prompt = case.facts.prompt.astype(int)
    other = made(noisy(0.02), by_row(own[prompt]), rows=len(prompt), length=40, seed=seed)
    assert "outlier-prompts" not in named(replace(other, facts=case.facts))


def test_without_steps_nothing_repeats():
    case = prompts_over_steps(4, 24, 4, 0.35)
    one = replace(case, facts=replace(case.facts, step=np.zeros_like(case.facts.step)))
    assert "outlier-prompts" not in named(one)


def test_groups_are_used_if_prompts_are_not_recorded():
    case = prompts_over_steps(4, 24, 4, 0.35)
    by_group = diagnose(replace(case, facts=replace(case.facts, prompt=None)))
    assert "(by `group_id`)" in by_group.causes[0].message
