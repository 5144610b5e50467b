"""A fault that begins at some step is identified from the rows since then."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.causes.cause import CAUSES
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.judge import diagnose
from rcdiag.diagnosis.validity import validity_of
from rcdiag.formats import mean_ratio
from rcdiag.results import NamedCause
from tests.diagnosis.tables import (
    Array,
    Law,
    State,
    counted,
    drifted,
    made,
    noisy,
    plain,
    presence_penalty,
    tempered,
    top_k,
    top_p,
    with_values,
)

ROWS, STEPS = 128, 8


def from_step(first: int, law: Law, before: Law = plain) -> Law:
    """Make a distribution that changes at a step."""
    later = steps() >= first

    def mixed(logits: Array, state: State) -> Array:
        return np.where(later[:, None], law(logits, state), before(logits, state))

    return mixed


def steps() -> NDArray[np.int64]:
    return np.arange(ROWS) * STEPS // ROWS


def table(
    first: int,
    sampled: Law,
    recorded: Law,
    trained: Law,
    *,
    stated: float | None = None,
    seed: int,
) -> Case:
    facts = {} if stated is None else {"temperature": np.where(steps() >= first, stated, 1.0)}
    return made(
        from_step(first, sampled),
        from_step(first, noisy(0.01, trained), noisy(0.01)),
        from_step(first, recorded),
        rows=ROWS,
        seed=seed,
        step=steps(),
        **facts,
    )


def first_cause(case: Case) -> NamedCause:
    return diagnose(counted(case)).causes[0]


@pytest.mark.parametrize("stated", [None, "by the rows"])
@pytest.mark.parametrize("temperature", [0.5, 0.7, 1.3])
def test_a_raw_record_of_one_step_is_identified_by_likelihood(
    temperature: float, stated: str | None
) -> None:
    at = tempered(temperature)
    told = first_cause(table(7, at, plain, at, stated=temperature if stated else None, seed=2))
    assert (told.slug, told.from_step) == ("temperature-raw-recorded", 7)
    assert told.confidence >= (0.95 if stated else 0.75)


@pytest.mark.parametrize("temperature", [0.7, 1.2])
def test_a_trainer_that_stops_dividing_is_identified_by_the_temperature_of_rows(
    temperature: float,
) -> None:
    at = tempered(temperature)
    told = first_cause(table(7, at, at, plain, stated=temperature, seed=2))
    assert (told.slug, told.from_step) == ("trainer-without-temperature", 7)
    assert told.confidence >= 0.95


def test_both_causes_are_named_if_either_distribution_may_have_sampled() -> None:
    told = first_cause(table(7, tempered(0.9), plain, tempered(0.9), seed=1))
    assert "temperature-raw-recorded" in {told.slug, *told.also_possible}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("law", [top_k(5), top_p(0.9)], ids=["top-k", "top-p"])
def test_a_kept_set_of_one_step_is_not_weight_drift(law: Law, seed: int) -> None:
    told = first_cause(table(7, law, law, plain, seed=seed))
    assert (told.slug, told.from_step) == ("truncated-law", 7)


def test_a_penalty_of_one_step_is_named() -> None:
    law = presence_penalty(0.8)
    told = first_cause(table(7, law, law, plain, seed=1))
    assert (told.slug, told.from_step) == ("penalty", 7)


@pytest.mark.parametrize(
    ("slug", "stored"),
    [
        ("log-base", lambda values: values / np.log(10.0)),
        ("log-base", lambda values: values / np.log(2.0)),
        ("stored-rounded", lambda values: np.round(values, 1)),
    ],
)
def test_a_fault_of_storage_that_begins_at_a_step_is_named(
    slug: str, stored: Callable[[Array], Array]
) -> None:
    case = table(5, plain, plain, plain, seed=1)
    later = steps()[case.owner] >= 5
    case = with_values(case, "old", lambda values: np.where(later, stored(values), values))
    told = first_cause(case)
    assert (told.slug, told.from_step) == (slug, 5)


def test_one_sided_log_ratios_are_never_stale_weights() -> None:
    law = top_k(5)
    features = Features(table(7, law, law, plain, seed=1))
    onset = features.location.onset
    assert onset is not None
    assert (
        CAUSES["weights-never-synced"].weigh(Features(features.case.take(steps() >= 7), onset))
        is None
    )


def test_few_rows_use_students_t() -> None:
    tokens = made(rows=16, length=40).tokens
    assert 3.0 < tokens.as_far(4.0) < 3.4
    assert 3.9 < made(rows=400, length=4).tokens.as_far(4.0) <= 4.0


def test_one_mean_ratio_is_stated_that_of_the_steps_judged() -> None:
    case = counted(table(5, drifted(0.5, seed=6), drifted(0.5, seed=7), plain, seed=4))
    told = diagnose(case)
    mean = validity_of(case.take(steps() >= 5)).ratio_mean
    entry = told.causes[0].evidence[1]
    assert told.verdict == "broken"
    assert (entry["name"], entry["value"]) == ("E[ratio] from step 5 on", mean.value)
    assert f"{entry['name']} is {mean_ratio(mean.value)}" in told.summary
