"""A trainer's own configuration sets the policy loss of `replay`, and its bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rcdiag.errors import RcdiagError
from rcdiag.losses.settings import CLIP_HIGH, CLIP_LOW
from rcdiag.usecases.plans import plan_of
from rcdiag.usecases.replay.update import TrainerUpdate
from tests.trainers.update_settings import update_of

VERL = """
algorithm: {rollout_correction: {rollout_is: token}}
actor_rollout_ref:
  actor:
    clip_ratio_low: 3e-4
    clip_ratio_high: 0.0004
    clip_ratio_c: 10
    loss_agg_mode: seq-mean-token-mean
    policy_loss: {loss_mode: gspo}
"""


def updated(
    folder: Path, text: str, trainer: str | None = None, loss_settings: Any = (), **given: Any
) -> TrainerUpdate:
    file = folder / "run.conf"
    file.write_text(text)
    return update_of(plan_of(trainer=trainer, trainer_config=file), loss_settings, **given)


# Trainer, its file, and the expected loss, aggregation and settings.
FILES: list[tuple[str, str, str, str, dict[str, Any]]] = [
    (
        "verl",
        VERL,
        "gspo",
        "seq-mean-token-mean",
        {"clip_low": 3e-4, "clip_high": 4e-4},
    ),
    (
        "verl",
        "actor_rollout_ref: {actor: {clip_ratio_low: null, clip_ratio_high: null, clip_ratio: 0.1,"
        " policy_loss: {loss_mode: bypass_mode}}}\nalgorithm: {rollout_correction: "
        "{rollout_is: token, bypass_mode: true}}",
        "vanilla",
        "token-mean",
        {"clip_low": 0.1, "clip_high": 0.1},
    ),
    (
        "trl",
        "use_vllm: true\nloss_type: cispo\nepsilon_high: 5.0",
        "cispo",
        "token-mean",
        {"epsilon_high": 5.0},
    ),
    (
        "axolotl",
        "rl: grpo\ntrl: {async_prefetch: true, use_vllm: true, loss_type: luspo, epsilon: 0.1, "
        "importance_sampling_level: sequence, vllm_importance_sampling_cap: 2}",
        "luspo",
        "token-mean",
        {"clip_low": 0.1, "clip_high": 0.1, "importance_sampling_level": "sequence"},
    ),
    (
        "ms-swift",
        "rlhf_type: grpo\nloss_type: fipo\nfipo_safety_threshold: null\nfipo_clip_high_only: false",
        "fipo",
        "token-mean",
        {"fipo_safety_threshold": None, "fipo_clip_high_only": False},
    ),
    (
        "openrlhf",
        "python -m openrlhf.cli.train_ppo_ray --actor.policy_loss_type gspo "
        "--actor.eps_clip_low_high 0.1 0.3 --algo.advantage.is_correction_level token",
        "gspo",
        "token-mean",
        {"clip_low": 0.1, "clip_high": 0.3},
    ),
    (
        "skyrl",
        "trainer: {algorithm: {policy_loss_type: cispo, loss_reduction: prompt_mean, "
        "cispo: {cispo_anchor: rollout, cispo_eps_clip_high: 2.0}}}\ngenerator: {}",
        "cispo_rollout",
        "prompt-mean-token-mean",
        {"clip_high": 2.0},
    ),
    (
        "nemo-rl",
        "grpo: {}\npolicy: {}\nloss_fn: {ratio_clip_min: 0.1, ratio_clip_max: 0.3, "
        "ratio_clip_c: 4, token_level_loss: false, use_importance_sampling_correction: true}",
        "vanilla",
        "seq-mean-token-mean",
        {"clip_low": 0.1, "clip_high": 0.3, "clip_c": 4.0},
    ),
    (
        "areal",
        "actor: {use_decoupled_loss: true, eps_clip: 0.1, eps_clip_higher: 0.4, c_clip: 3}",
        "vanilla",
        "token-mean",
        {"clip_low": 0.1, "clip_high": 0.4, "clip_c": 3.0},
    ),
    (
        "areal",
        "actor: {use_decoupled_loss: true, use_cispo_loss: true, eps_clip_higher: 4.0}",
        "cispo",
        "token-mean",
        {"clip_low": 0.2, "clip_high": 4.0},
    ),
    (
        "prime-rl",
        '[trainer.loss]\ntype = "icepop"\nadv_tau = 0.5',
        "icepop_ratio",
        "token-mean",
        {"kl_tau": 0.0, "adv_tau": 0.5},
    ),
    (
        "prime-rl",
        '[trainer.loss]\ntype = "ipo"\nkl_tau = 0.01\nipo_threshold = 0.2',
        "ipo_tv",
        "token-mean",
        {"kl_tau": 0.01},
    ),
    (
        "roll",
        "train_infer_correction: {}\npg_clip: 0.3\ndual_clip_loss: true\nloss_agg_mode: token-mean",
        "vanilla",
        "token-mean",
        {"clip_low": 0.3, "clip_high": 0.3, "clip_c": 1.6},
    ),
    (
        "open-instruct",
        "python grpo_fast.py --use_rho_correction true --clip_higher 0.3 --loss_fn cispo "
        "--loss_denominator 1024",
        "cispo",
        "token-mean",
        {"clip_high": 0.3},
    ),
    (
        "miles",
        "python miles/train.py --use-tis --tis-clip 2 --advantage-estimator gspo --eps-clip 3e-4 "
        "--eps-clip-high 4e-4 --use-opsm --calculate-per-token-loss",
        "gspo",
        "token-mean",
        {"clip_low": 3e-4, "clip_high": 4e-4, "opsm_delta": 1e-4},
    ),
]


@pytest.mark.parametrize(
    ("trainer", "text", "loss", "aggregation", "own"), FILES, ids=lambda value: str(value)[:24]
)
def test_the_file_sets_loss_bounds_and_aggregation(
    tmp_path: Path, trainer: str, text: str, loss: str, aggregation: str, own: dict[str, Any]
) -> None:
    update = updated(tmp_path, text)
    assert update.plan.trainer.family == trainer
    assert (update.loss, update.settings.aggregation) == (loss, aggregation)
    assert {name: update.settings.own[name] for name in own} == own
    (note,) = [one for one in update.plan.findings if one.slug == "loss-of-trainer-config"]
    assert loss in note.message


def test_options_override_the_file(tmp_path: Path) -> None:
    update = updated(
        tmp_path, VERL, loss="vanilla", clip_low=0.1, aggregation="token-mean", clip_high=None
    )
    assert (update.loss, update.settings.aggregation) == ("vanilla", "token-mean")
    assert update.settings.value(CLIP_LOW) == 0.1
    assert update.settings.value(CLIP_HIGH) == 4e-4
    assert update.settings.own["clip_c"] == 10.0


def test_a_constant_of_the_file_is_its_denominator(tmp_path: Path) -> None:
    file = "python grpo.py --rho_clamp_upper_bound 2 --loss_denominator 1024"
    settings = updated(tmp_path, file).settings
    assert (settings.denominator, settings.constant) == ("constant", 1024.0)
    assert updated(tmp_path, file, denominator="all").settings.constant is None


def test_without_a_setting_of_the_loss_there_is_no_note(tmp_path: Path) -> None:
    update = updated(tmp_path, "rollout_is: token\nrollout_is_threshold: 3.0")
    assert update.loss == "vanilla"
    assert "loss-of-trainer-config" not in [one.slug for one in update.plan.findings]


def test_open_instruct_has_its_own_clip_defaults() -> None:
    """Its clip range is 0.2 below and 0.272 above by default."""
    update = update_of(plan_of(trainer="open-instruct"), clip_high=None)
    assert update.settings.value(CLIP_HIGH) == 0.272


def test_the_default_clip_depends_on_the_loss() -> None:
    """SkyRL's cispo bounds the ratio to 0 and 5 by default."""
    plan = plan_of(trainer="skyrl")
    assert update_of(plan, loss="cispo").clip == (1.0, 4.0)
    assert update_of(plan, loss="cispo", clip_high=2.0).clip == (1.0, 2.0)


