"""Settings outside the correction block that change its effect."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from rcdiag.trainers.own_config import read_trainer_config

REJECT = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.999_1.001"}
TOKEN = {"rollout_is": "token", "rollout_is_threshold": 2.0}


def found(tmp_path, trainer: str, correction: dict[str, Any], **places: Any) -> dict[str, Any]:
    """Findings by slug; `places` are dotted paths with `__` for the dot."""
    document: dict[str, Any] = {
        "actor_rollout_ref": {"rollout": {"calculate_log_probs": True}},
        "algorithm": {"rollout_correction": correction},
    }
    for path, value in places.items():
        *parents, last = path.split("__")
        place = document
        for name in parents:
            place = place.setdefault(name, {})
        place[last] = value
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(document))
    findings = read_trainer_config(file, trainer).findings
    assert len({item.slug for item in findings}) == len(findings)
    return {item.slug: item for item in findings}


MODE = "actor_rollout_ref__actor__policy_loss__loss_mode"
ACTOR = "actor_rollout_ref__actor__"
ROLLOUT = "actor_rollout_ref__rollout__"


OF_LOSS = "actor_rollout_ref__actor__policy_loss__rollout_correction"
SEPARATE: dict[str, Any] = {"rollout__nnodes": 1}


@pytest.mark.parametrize(
    ("trainer", "places", "severity"),
    [
        ("verl-0.9", {}, "error"),
        ("verl-0.9", {MODE: "vanilla"}, "error"),
        ("verl-0.9", {MODE: "bypass_mode"}, "error"),  # the loss reads a block of its own
        ("verl-0.9", {MODE: "bypass_mode", OF_LOSS: TOKEN}, None),
        ("verl-0.9", {"trainer__use_v1": False}, "warning"),
        ("verl-0.9", SEPARATE, "warning"),
        ("verl-0.9", {**SEPARATE, MODE: "bypass_mode", OF_LOSS: TOKEN}, None),
        ("verl-0.8.0", {}, None),
        # verl-omni's diffusion trainers read a block of the actor that repeats the algorithm's.
        ("verl-omni", {"actor_rollout_ref__actor__rollout_correction": TOKEN}, None),
    ],
)
def test_bypass_mode_that_its_loss_does_not_read(tmp_path, trainer, places, severity):
    slugs = found(tmp_path, trainer, {**TOKEN, "bypass_mode": True}, **places)
    finding = slugs.get("bypass-not-active")
    assert (finding and finding.severity) == severity
    if finding:
        assert ("#4912" in finding.message) == (severity == "error")
        assert "rollout_is of algorithm" in finding.message or "rollout_is may" in finding.message
    assert "bypass-not-active" not in found(tmp_path, trainer, TOKEN, **places)


@pytest.mark.parametrize(
    ("places", "computed"),
    [
        ({}, {"rollout_is": None, "bypass_mode": True}),
        ({MODE: "bypass_mode"}, {"bypass_mode": True}),
        ({MODE: "bypass_mode", OF_LOSS: REJECT}, {"rollout_is": None, **REJECT}),
        (SEPARATE, TOKEN),
    ],
)
def test_what_is_computed_is_what_the_loss_reads(tmp_path, places, computed):
    found(tmp_path, "verl-0.9", {**TOKEN, "bypass_mode": True}, **places)
    settings = read_trainer_config(tmp_path / "config.yaml", "verl-0.9").settings
    assert settings == {**computed, "bypass_mode": True}


@pytest.mark.parametrize(
    ("trainer", "mini", "places", "idle"),
    [
        ("verl-0.7.1", 64, {}, True),
        ("verl-0.7.1", 32, {}, False),
        ("verl-0.7.1", 64, {f"{ACTOR}ppo_epochs": 2}, False),
        ("verl-0.7.1", 64, {f"{ACTOR}use_rollout_log_probs": True}, False),
        ("verl-0.8.0", 64, {}, False),
    ],
)
def test_bypass_with_one_mini_batch_under_the_legacy_actor(tmp_path, trainer, mini, places, idle):
    sizes = {"data__train_batch_size": 64, f"{ACTOR}ppo_mini_batch_size": mini}
    slugs = found(tmp_path, trainer, {**TOKEN, "bypass_mode": True}, **sizes, **places)
    assert ("bypass-not-active" in slugs) == idle


@pytest.mark.parametrize(
    ("trainer", "bypass", "places", "included"),
    [
        ("verl-0.8.0", True, {}, True),
        ("verl-0.8.0", False, {}, False),
        ("verl-0.9", False, {}, True),
        ("verl-0.9", False, {"trainer__use_v1": False}, False),
        ("verl-0.9", True, {"trainer__use_v1": False}, True),
        ("verl-0.7.1", True, {}, False),
    ],
)
def test_whether_the_denominator_includes_rejected_tokens(
    tmp_path, trainer, bypass, places, included
):
    slugs = found(tmp_path, trainer, {**REJECT, "bypass_mode": bypass}, **places)
    assert ("rejected-in-denominator" in slugs) == included
    if included:
        assert ("#4852" in slugs["rejected-in-denominator"].message) == bypass
    weighted = found(tmp_path, trainer, {**TOKEN, "bypass_mode": bypass}, **places)
    assert "rejected-in-denominator" not in weighted


@pytest.mark.parametrize(("estimator", "output"), [("grpo", True), ("rloo", True), ("gae", False)])
def test_rejected_rows_in_the_baseline(tmp_path, estimator, output):
    places = {"algorithm__adv_estimator": estimator}
    assert ("rejected-in-baseline" in found(tmp_path, "verl-0.9", REJECT, **places)) == output
    assert "rejected-in-baseline" not in found(tmp_path, "verl-0.9", TOKEN, **places)


@pytest.mark.parametrize(
    ("trainer", "asked", "off"),
    [
        ("verl-0.8.0", None, True),
        ("verl-0.8.0", True, False),
        ("verl-0.9", None, False),
        ("verl-0.9", False, True),
    ],
)
def test_a_sampler_that_records_nothing(tmp_path, trainer, asked, off):
    rollout = {} if asked is None else {"calculate_log_probs": asked}
    slugs = found(tmp_path, trainer, TOKEN, actor_rollout_ref__rollout=rollout)
    assert ("rollout-log-probs-off" in slugs) == off
    nothing = found(tmp_path, trainer, {"rollout_is": None}, actor_rollout_ref__rollout={"n": 8})
    assert "rollout-log-probs-off" not in nothing


@pytest.mark.parametrize(
    ("trainer", "sampling", "output"),
    [
        ("verl-0.9", {"top_p": 0.9}, "top_p 0.9"),
        ("verl-0.9", {"top_k": 50}, "top_k 50"),
        ("verl-0.9", {"temperature": 0.7, "top_k": -1}, None),
        ("verl-0.9", {"temperature": 0.7, "logprobs_mode": "raw_logprobs"}, "#4162"),
        ("verl-0.6.1", {"temperature": 0.7}, "#4162"),
        ("verl-0.6.1", {"top_p": 0.9}, None),
    ],
)
def test_a_sampler_that_records_another_distribution(tmp_path, trainer, sampling, output):
    places = {f"{ROLLOUT}{name}": value for name, value in sampling.items()}
    slugs = found(tmp_path, trainer, TOKEN, **places)
    assert ("sampler-distribution-differs" in slugs) == (output is not None)
    if output is not None:
        assert output in slugs["sampler-distribution-differs"].message


def test_the_block_alone_gives_no_findings_about_other_settings(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"rollout_correction": {**REJECT, "bypass_mode": True}}))
    assert read_trainer_config(file, "verl-0.9").findings == ()
