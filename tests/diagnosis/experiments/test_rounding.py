"""Rounding is compared with the model's own bfloat16 pass: size, tail, token dependence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.diagnosis.experiments.conclude import run_experiments
from rcdiag.diagnosis.experiments.fit import FLOAT32, fit_residual
from rcdiag.diagnosis.experiments.rounding import by_token
from rcdiag.diagnosis.experiments.trainer_distribution import TrainerDistribution
from rcdiag.engines.changes import Change, LowPrecision, Passage
from tests.diagnosis.experiments.samples import (
    LENGTH,
    PROMPT,
    ROWS,
    VOCABULARY,
    TableOfLogits,
    made_up,
)

ROUNDED = 0.01  # noise of logits in the model's own pass
TOKENS = 4_000


def first_of(case, model: TableOfLogits):
    model.noise = ROUNDED
    return run_experiments(case, model).suspicions[0]


@pytest.mark.parametrize(("times", "rounding"), [(0.7, True), (1.2, True), (2.2, False)])
def test_more_noise_than_the_models_own_bfloat16_is_not_rounding(times, rounding):
    found = first_of(*made_up(noise=times * ROUNDED))
    assert (found.slug == "engine-noise") == rounding
    assert (found.confidence > 0.8) == rounding


def test_a_few_tokens_beyond_rounding_reduce_the_confidence():
    """Most tokens differ by rounding, the first tokens of responses by ten times as much."""
    case, model = made_up(noise=0.8 * ROUNDED)
    first = case.position < 1
    rng = np.random.default_rng(0)
    moved = np.where(first, rng.choice([-1.0, 1.0], len(first)) * 9.0 * ROUNDED, 0.0)
    case = case.with_log_probs("rollout", np.minimum(case.log_probs["rollout"] + moved, 0.0))
    found = first_of(case, model)
    assert found.slug == "engine-noise"
    assert found.fit.tail > 2.0
    assert "few tokens" in found.message
    assert set(found.also_possible or ()) == {"weights-differ", "context-differs"}


class FirstTokensByPrompt(TableOfLogits):
    """A model whose first response logits change if the prompt is longer."""

    def log_probs(
        self, passages: Sequence[Passage], change: Change | None = None
    ) -> NDArray[np.float64]:
        logits, token = self._of(passages)
        size = self.noise if isinstance(change, LowPrecision) else 0.0
        moved = logits + np.random.default_rng(3).normal(0, size, logits.shape)
        longer = np.repeat([one.places[0] > PROMPT for one in passages], LENGTH)
        first = np.tile(np.arange(LENGTH) < 2, len(passages))
        other = np.random.default_rng(4).normal(0, 9.0 * ROUNDED, VOCABULARY)
        moved[longer & first] += other
        return TrainerDistribution(moved.astype(np.float32), token, token, token).log_prob_at(1.0)


def test_first_tokens_that_differ_by_another_prompt_are_explained():
    case, made = made_up(noise=0.5 * ROUNDED)
    model = FirstTokensByPrompt(made.logits)
    prompts = [case.prompt_ids.row(row) for row in range(ROWS)]
    passages = [
        Passage(
            np.concatenate([prompt[:1], prompt, tokens]),
            np.arange(PROMPT + 1, PROMPT + 1 + LENGTH),
            row,
        )
        for row, (prompt, tokens) in enumerate(
            zip(prompts, case.token_id.reshape(ROWS, LENGTH), strict=True)
        )
    ]
    made_so = model.log_probs(passages)
    rounded = np.random.default_rng(5).normal(0, 0.5 * ROUNDED, ROWS * LENGTH)
    stored = np.minimum(made_so - rounded * np.expm1(made_so), 0.0)
    found = first_of(case.with_log_probs("rollout", stored), model)
    assert found.slug == "bos-differs"


@pytest.mark.parametrize(("size", "slug"), [(1.2, "engine-noise"), (3.0, "weights-differ")])
def test_noise_that_depends_on_the_token_id_is_attributed_to_the_head(size, slug):
    """Another output head shifts the same ids by the same amount in every row."""
    case, model = made_up(noise=0.3 * ROUNDED)
    head = np.random.default_rng(1).normal(0, size * ROUNDED, VOCABULARY)
    moved = np.minimum(case.log_probs["rollout"] + head[case.token_id], 0.0)
    found = first_of(case.with_log_probs("rollout", moved), model)
    assert found.slug == slug
    assert found.fit.by_token > 0.2
    assert "on the token" in found.message


@pytest.mark.parametrize("share", [0.0, 0.4, 0.9])
def test_the_share_of_noise_by_token_id_is_recovered(share):
    rng = np.random.default_rng(2)
    token = rng.integers(0, 30, TOKENS)
    owner = np.repeat(np.arange(ROWS), TOKENS // ROWS + 1)[:TOKENS]
    of_id = rng.normal(0, np.sqrt(share), 30)[token]
    residual = of_id + rng.normal(0, np.sqrt(1.0 - share), TOKENS)
    sensitivity, resolution = np.ones(TOKENS), np.full(TOKENS, FLOAT32)
    found = by_token(
        fit_residual(0.01 * residual, np.zeros(TOKENS), sensitivity, resolution), token, owner
    )
    assert found == pytest.approx(share, abs=0.12)
    few = replace(
        fit_residual(residual, np.zeros(TOKENS), sensitivity, resolution),
        sensitivity=0.001 * sensitivity,
    )
    assert by_token(few, token, owner) is None


@pytest.mark.parametrize("scale", [0.0031, 0.01, 0.047])
def test_the_noise_scale_is_interpolated_between_grid_points(scale):
    rng = np.random.default_rng(3)
    residual = fit_residual(
        scale * rng.standard_cauchy(20_000),
        np.zeros(20_000),
        np.ones(20_000),
        np.full(20_000, FLOAT32),
    )
    assert residual.scale == pytest.approx(scale, rel=0.06)
