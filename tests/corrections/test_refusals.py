"""Settings that a trainer refuses are findings with the problem and a hint."""

from __future__ import annotations

from typing import Any

import pytest

from rcdiag.errors import RcdiagError
from rcdiag.pages.headline import first_clause
from rcdiag.trainers import TRAINERS
from tests.corrections.builders import plan_of

OLD = ["verl-0.6.0", "verl-20251027"]
RATIOS = ["verl-0.6.1", "verl-20251203", "verl-0.7.0"]
BY_K = ["verl-0.7.1", "verl-0.8.0", "verl-0.9"]
NOT_ABOVE_0 = "wanted a number above 0"


def refused(trainers: list[str], config: dict[str, Any], *words: str) -> list[Any]:
    return [pytest.param(trainer, config, words, id=f"{trainer} {config}") for trainer in trainers]


def rejecting(names: Any, bounds: Any) -> dict[str, Any]:
    return {"rollout_rs": names, "rollout_rs_threshold": bounds}


ON = {"rollout_is_threshold": 2.0}
WEIGHTS_ALONE = [
    *refused(OLD, {**ON, "rollout_is_level": "seq"}, "rollout_is_level: 'seq'", "geometric"),
    *refused(OLD, {**ON, "rollout_is_mode": "clip"}, "rollout_is_mode: 'clip'", "mask"),
    *refused(OLD, {"rollout_is_threshold": 0.0}, "rollout_is_threshold", NOT_ABOVE_0),
    *refused(OLD, {"rollout_is_threshold": "2.0"}, "rollout_is_threshold", NOT_ABOVE_0),
    *refused(OLD, {**ON, "rollout_is_veto_threshold": "1e-4"}, "veto", "'1e-4'"),
    *refused(OLD, {**ON, "rollout_is_threshold_lower": "half"}, "threshold_lower", "'half'"),
]
BY_RATIOS = [
    *refused(RATIOS, {"rollout_is": "geometric"}, "rollout_is: 'geometric'", "null, token"),
    *refused(RATIOS, {"rollout_is_threshold": -1.0}, "rollout_is_threshold", NOT_ABOVE_0),
    *refused(RATIOS, {"rollout_is_threshold": "0.5_5.0"}, "rollout_is_threshold", NOT_ABOVE_0),
    *refused(RATIOS, rejecting("token_k1", 2.0), "rollout_rs: 'token_k1'", "geometric"),
    *refused(RATIOS, rejecting("token", None), "rollout_rs_threshold: not set", "documents"),
    *refused(RATIOS, rejecting("token", "2.0"), "rollout_rs_threshold", NOT_ABOVE_0),
    *refused(RATIOS, {"rollout_token_veto_threshold": 0}, "rollout_token_veto", NOT_ABOVE_0),
    *refused(RATIOS, {"rollout_token_veto_threshold": "1e-4"}, "rollout_token_veto", "'1e-4'"),
    *refused(
        RATIOS, {**rejecting("token", 2.0), "rollout_rs_threshold_lower": "x"}, "lower", "'x'"
    ),
]
TWO = "token_k1,token_k2"
OF_K = [
    *refused(BY_K, {"rollout_is": "geometric"}, "rollout_is: 'geometric'", "null, token"),
    *refused(BY_K, {"rollout_is_threshold": 0}, "rollout_is_threshold", NOT_ABOVE_0),
    *refused(BY_K, {"rollout_is_threshold": True}, "rollout_is_threshold", NOT_ABOVE_0),
    *refused(BY_K[:1], {"rollout_is_threshold": "0.5_5.0"}, "does not have IcePop", "verl-0.8.0"),
    *refused(BY_K[1:], {"rollout_is_threshold": "5.0_0.5"}, "wants 0 < lower <= upper"),
    *refused(BY_K[1:], {"rollout_is_threshold": "0_5.0"}, "wants 0 < lower <= upper"),
    *refused(BY_K[1:], {"rollout_is_threshold": "0"}, "wants 0 < lower <= upper"),
    *refused(BY_K[1:], {"rollout_is_threshold": "much"}, "'much' is not `upper`"),
    *refused(BY_K[1:], {"rollout_is_threshold": ""}, "is not `upper`"),
    *refused(BY_K, {"loss_type": "grpo"}, "loss_type: 'grpo'", "reinforce"),
    *refused(BY_K, rejecting("seq_max_k1", "2.0"), "'seq_max_k1' is not one of", "seq_max_k2"),
    *refused(BY_K, rejecting("geometric", 1.001), "'geometric' is not one of", "seq_mean_k1"),
    *refused(BY_K, rejecting("token_k1", None), "rollout_rs_threshold: not set"),
    *refused(BY_K, rejecting(TWO, "1,2,3"), "3 thresholds for 2 options", "one for all"),
    *refused(BY_K, rejecting(TWO, "0.5_2.0"), "token_k2, which only has an upper bound"),
    *refused(BY_K, rejecting("token_k1", "a_b"), "'a_b' for token_k1 is not a number"),
    *refused(BY_K, rejecting("token_k1", "0_2"), "not above 0"),
    *refused(BY_K, rejecting("token_k1", 0), "token_k1"),
    *refused(BY_K, rejecting("token_k3", "-1"), "not above 0"),
    *refused(BY_K[2:], rejecting("token_k1", "2.0_0.5"), "lower bound above", "1 or more"),
    *refused(BY_K[2:], rejecting("seq_mean_k1", 0.5), "lower bound above", "1 or more"),
]
SLIME = [
    *refused(["slime"], {"tis_level": "seq"}, "tis_level: 'seq'", "geometric"),
    *refused(["slime"], {"tis_mode": "icepop"}, "tis_mode: 'icepop'", "truncate"),
    *refused(["slime"], {"rs_level": "seq"}, "rs_level: 'seq'", "geometric"),
    *refused(["slime"], {"tis_level": "geometric"}, "tis_batch_normalize", "geometric"),
    *refused(["slime"], {"rs_veto_threshold": "1e-4"}, "rs_veto_threshold", "1.0e-4"),
    *refused(["slime"], {"tis_upper_bound": None}, "tis_upper_bound", NOT_ABOVE_0),
    # Its helper asserts lower < upper wherever it clips or rejects.
    *refused(["slime"], {"tis_lower_bound": 3.0}, "bound"),
    *refused(["slime"], {"tis_mode": "clip", "tis_lower_bound": 2.0, "use_rs": False}, "bound"),
    *refused(["slime"], {"rs_lower_bound": 1.0, "rs_upper_bound": 1.0}, "bound"),
]


