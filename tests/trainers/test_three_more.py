"""SkyRL, NeMo-RL and AReaL: their configuration files, refusals and traps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from rcdiag.corrections.apply import token_effects
from rcdiag.corrections.arithmetic import Tokens
from rcdiag.corrections.sequences import rows_of
from rcdiag.corrections.trainer_means import Batch
from rcdiag.trainers import TRAINERS, find_trainer
from rcdiag.trainers.own_config import TrainerConfig
from rcdiag.trainers.plan import plan_corrections
from rcdiag.trainers.settings_text import ABOVE_ALL
from rcdiag.trainers.trainer import Config, Refused
from tests.corrections.builders import Padded, result_of
from tests.trainers.batches import BATCHES
from tests.trainers.config_files import read
from tests.two_rows import toy_pair

SKYRL = """
trainer:
  algorithm:
    off_policy_correction: {tis_ratio_type: token, token_tis_ratio_clip_high: 1.8}
generator: {sampling_params: {logprobs: 1}}
"""
SKYRL_SCRIPT = """
# DPPO on GSM8K
uv run -m skyrl.train.entrypoints.main_base \\
  trainer.algorithm.policy_loss_type=dppo \\
  trainer.algorithm.dppo.delta_high=0.1 \\
  generator.sampling_params.temperature=1.0
"""
NEMO_RL = """
loss_fn:
  reference_policy_kl_penalty: 0.01
  ratio_clip_min: 0.2
  use_importance_sampling_correction: true
  truncated_importance_sampling_type: icepop
  truncated_importance_sampling_ratio_min: 0.6
  truncated_importance_sampling_ratio: 3.0
grpo: {seq_logprob_error_threshold: 1.3}
policy: {model_name: m}
"""
AREAL = """
actor:
  eps_clip: 0.2
  use_decoupled_loss: true
  rejection_sampling: {level: sequence, metric: ratio, agg: sum, lower: 0.95, upper: 1.05}
rollout: {}
gconfig: {}
"""


class FirstUpdate:
    """The toy pair in a first update, with advantages 1 and -1, under a trainer's settings."""

    def __init__(self, name: str, settings: Config, empty: int = 0) -> None:
        pair = toy_pair()
        pair = replace(pair, tokens=replace(pair.tokens, advantage=np.array([1.0, -1.0])))
        trainer = TRAINERS[name]
        self.correction = trainer.read({**trainer.settings, **settings})
        rows = rows_of(pair, empty=empty).under(self.correction.guard)
        self.effects = token_effects(self.correction, Tokens.of(pair), rows)
        self.logged = trainer.metrics(Batch(rows), self.correction)


def padded(name: str) -> Padded:
    batch = BATCHES[name]
    return Padded(batch.old, batch.rollout, batch.mask)


def slugs(found: TrainerConfig) -> list[str]:
    plan = plan_corrections(found.trainer, {"it": found.settings}, findings=found.findings)
    return [finding.slug for finding in plan.findings]


@pytest.mark.parametrize(
    ("text", "trainer", "settings"),
    [
        (SKYRL, "skyrl-0.4", {"tis_ratio_type": "token", "token_tis_ratio_clip_high": 1.8}),
        (SKYRL_SCRIPT, "skyrl-0.4", {"policy_loss_type": "dppo", "delta_high": 0.1}),
        ("tis_ratio_type: sequence\n", "skyrl-0.4", {"tis_ratio_type": "sequence"}),
        ("trainer: {algorithm: {gamma: 1}}\ngenerator: {}\n", "skyrl-0.4", {}),
        (
            NEMO_RL,
            "nemo-rl",
            {
                "use_importance_sampling_correction": True,
                "truncated_importance_sampling_type": "icepop",
                "truncated_importance_sampling_ratio": 3.0,
                "truncated_importance_sampling_ratio_min": 0.6,
                "seq_logprob_error_threshold": 1.3,
            },
        ),
        ("loss_fn: {ratio_clip_min: 0.2}\ngrpo: {}\n", "nemo-rl", {}),
        (
            AREAL,
            "areal-20260822",
            {
                "use_decoupled_loss": True,
                "rejection_sampling": True,
                "rejection_sampling.level": "sequence",
                "rejection_sampling.metric": "ratio",
                "rejection_sampling.agg": "sum",
                "rejection_sampling.lower": 0.95,
                "rejection_sampling.upper": 1.05,
            },
        ),
        (
            "actor: {use_decoupled_loss: true, rejection_sampling: null}\n",
            "areal-20260822",
            {"use_decoupled_loss": True, "rejection_sampling": False},
        ),
        ("actor: {path: m}\nrollout: {}\ngconfig: {}\n", "areal-20260822", {}),
    ],
)
def test_files_of_a_trainer(
    tmp_path: Path, text: str, trainer: str, settings: dict[str, Any]
) -> None:
    found = read(tmp_path, text)
    assert (found.trainer.name, dict(found.settings)) == (trainer, settings)
    assert ("trainer-defaults" in slugs(found)) == (not settings)