def test_a_clip_ratio_that_verl_does_not_read_is_a_finding(tmp_path: Path) -> None:
    text = "algorithm: {rollout_correction: {rollout_is: token}}\n"
    text += "actor_rollout_ref: {actor: {clip_ratio: 0.4, loss_agg_mode: token-sum}}"
    update = updated(tmp_path, text)
    assert update.settings.value(CLIP_LOW) == 0.2
    assert "clip_ratio has no effect" in update.plan.findings[-1].message


@pytest.mark.parametrize(
    ("trainer", "text", "names"),
    [
        ("trl", "use_vllm: true\nloss_type: mine", "loss_type: mine"),
        ("verl", VERL.replace("loss_mode: gspo", "loss_mode: my_loss"), "my_loss"),
        ("skyrl", "trainer: {algorithm: {loss_reduction: token_mean_legacy}}", "token_mean_legacy"),
        (
            "areal",
            "actor: {use_decoupled_loss: true, use_cispo_loss: true}",
            "use_cispo_loss without an eps_clip_higher above 0",
        ),
        (
            "areal",
            "actor: {m2_threshold: null, use_cispo_loss: true, use_sapo_loss: true, "
            "eps_clip_higher: 4.0}",
            "use_cispo_loss together with use_sapo_loss",
        ),
        (
            "areal-1.0",
            "actor: {behave_imp_weight_cap: 5.0, use_cispo_loss: true}",
            "areal-1.0 does not have this loss",
        ),
    ],
)
def test_an_unknown_loss_is_refused_unless_another_is_named(
    tmp_path: Path, trainer: str, text: str, names: str
) -> None:
    with pytest.raises(RcdiagError, match=names):
        updated(tmp_path, text, trainer)
    assert updated(tmp_path, text, trainer, loss="vanilla").loss == "vanilla"


def test_references_of_hydra_are_ignored(tmp_path: Path) -> None:
    text = VERL.replace("clip_ratio_c: 10", "clip_ratio_c: ${oc.select:other,3.0}")
    assert "clip_c" not in updated(tmp_path, text).settings.own


def test_a_bound_that_is_not_a_number_names_its_key(tmp_path: Path) -> None:
    with pytest.raises(RcdiagError, match="eps_clip: wanted a number"):
        updated(tmp_path, "actor: {use_decoupled_loss: true, eps_clip: wide}")