@pytest.mark.parametrize(
    ("trainer", "config", "words"), [*WEIGHTS_ALONE, *BY_RATIOS, *OF_K, *SLIME]
)
def test_refused(trainer, config, words):
    plan = plan_of(trainer, config)
    (finding,) = plan.findings
    assert (finding.slug, finding.severity) == ("trainer-refuses", "error")
    output = f"{finding.message} / {finding.fix}"
    generation = TRAINERS[trainer]
    known = f"{trainer} ({generation.words.until})"
    if "is not one of its values" in finding.message:  # a newer version may have it
        assert f"at {known}, so it is newer, or misspelt; nothing" in finding.message
        assert first_clause(finding.message).startswith("it: unknown value of ")
        assert "stops on" not in finding.message
    else:
        # The screen shows the first clause alone.
        assert first_clause(finding.message).startswith(f"it: {generation.family} stops on ")
        assert f"(at {known}; " in finding.message
        assert "a newer version may take it" in finding.message
    assert [word for word in words if word not in output] == []
    assert finding.fix
    assert plan.corrections == plan.configs == {}


@pytest.mark.parametrize("trainer", ["verl-0.7.1", "verl-0.8.0"])
def test_bounds_in_the_wrong_order_are_accepted_before_09(trainer):
    (rejection,) = plan_of(trainer, rejecting("token_k1", "2.0_0.5")).corrections["it"].rejections
    assert rejection.lower > rejection.upper


def test_slime_reads_no_bounds_where_it_uses_none():
    config = {"use_tis": False, "tis_level": "nothing", "tis_upper_bound": None}
    assert plan_of("slime", config).corrections["it"].weighting is None
    # A lower bound above the upper one does nothing to truncation.
    plan_of("slime", {"use_rs": False, "tis_lower_bound": 3.0})


@pytest.mark.parametrize("trainer", TRAINERS)
def test_an_unknown_setting_suggests_the_closest_one(trainer):
    known = next(name for name in TRAINERS[trainer].settings if len(name) > 6)
    with pytest.raises(RcdiagError) as error:
        plan_of(trainer, {known + "x": 1})
    assert f"{trainer} has no setting `{known}x` (" in error.value.message
    assert TRAINERS[trainer].words.until in error.value.message
    assert error.value.hint == f"did you mean {known}?"
    with pytest.raises(RcdiagError, match="no setting `zzz`") as error:
        plan_of(trainer, {"zzz": 1})
    assert known in error.value.hint
