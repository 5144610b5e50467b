"""rcdiag refuses what verl refuses, and accepts what verl accepts, with a few exceptions."""

from __future__ import annotations

from typing import Any

import pytest

from rcdiag.trainers import find_trainer
from tests.corrections.builders import padded, plan_of
from tests.oracle.comparisons import differences
from tests.oracle.verl import PACKAGES, ask

pytestmark = pytest.mark.oracle

Config = dict[str, Any]
BATCH = padded([[0.1, -0.2], [0.0, 0.3]])
INF = float("inf")


def each_of(name: str, *values: Any, **others: Any) -> list[Config]:
    return [{**others, name: value} for value in values]


def rejections(*pairs: tuple[Any, Any]) -> list[Config]:
    return [{"rollout_rs": names, "rollout_rs_threshold": bounds} for names, bounds in pairs]


NUMBERS = (1, 2.0, 0, 0.0, -1.0, "2.0", "abc", True, [2.0])
WEIGHTS_ALONE = [
    *each_of("rollout_is_level", "seq", "Token", None, 5, rollout_is_threshold=2.0),
    *each_of("rollout_is_mode", "clip", "zero", None, rollout_is_threshold=2.0),
    *each_of("rollout_is_threshold", None, *NUMBERS),
    *each_of("rollout_is_threshold_lower", *NUMBERS, 3.0, rollout_is_threshold=2.0),
    *each_of("rollout_is_veto_threshold", *NUMBERS, rollout_is_threshold=2.0),
]
BY_RATIOS = [
    *each_of("rollout_is", "geometric", "Token", True, 5, ""),
    *each_of("rollout_is_threshold", None, *NUMBERS),
    *each_of("rollout_rs", "seq_sum_k1", "Token", True, 5, "", rollout_rs_threshold=2.0),
    *each_of("rollout_rs_threshold", None, *NUMBERS, rollout_rs="sequence"),
    *each_of(
        "rollout_rs_threshold_lower", *NUMBERS, 3.0, rollout_rs="token", rollout_rs_threshold=2.0
    ),
    *each_of("rollout_token_veto_threshold", *NUMBERS),
]
THRESHOLDS = ("0", "0.5_5", "5_0.5", "0_2", "-1_2", "a_b", "", " ", "_", "_2", "0.5_2_3", "-1", INF)
BY_K = [
    *each_of("rollout_is", "geometric", "Token", True, 5, ""),
    *each_of("rollout_is_threshold", None, *NUMBERS, *THRESHOLDS),
    *each_of("rollout_is_threshold", "5_0.5", rollout_is="token"),
    *rejections(
        *((names, "2") for names in ("seq_max_k1", "token", "", " , ", "Token_k1", 5)),
        *(("token_k1", bounds) for bounds in (None, *NUMBERS, *THRESHOLDS, 0.5, "inf")),
        *(("seq_sum_k1", bounds) for bounds in ("2_0.5", "1_1", "0.6_1.6", 1.25)),
        *(("token_k2", bounds) for bounds in (None, *NUMBERS, *THRESHOLDS, "1e-6", "inf")),
        ("token_k1,token_k2", "0.5_2.0"),
        ("token_k1,token_k2", "0.5_2.0,0.1"),
        ("token_k1,token_k2", "1,2,3"),
        ("token_k1,token_k2", ","),
        ("token_k1,token_k1", "2,3"),
        ("token_k1,token_k1", "2"),
        (" token_k1 ,, seq_max_k3 ", " 0.5_2.0 , 0.1, "),
    ),
]
CONFIGS = {
    "verl-0.6.0": WEIGHTS_ALONE,
    "verl-0.6.1": BY_RATIOS,
    "verl-0.7.0": BY_RATIOS,
    "verl-0.7.1": BY_K,
    "verl-0.8.0": BY_K,
    "verl-0.9": BY_K,
}
# A flag or a negative number as a bound: verl computes with it, rcdiag refuses it.
STRICTER = (
    ("rollout_is_threshold", True),
    ("rollout_is_threshold", -1.0),
    ("rollout_rs_threshold", True),
    ("rollout_rs_threshold", -1.0),
    ("rollout_token_veto_threshold", True),
    ("rollout_is_veto_threshold", [2.0]),
)


def cases() -> list[Any]:
    return [
        pytest.param(trainer, config, id=f"{trainer} {config}")
        for trainer in PACKAGES
        for config in CONFIGS[trainer]
    ]


def verl_stops(trainer: str, config: Config) -> bool:
    """Tell whether verl raises; errors of torch and Python count like verl's own."""
    try:
        ask(trainer, {**find_trainer(trainer).settings, **config}, BATCH)
    except (ValueError, TypeError, RuntimeError, ZeroDivisionError):
        return True
    return False


def we_refuse(trainer: str, config: Config) -> bool:
    return not plan_of(trainer, config).corrections


@pytest.mark.parametrize(("trainer", "config"), cases())
def test_the_same_settings_are_refused(trainer, config):
    if verl_stops(trainer, config):
        assert we_refuse(trainer, config)
        return
    if we_refuse(trainer, config):
        assert any(item in config.items() for item in STRICTER)
        return
    # Settings that both accept are interpreted in the same way.
    assert differences(plan_of(trainer, config), BATCH, 1) == []


def test_both_happen():
    stops = [verl_stops(*case.values) for case in cases()]
    assert 100 < sum(stops) < len(stops) - 50


@pytest.mark.parametrize("item", STRICTER, ids=str)
def test_every_exception_is_one(item):
    result = [case.values for case in cases() if item in case.values[1].items()]
    assert any(we_refuse(*entry) and not verl_stops(*entry) for entry in result)
