"""The trainer's columns old and current: micro-batch noise, or updates in between."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

import rcdiag as api
from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.judge import diagnose
from tests.diagnosis.tables import drifted, made, noisy, plain, write


def own_pair(case: Case) -> Case:
    """Use the two columns of a case as the trainer's `old` and `current`."""
    names = {"rollout": "old", "old": "current"}
    return replace(
        case,
        sampler="old",
        trainer="current",
        log_probs={names[name]: values for name, values in case.log_probs.items()},
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [0.003, 0.02, 0.06])
def test_noise_between_old_and_current_is_from_batches(size, seed):
    said = diagnose(own_pair(made(plain, noisy(size), rows=200, seed=seed)))
    assert said.verdict in ("healthy", "correctable")
    assert [cause.slug for cause in said.causes] == ["batch-noise"]
    assert "no update in between" in said.summary
    assert "sampler" not in said.summary


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [0.02, 0.1, 0.3])
def test_a_direction_between_old_and_current_is_from_updates(size, seed):
    said = diagnose(own_pair(made(plain, drifted(size, seed=seed), rows=300, seed=seed)))
    assert said.causes[0].slug == "updates-in-between"
    assert said.verdict in ("healthy", "correctable")
    assert "weights-differ" not in [cause.slug for cause in said.causes]


def test_an_update_on_these_rows_correlates_with_the_advantage():
    case = made(plain, plain, noise=0.0, rows=200)
    rng = np.random.default_rng(1)
    advantage = rng.standard_normal(200)
    moved = 0.02 * advantage[case.owner] * (1 - np.exp(case.log_probs["old"]))
    noise = 0.01 * rng.standard_normal(len(case.mask)) * (1 - np.exp(case.log_probs["old"]))
    updated = case.with_log_probs("old", np.minimum(case.log_probs["old"] + moved + noise, 0.0))
    pair = own_pair(replace(updated, facts=replace(updated.facts, advantage=advantage)))
    assert diagnose(pair).causes[0].slug == "updates-in-between"


@pytest.mark.parametrize("seed", range(5))
def test_sampler_and_trainer_are_no_such_pair(seed):
    for law in (noisy(0.02), drifted(0.1, seed=seed)):
        named = {cause.slug for cause in diagnose(made(plain, law, rows=200, seed=seed)).causes}
        assert not named & {"batch-noise", "updates-in-between"}


def test_one_precision_is_healthy():
    case = made(plain, noisy(5e-5), rows=100)
    assert diagnose(own_pair(case)).causes[0].slug == "healthy"


def test_commands_name_the_cause_of_the_pair(tmp_path):
    path = write(own_pair(made(plain, noisy(0.02), rows=200)), tmp_path / "t.parquet")
    scored = api.score(path, behavior="old", target="current")
    asked = api.diagnose(path, behavior="old", target="current")
    for result in (scored, asked):
        assert result.diagnosis.causes[0].slug == "batch-noise"
