"""Two tokens of one context distinguish a temperature from other flattening."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.features import Features
from tests.diagnosis.tables import (
    Law,
    capped,
    divided,
    drifted,
    judged,
    made,
    named,
    noisy,
    plain,
    tempered,
    top_p,
    with_values,
)

TEMPERATURES = ("trainer-without-temperature", "sampler-ignores-temperature")


def forked(sampled: Law = plain, trained: Law | None = None, **facts: object) -> Case:
    return made(sampled, trained, prompts=True, group_of=8, **facts)


@pytest.mark.parametrize("temperature", [0.6, 0.9, 1.1, 1.4])
def test_forks_give_the_temperature(temperature: float) -> None:
    prefixes = Features(forked(plain, noisy(0.01, tempered(temperature)))).shared_prefixes
    assert prefixes is not None
    assert prefixes.is_one_power
    assert prefixes.power == pytest.approx(temperature, rel=0.02)


@pytest.mark.parametrize("temperature", [0.6, 0.9, 1.1, 1.4])
def test_a_temperature_that_no_column_states_is_estimated(temperature: float) -> None:
    (first, *_) = named(forked(plain, noisy(0.01, tempered(temperature))))
    assert first in TEMPERATURES


@pytest.mark.parametrize("cap", [12.0, 20.0, 30.0])
def test_a_logit_cap_is_not_a_temperature(cap: float) -> None:
    case = forked(plain, noisy(0.01, capped(cap)))
    prefixes = Features(case).shared_prefixes
    assert prefixes is not None
    assert not prefixes.is_one_power
    assert not {*TEMPERATURES, "temperature-raw-recorded"} & set(named(case))


@pytest.mark.parametrize(
    ("sampled", "trained"),
    [
        (plain, noisy(0.01)),
        (top_p(0.9), plain),
        (tempered(1.3), divided(1.3)),
        (plain, drifted(0.2)),
    ],
)
def test_a_factor_shared_by_a_context_is_not_a_power(sampled: Law, trained: Law) -> None:
    prefixes = Features(forked(sampled, trained)).shared_prefixes
    assert prefixes is not None
    assert not prefixes.is_one_power


def test_rows_of_other_prompts_or_steps_share_no_context() -> None:
    case = forked(plain, noisy(0.01, tempered(0.7)))
    every = np.arange(len(case.lengths))
    for facts in ({"prompt": every.astype(np.uint64)}, {"step": every}, {"prompt": None}):
        assert Features(replace(case, facts=replace(case.facts, **facts))).shared_prefixes is None


def test_a_declared_temperature_too_close_to_one_to_be_seen_is_accepted() -> None:
    case = forked(tempered(0.98), recorded=plain)
    stated = {
        "rollout": {"temperature": 1.0, "sampling_temperature": 0.98},
        "old": {"temperature": 0.98},
    }
    assert "temperature-raw-recorded" not in named(case)
    assert named(replace(case, metadata={"policies": stated}))[0] == "temperature-raw-recorded"


def test_declared_temperatures_that_the_log_probs_contradict_are_ignored() -> None:
    stated = {
        "rollout": {"temperature": 1.0, "sampling_temperature": 0.6},
        "old": {"temperature": 0.6},
    }
    case = replace(forked(plain, drifted(0.2)), metadata={"policies": stated})
    assert "temperature-raw-recorded" not in named(case)


def test_no_temperature_is_estimated_if_a_floor_replaced_the_rare_tokens() -> None:
    case = forked(plain, noisy(0.01, tempered(1.3)))
    values = np.maximum(case.log_probs["rollout"], -0.5)
    causes = named(case.with_log_probs("rollout", values))
    assert causes[0] == "floor-clip"
    assert not {"log-probs-divided", "truncated-law"} & set(causes)


@pytest.mark.parametrize("size", [0.2, 0.4])
def test_a_trainer_that_is_random_is_a_fault_of_its_own(size: float) -> None:
    """As with dropout: the same token after the same context has another value in each row."""
    diagnosis = judged(forked(plain, noisy(size)))
    cause = diagnosis.causes[0]
    assert (diagnosis.verdict, cause.slug) == ("broken", "forwards-differ")
    assert "the same token after the same context" in cause.message
    assert "dropout-in-trainer" in cause.also_possible
    assert "dropout" in cause.actions[0].text


@pytest.mark.parametrize(
    ("trained", "recorded"),
    [
        (drifted(0.2), plain),  # another function of the context
        (tempered(0.8), plain),
        (noisy(0.01), plain),  # rounding that depends on the batch
        (plain, noisy(0.2)),  # the sampler's values are random
        (noisy(0.2), noisy(0.2)),
        (noisy(0.02, drifted(0.4)), plain),  # rounding beside a larger difference
    ],
)
def test_values_that_the_context_determines_or_both_sides_vary_are_not_random(
    trained: Law, recorded: Law
) -> None:
    repeated = Features(forked(plain, trained, recorded=recorded)).repeated_tokens
    assert repeated is not None
    assert not repeated.trainer_is_random


def test_rows_of_other_temperatures_repeat_no_token() -> None:
    """The trainer divides the logits of each row by its temperature."""
    case = forked(plain, plain)
    at = np.where(np.arange(len(case.lengths)) % 2 == 0, 1.0, 0.7)
    case = with_values(case, "old", lambda values: values - (at[case.owner] < 1.0))
    one = Features(case).repeated_tokens
    assert one is not None
    assert one.trainer_is_random
    several = Features(replace(case, facts=replace(case.facts, temperature=at))).repeated_tokens
    assert several is not None
    assert several.apart == (0.0, 0.0)