def test_the_settings_that_areal_removed(tmp_path: Path) -> None:
    text = "actor: {use_decoupled_loss: true, behave_imp_weight_cap: 2.0}\n"
    found = read(tmp_path, text.replace("}", ", behave_imp_weight_mode: token_truncate}"))
    own = {"level": "token", "action": "clamp", "upper": 2.0}
    assert found.settings == {
        "use_decoupled_loss": True,
        "rejection_sampling": True,
        **{f"rejection_sampling.{name}": value for name, value in own.items()},
    }
    assert slugs(found) == ["removed-setting"]


@pytest.mark.parametrize(
    ("cap", "action", "upper"), [("5.0", "mask", 5.0), ("null", "clamp", ABOVE_ALL)]
)
def test_the_cap_of_areal_0_3(tmp_path: Path, cap: str, action: str, upper: float) -> None:
    """It masks weights above the cap; without one the decoupled loss takes raw weights."""
    text = (
        f"ppo: {{use_decoupled_loss: true, recompute_logprob: true, behav_imp_weight_cap: {cap}}}"
    )
    found = read(tmp_path, text)
    assert found.settings["rejection_sampling.action"] == action
    assert found.settings["rejection_sampling.upper"] == upper
    assert slugs(found) == ["removed-setting"]


def test_a_misspelt_setting_is_reported(tmp_path: Path) -> None:
    block = "off_policy_correction: {tis_ratio_type: token, geo_mask_hgih: 1.02}"
    found = read(tmp_path, f"trainer: {{algorithm: {{{block}}}}}\n")
    (finding,) = found.findings
    assert "`geo_mask_hgih` is not a setting of skyrl-0.4" in finding.message
    assert "did you mean geo_mask_high?" in finding.fix
    assert found.settings == {"tis_ratio_type": "token"}


def test_names_similar_to_a_setting_are_not_misspellings(tmp_path: Path) -> None:
    assert read(tmp_path, NEMO_RL).trainer.name == "nemo-rl"


@pytest.mark.parametrize(
    ("trainer", "settings", "message"),
    [
        ("skyrl", {"tis_ratio_type": "geometric"}, "not one of its values"),
        ("skyrl", {"tis_ratio_type": "token", "policy_loss_type": "kl_cov"}, "takes no"),
        (
            "skyrl",
            {"tis_ratio_type": "token", "policy_loss_type": "cispo", "cispo_anchor": "rollout"},
            "refuses tis_ratio_type",
        ),
        ("nemo-rl", {"truncated_importance_sampling_ratio": 2.0}, "the first loss fails"),
        ("nemo-rl", {"truncated_importance_sampling_type": "tis"}, "needs use_importance"),
        ("nemo-rl", {"sequence_level_importance_ratios": True}, "needs token_level_loss false"),
        ("areal", {"rejection_sampling.upper": 1.0}, "not above 1"),
        ("areal", {"rejection_sampling.lower": 6.0}, "above upper"),
        (
            "areal",
            {"rejection_sampling.action": "clamp", "rejection_sampling.metric": "kl_k2"},
            "only works with metric ratio",
        ),
        ("areal", {"prox_logp_method": "loglinear"}, "A table does not contain k"),
        ("areal", {"rejection_sampling.metric": "binary_kl"}, "a dead option"),
    ],
)
def test_settings_that_a_trainer_refuses(
    trainer: str, settings: dict[str, Any], message: str
) -> None:
    found = find_trainer(trainer)
    on = {"use_decoupled_loss": True, "rejection_sampling": True} if trainer == "areal" else {}
    with pytest.raises(Refused, match=message):
        found.read({**found.settings, **on, **settings})


