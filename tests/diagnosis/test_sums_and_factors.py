"""Faults of the softmax's sum, the temperature and the logarithm, which look similar."""

from __future__ import annotations

import numpy as np
import pytest

import rcdiag.diagnosis.judge as judging
from rcdiag.diagnosis.causes.catalogue import CAUSES
from rcdiag.diagnosis.causes.cause import Cause, Suspicion
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.judge import diagnose
from tests.diagnosis.tables import (
    Law,
    divided,
    made,
    normal,
    plain,
    tempered,
    with_values,
)


def padded(rows: int) -> Law:
    """Include tokens of logit 0 that are never sampled in the softmax."""

    def law(logits, state):
        sure = np.exp(normal(logits).max(axis=1, keepdims=True)) > 0.98
        noise = np.where(sure, 0.0002, 0.03) * state.rng.standard_normal(logits.shape)
        return normal(np.pad(logits + noise, ((0, 0), (0, rows))))[:, : logits.shape[1]]

    return law


@pytest.mark.parametrize("seed", range(3))
def test_padding_in_the_softmax_is_not_rounding(seed):
    case = made(plain, padded(12), rows=128, length=60, seed=seed)
    law = Features(case).log_ratios
    assert 1.0 - law.ratio_mean[0] < 0.003
    diagnosis = diagnose(case)
    assert diagnosis.verdict == "broken"
    assert diagnosis.causes[0].slug == "truncated-law"
    assert "vocabulary-padding" in diagnosis.causes[0].also_possible


@pytest.mark.parametrize("temperature", [0.52, 0.7, 0.82])
@pytest.mark.parametrize("seed", range(2))
def test_divided_log_probs_are_neither_the_likeliest_tokens_nor_of_another_base(temperature, seed):
    case = made(
        tempered(temperature), divided(temperature), rows=128, length=60, seed=seed, sharpness=2.0
    )
    named = {cause.slug for cause in diagnose(case).causes}
    assert not named & {"top-one-recorded", "log-base"}


@pytest.mark.parametrize("base", [2.0, 10.0])
def test_another_base_is_found_beside_noise(base):
    case = with_values(made(rows=64, length=40), "old", lambda values: values / np.log(base))
    diagnosis = diagnose(case)
    assert diagnosis.causes[0].slug == "log-base"
    assert diagnosis.causes[0].confidence > 0.9


@pytest.mark.parametrize(("confidence", "first"), [(0.75, "penalty"), (0.85, "prompt-truncated")])
def test_a_narrow_cause_that_fits_by_chance_yields_to_a_distribution(
    confidence, first, monkeypatch
):
    def weighing(slug: str, certainty: float) -> Cause:
        told = Suspicion(confidence=certainty, message=slug)
        return Cause(words=CAUSES[slug].words, stage="distribution", weigh=lambda features: told)

    told = {"penalty": weighing("penalty", 0.9)}
    told["prompt-truncated"] = weighing("prompt-truncated", confidence)
    monkeypatch.setattr(judging, "CAUSES", told)
    found, *_ = judging._weigh_stage(Features(made(rows=64, length=30)), "distribution")
    assert found.slug == first
