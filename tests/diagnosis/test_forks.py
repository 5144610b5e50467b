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
    made,
    named,
    noisy,
    plain,
    tempered,
    top_p,
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