def test_settings_that_rcdiag_cannot_compute_are_not_called_refused() -> None:
    settings = {"use_decoupled_loss": True, "prox_logp_method": "loglinear"}
    plan = plan_corrections(find_trainer("areal"), {"it": settings})
    (finding,) = plan.findings
    assert finding.slug == "settings-not-computed"
    assert "areal-20260822 takes prox_logp_method: loglinear" in finding.message
    assert not plan.corrections


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("trainer: {algorithm: {use_tis: true}}\ngenerator: {}\n", "use-tis-turns-update"),
        (
            "trainer: {algorithm: {off_policy_correction: {outlier_token_is_threshold_low: 0.1}}}\n"
            "generator: {sampling_params: {logprobs: null}}\n",
            "masks-without-log-probs",
        ),
        ("loss_fn: {force_on_policy_ratio: true}\ngrpo: {}\n", "old-log-probs-are-zero"),
        (
            "loss_fn: {ratio_clip_min: 0.2}\ngrpo: {async_grpo: {enabled: true}}\n",
            "async-without-weights",
        ),
        ("actor: {use_decoupled_loss: true}\n", "decoupled-without-weights"),
        ("actor: {use_decoupled_loss: false, recompute_logprob: true}\n", "mismatch-overwritten"),
    ],
)
def test_traps_are_findings(tmp_path: Path, text: str, slug: str) -> None:
    assert slug in slugs(read(tmp_path, text))


def test_without_a_trap_there_is_no_finding(tmp_path: Path) -> None:
    assert [slugs(read(tmp_path, text)) for text in (SKYRL, NEMO_RL, AREAL)] == [[], [], []]


@pytest.mark.parametrize(
    ("trainer", "settings", "sentence"),
    [
        ("skyrl", {"token_mask_is_threshold_low": 0.5}, "has no effect alone"),
        ("nemo-rl", {"truncated_importance_sampling_ratio_min": 0.5}, "has no effect without"),
        ("areal", {"rejection_sampling": True}, "without use_decoupled_loss"),
        ("areal", {"rejection_sampling.upper": 2.0}, "without rejection_sampling"),
        ("areal", {"m2_threshold": 0.04}, "without use_decoupled_loss"),
    ],
)
def test_settings_without_effect(trainer: str, settings: dict[str, Any], sentence: str) -> None:
    found = find_trainer(trainer)
    assert [each for each in found.ignored({**found.settings, **settings}) if sentence in each]


def test_weights_of_use_tis_alone_are_minus_one() -> None:
    batch = padded("mild")
    assert result_of("skyrl", {"use_tis": True}, batch).weight_sum == -batch.mask.sum()


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        # ratios e^0.1, e^-0.1, e^1.5 and e^-1.2, e^-0.5
        ("loss_rollout_is", [np.exp(0.1), np.exp(-0.1), 0.0, 0.0, 0.0]),
        ("loss_cispo_rollout", np.exp([0.1, -0.1, 1.5, -1.2, -0.5])),
        # behavior probabilities 0.368, 0.607, 0.135 | 0.497, 0.223: changes 0.039, -0.058, 0.471
        # under advantage 1 and -0.347, -0.088 under -1
        ("loss_dppo_tv", [np.exp(0.1), np.exp(-0.1), 0.0, 0.0, np.exp(-0.5)]),
    ],
)
def test_weights_computed_inside_the_loss(preset: str, expected: list[float]) -> None:
    """By hand, at the first update; they differ from weights that multiply the loss."""
    update = FirstUpdate("skyrl-0.4", TRAINERS["skyrl-0.4"].presets[preset], empty=1)
    effects = update.effects
    assert update.correction.weights_in_loss
    assert effects.weights == pytest.approx(np.asarray(expected))
    assert effects.kept.all()


def test_the_share_of_correct_sequences_that_the_filter_drops() -> None:
    batch = padded("rough")
    reward = np.array([1.0, 0.0, 1.0, 0.5, 1.0])
    config = {"seq_logprob_error_threshold": 1.0}
    metrics = result_of("nemo-rl", config, dataclasses.replace(batch, reward=reward)).metrics
    assert metrics["train/num_masked_seqs_by_logprob_error"] == 5.0
    assert metrics["train/masked_correct_pct"] == pytest.approx(3 / 5)


def test_m2po_compares_tokens_of_the_whole_batch() -> None:
    """Squares 4, 1, 0.25, 0.01, 0: means of the rest 1.052, 0.315, 0.0867, 0.005, 0."""
    ratios = np.array([[2.0, -1.0, 0.0], [0.5, -0.1, 0.0]])
    mask = np.array([[True, True, False], [True, True, True]])
    batch = Padded(np.minimum(ratios, 0.0), -np.maximum(ratios, 0.0), mask)
    for threshold, kept in ((2.0, 5), (1.0, 4), (0.3, 3), (0.0867, 3), (0.08, 2), (1e-9, 1)):
        config = {"use_decoupled_loss": True, "m2_threshold": threshold}
        assert result_of("areal", config, batch).kept_tokens == kept, threshold


def test_prime_rls_icepop_drops_by_ratio_and_logs_the_dropped_share() -> None:
    """By hand: ratios e^0.1, e^-0.1, e^1.5 and e^-1.2, e^-0.5 against a band from 0.5 to 4."""
    name = "prime-rl-20260918"
    band = {"type": "icepop", "ratio_low": 0.5, "ratio_high": 4.0}
    update = FirstUpdate(name, band)
    effects = update.effects
    log_ratio = np.array([0.1, -0.1, 1.5, -1.2, -0.5])
    # Rejection moves the mask and never the weights.
    assert effects.weights == pytest.approx(np.exp(log_ratio))
    assert list(effects.kept) == [True, True, False, False, True]
    logged = update.logged
    kl = np.exp(log_ratio) - log_ratio - 1
    assert logged["is_masked/mean"] == pytest.approx((1 / 3 + 1 / 2) / 2)
    assert logged["masked_mismatch_kl/max"] == pytest.approx(max(kl[2], kl[3]))
    assert logged["unmasked_mismatch_kl/min"] == pytest.approx(min(kl[:2].mean(), kl[4]))
    assert logged["mismatch_kl/all/mean"] == pytest.approx(kl.mean())
    assert not [key for key in logged if key.startswith(("is_masked_", "masked_advantage"))]
    # Bounds are inside the band.
    edge = FirstUpdate(name, {**band, "ratio_high": float(np.exp(1.5))})
    assert edge.effects.kept[2]


def test_the_weight_sum_has_one_definition() -> None:
    """For every trainer the sum of weights runs over the mask before rejection."""
    by_trainer: dict[str, dict[str, Any]] = {
        "prime-rl": {"type": "icepop", "ratio_low": 0.9, "ratio_high": 1.1},
        "prime-rl-20260821": {"dppo_mask_low": 0.0, "dppo_mask_high": 0.0},
        "skyrl": {
            "tis_ratio_type": "token",
            "token_tis_ratio_clip_high": 1e9,
            "token_mask_is_threshold_low": 0.9,
            "token_mask_is_threshold_high": 1.1,
        },
    }
    batch = padded("mild")
    ratios = np.exp((batch.old - batch.rollout)[batch.mask].astype(np.float64))
    for name, settings in by_trainer.items():
        result = result_of(name, settings, batch)
        assert result.kept_tokens < batch.mask.sum()
        assert result.weight_sum == pytest.approx(ratios.sum(), rel=1e-6)


def test_metrics_of_skyrls_loss_on_the_rollout() -> None:
    """By hand, at the first update: ratios e^0.1, e^-0.1, e^1.5, e^-1.2, e^-0.5 of the toy."""
    presets = TRAINERS["skyrl-0.4"].presets

    def logged(settings: Config) -> dict[str, float]:
        prefix, found = "policy/loss_metrics/", FirstUpdate("skyrl-0.4", settings).logged
        return {key[len(prefix) :]: value for key, value in found.items() if prefix in key}

    ratio = np.exp([0.1, -0.1, 1.5, -1.2, -0.5])
    assert logged(presets["loss_rollout_is"]) == {"clip_ratio": 3 / 5}
    assert logged(presets["loss_dppo_tv"]) == {"clip_ratio": 2 / 5}
    cispo = logged({**presets["loss_cispo_rollout"], "cispo_eps_clip_high": 2.0})
    assert cispo.pop("clip_ratio") == 1 / 5
    assert cispo == pytest.approx(
        {
            "cispo/ratio_mean": ratio.mean(),
            "cispo/ratio_clamped_mean": np.minimum(ratio, 3.0).mean(),
            "cispo/ratio_max": ratio.max(),
            "cispo/ratio_min": ratio.min(),
        }
    )
    assert logged({}) == {}


def test_trls_asynchronous_grpo_corrects_nothing(tmp_path: Path) -> None:
    """Its file is detected by its own names; the logged PPO ratio includes the mismatch."""
    found = read(tmp_path, "max_staleness: 8\nweight_sync_steps: 1\nepsilon_high: 0.28\n")
    assert found.trainer.name == "trl-async-1.16"
    correction = found.trainer.read({**found.trainer.settings, **found.settings})
    assert (correction.mode, correction.weighting, correction.rejections) == ("bypass", None, ())
    assert correction.ratio_corrects
    batch = padded("rough")
    result = result_of("trl-async", {}, batch)
    log_ratio = (batch.old - batch.rollout)[batch.mask].astype(np.float64)
    assert result.weight_sum is None
    assert result.kept_tokens == batch.mask.sum()
    assert result.metrics == pytest.approx(
        {
            "ratio": np.exp(log_ratio).mean(),
            "kl": (np.exp(log_ratio) - log_ratio - 1.0).mean(),
        },
        rel=1e-6,
    )
