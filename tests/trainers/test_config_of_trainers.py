"""A trainer is detected by its file's keys, the file is read as it does, traps are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from rcdiag.corrections.correction import Rejection, Weighting
from rcdiag.errors import RcdiagError
from rcdiag.formats import yaml_value
from rcdiag.results import Finding
from rcdiag.trainers.plan import Plan, plan_corrections
from tests.trainers.config_files import read

MODE = "vllm_importance_sampling_mode"
OPENRLHF = "python3 -m openrlhf.cli.train_ppo_ray \\\n   --actor.policy_loss_type ppo \\\n"
TRL_SCRIPT = "accelerate launch train.py \\\n  --use_vllm true \\\n"
AXOLOTL = "base_model: Qwen/Qwen3-8B\nrl: grpo\ntrl:\n  use_vllm: true\n"


def plan_of(folder: Path, text: str, trainer: str | None = None) -> Plan:
    found = read(folder, text, trainer)
    return plan_corrections(found.trainer, {"config": found.settings}, findings=found.findings)


@pytest.mark.parametrize(
    ("text", "trainer"),
    [
        (f"{MODE}: token_truncate\nuse_vllm: true\n", "trl-1.16"),
        (f"{TRL_SCRIPT}  --{MODE} token_mask\n", "trl-1.16"),
        ("use_vllm: true\nloss_type: dapo\n", "trl-1.16"),
        ("num_generations: 8\nloss_type: grpo\nbeta: 0.0\n", "trl-1.16"),
        (f"{AXOLOTL}  {MODE}: token_mask\n", "trl-1.16"),
        (f"{AXOLOTL}  async_prefetch: true\n", "axolotl-0.21"),
        (f"{AXOLOTL}  use_data_producer: true\n  {MODE}: token_mask\n", "axolotl-0.21"),
        (f"{AXOLOTL}  async_prefetch: false\n  {MODE}: token_mask\n", "trl-1.16"),
        (f"{OPENRLHF}   --algo.advantage.is_correction_level seq\n", "openrlhf-0.11.2"),
        (f"{OPENRLHF}   --algo.advantage.is_correction_enable\n", "openrlhf-0.11.0"),
        (f"{OPENRLHF}   --algo.advantage.is_correction_type icepop\n", "openrlhf-0.11.0"),
        (OPENRLHF, "openrlhf-0.11.2"),
        ("rlhf_type: grpo\nrollout_importance_sampling_mode: token_mask\n", "ms-swift-4.6"),
        ("swift rlhf \\\n --rlhf_type grpo \\\n --use_vllm true\n", "ms-swift-4.6"),
        ("off_policy_sequence_mask_delta: 0.1\n", "ms-swift-4.6"),
        ("python3 /workspace/slime/train.py --use-tis --tis-clip 1.5\n", "slime"),
        ("python3 /workspace/miles/train.py --use-tis --tis-clip 1.5\n", "miles"),
        ("python3 train.py --use-tis --tis-clip 1.5\n", "slime"),
        ("python3 train.py --use-rollout-logprobs --update-weight-mode full\n", "slime"),
        ("python3 /workspace/miles/train.py --calculate-per-token-loss\n", "miles"),
    ],
)
def test_the_trainer_is_detected_by_the_keys(text: str, trainer: str, tmp_path: Path) -> None:
    plan = plan_of(tmp_path, text)
    assert plan.trainer.name == trainer
    assert list(plan.corrections) == ["config"]


def test_settings_of_vllms_correction_imply_sampling_with_vllm(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, f"{MODE}: token_truncate\n")
    assert plan.configs["config"]["use_vllm"] is True
    assert plan.corrections["config"].weighting == Weighting("token", 3.0, 0.0, "clip")
    assert "use-vllm-implied" in {finding.slug for finding in plan.findings}
    without = plan_of(tmp_path, f"use_vllm: false\n{MODE}: token_truncate\n")
    assert without.corrections["config"].weighting is None
    assert "use-vllm-implied" not in {finding.slug for finding in without.findings}


@pytest.mark.parametrize(
    ("trainer", "weighting"),
    [
        ("trl", Weighting("sequence", 3.0, 0.0, "zero")),
        ("axolotl", Weighting("token", 3.0, 1 / 3.0, "clip", nan_stays=True)),
        ("openrlhf", None),
        ("openrlhf-0.11.0", None),
        ("ms-swift", None),
    ],
)
def test_a_file_without_a_setting_runs_the_defaults(
    trainer: str, weighting: Weighting | None, tmp_path: Path
) -> None:
    plan = plan_of(tmp_path, "learning_rate: 1.0e-6\n", trainer)
    assert plan.corrections["config"].weighting == weighting
    assert "trainer-defaults" in {finding.slug for finding in plan.findings}


RUN = "--advantage-estimator grpo --rollout-batch-size 4"


@pytest.mark.parametrize(
    ("text", "trainer", "corrects"),
    [
        ("actor_rollout_ref: {actor: {ppo_epochs: 1}}\nalgorithm: {adv_estimator: grpo}\n",
         "verl-0.9", False),
        ("python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=4\n", "verl-0.9", False),
        (f"python3 /workspace/slime/train.py {RUN}\n", "slime", False),
        (f"python3 train.py {RUN} --rollout-max-response-len 9\n", "slime", False),
        (f"python3 train.py {RUN} --update-weight-mode full\n", "slime", False),
        (f"python3 miles/train.py {RUN} --hf-checkpoint m\n", "miles", False),
        ("python open_instruct/grpo_fast.py --beta 0.0\n", "open-instruct", True),
        ("python3 -m openrlhf.cli.train_ppo_ray --actor.num_nodes 1\n", "openrlhf-0.11.2", False),
        ("trl grpo --model_name_or_path x\n", "trl-1.16", True),
        ("base_model: x\nrl: grpo\n", "trl-1.16", True),
    ],
)  # fmt: skip
def test_a_run_that_sets_nothing_runs_the_defaults_of_its_trainer(
    text: str, trainer: str, corrects: bool, tmp_path: Path
) -> None:
    plan = plan_of(tmp_path, text)
    assert plan.trainer.name == trainer
    assert (plan.corrections["config"].weighting is not None) == corrects
    assert "trainer-defaults" in {finding.slug for finding in plan.findings}


def test_an_evaluation_with_vllm_is_no_run_of_trl(tmp_path: Path) -> None:
    with pytest.raises(RcdiagError, match="no settings of a rollout correction"):
        read(tmp_path, "python -m eval.MATH.run_eval --n_shot 4 --use_vllm\n")


def test_slime_and_miles_do_the_same_with_the_flags_of_both(tmp_path: Path) -> None:
    """So a script that names neither may be read as one of slime."""
    script = "python3 train.py --use-tis --tis-clip 1.5\n"
    guessed = plan_of(tmp_path, script)
    assert "trainer-guessed" in slugs(guessed)
    assert guessed.corrections == plan_of(tmp_path, script, "miles").corrections


def test_an_unnamed_script_of_slime_is_read_with_trainer(tmp_path: Path) -> None:
    script = f"python3 train.py {RUN}\n"
    with pytest.raises(RcdiagError, match="no settings of a rollout correction"):
        read(tmp_path, script)
    assert read(tmp_path, script, "slime").settings["use_tis"] is False
    with pytest.raises(RcdiagError, match="no settings of a rollout correction"):
        read(tmp_path, "learning_rate: 1.0e-6\n", "slime")


def test_a_script_that_only_calls_another_has_no_flags(tmp_path: Path) -> None:
    script = '#!/usr/bin/env bash\n: "${RUN:=$(date)}"\nbash "$HERE/run.sh" "$@"\n'
    with pytest.raises(
        RcdiagError, match="a script without any flag or `name=value` of a trainer; it names"
    ):
        read(tmp_path, script)


@pytest.mark.parametrize(
    ("script", "trainer", "settings"),
    [
        (  # overrides in an array
            'ARGS=("actor_rollout_ref.model.path=$MODEL"\n'
            '    "algorithm.rollout_correction.rollout_is=token")\n'
            'python -m verl.trainer.main_ppo "${ARGS[@]}"\n',
            "verl-0.9",
            {"rollout_is": "token"},
        ),
        (  # SkyRL before its block, with a setting that slime and miles have as well
            "python -m skyrl_train.entrypoints.main_base trainer.algorithm.use_tis=true "
            "trainer.algorithm.tis_imp_ratio_cap=2.0\n",
            "skyrl-0.4",
            {"use_tis": True, "tis_imp_ratio_cap": 2.0},
        ),
    ],
)
def test_scripts_of_users(
    tmp_path: Path, script: str, trainer: str, settings: dict[str, object]
) -> None:
    found = read(tmp_path, script)
    assert found.trainer.name == trainer
    assert found.settings.items() >= settings.items()


def test_a_script_that_names_its_configuration_file_refers_to_it(tmp_path: Path) -> None:
    """As Tunix's scripts for gemma: the settings are in the file of an override."""
    script = "CONFIG=configs/gemma.yaml\npython3 -m tunix.cli.grpo_main \\\n"
    script += "  tunix/cli/base.yaml override_config_file=$CONFIG model_config.seed=1\n"
    with pytest.raises(RcdiagError, match="no settings of a rollout correction") as error:
        read(tmp_path, script)
    assert "it names configs/gemma.yaml, tunix/cli/base.yaml: give the one" in error.value.hint


def test_a_recipe_inherits_from_another_file(tmp_path: Path) -> None:
    """As in NeMo-RL's recipes: closer files take precedence, later files in lists too."""
    base = "loss_fn: {use_importance_sampling_correction: true, ratio_clip_min: 0.2}\ngrpo: {}\n"
    (tmp_path / "base.yaml").write_text(base)
    (tmp_path / "middle.yaml").write_text(
        "defaults: base.yaml\nloss_fn: {truncated_importance_sampling_type: tis, "
        "truncated_importance_sampling_ratio: 2.0}\n"
    )
    recipe = "defaults: [middle.yaml]\nloss_fn: {truncated_importance_sampling_ratio: 3.0}\n"
    found = read(tmp_path, recipe)
    assert found.trainer.name == "nemo-rl"
    assert found.settings == {
        "use_importance_sampling_correction": True,
        "truncated_importance_sampling_type": "tis",
        "truncated_importance_sampling_ratio": 3.0,
    }
    alone = "defaults: [middle.yaml]\nloss_fn: {_override_: true, ratio_clip_min: 0.1}\n"
    assert read(tmp_path, alone).settings == {}


def test_a_recipe_with_a_missing_base_file_is_an_error(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "defaults: gone.yaml\nloss_fn: {ratio_clip_min: 0.2}\ngrpo: {}\n")
    (finding,) = (one for one in plan.findings if one.slug == "base-config-missing")
    assert "gone.yaml" in finding.message
    (tmp_path / "a.yaml").write_text("defaults: b.yaml\n")
    (tmp_path / "b.yaml").write_text("defaults: a.yaml\n")
    with pytest.raises(RcdiagError, match="are circular"):
        read(tmp_path, "defaults: a.yaml\nloss_fn: {ratio_clip_min: 0.2}\n")


def test_the_old_cap_overwrites_the_upper_bound(tmp_path: Path) -> None:
    text = f"use_vllm: true\n{MODE}: token_truncate\nvllm_importance_sampling_cap: 1.5\n"
    assert plan_of(tmp_path, text).corrections["config"].weighting == Weighting(
        "token", 1.5, 0.0, "clip"
    )


@pytest.mark.parametrize(
    "text",
    [
        "vllm_importance_sampling_clip_min: 3.5\n",
        f"{MODE}: token_truncate\nvllm_importance_sampling_clip_max: null\n",
    ],
)
def test_settings_that_trls_config_refuses_are_refused(text: str, tmp_path: Path) -> None:
    plan = plan_of(tmp_path, f"use_vllm: true\n{text}")
    assert plan.corrections == {}
    assert [finding.slug for finding in plan.findings] == ["trainer-refuses"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("level seq --algo.advantage.is_correction_mode clip", "clip only works with level token"),
        ("level token --algo.advantage.is_correction_gating tv", "tv only has an upper bound"),
        ("level token --algo.advantage.is_correction_threshold 1 2 3", "wanted LOW HIGH, or HIGH"),
    ],
)
def test_settings_that_openrlhfs_loss_refuses_are_refused(
    flags: str, message: str, tmp_path: Path
) -> None:
    plan = plan_of(tmp_path, f"{OPENRLHF} --algo.advantage.is_correction_{flags}\n")
    assert plan.corrections == {}
    assert message in plan.findings[0].message


def test_one_threshold_is_an_upper_bound(tmp_path: Path) -> None:
    text = (
        f"{OPENRLHF} --algo.advantage.is_correction_level seq \\\n"
        " --algo.advantage.is_correction_gating binary_kl \\\n"
        " --algo.advantage.is_correction_threshold 0.002\n"
    )
    (gate,) = plan_of(tmp_path, text).corrections["config"].zeroing
    assert gate == Rejection("seq_mean_binary_kl", 0.002, 0.0)


def newer(plan: Plan) -> Finding:
    (finding,) = (one for one in plan.findings if one.slug == "newer-than-known")
    assert finding.severity == "warning"
    return finding


def test_a_misspelt_setting_is_reported_with_the_closest_one(tmp_path: Path) -> None:
    text = f"use_vllm: true\n{MODE}: token_mask\n"
    plan = plan_of(tmp_path, f"{text}vllm_importance_sampling_clipmax: 2.0\n")
    finding = newer(plan)
    assert "did you mean vllm_importance_sampling_clip_max?" in finding.fix
    assert "vllm_importance_sampling_clip_max is 3.0, its default" in finding.message
    assert "trl-1.16 (released 1.16.0 of 2026-10-15)" in finding.message
    assert plan.corrections == plan_of(tmp_path, text).corrections


@pytest.mark.parametrize(
    ("text", "near"),
    [
        (
            "trainer: {algorithm: {off_policy_correction: {tis_ratio_typ: token}}}\n"
            "generator: {n: 1}\n",
            "tis_ratio_type",
        ),
        (
            "rollout: {n: 1}\ngconfig: {n: 1}\n"
            "actor: {use_decoupled_loss: true, rejection_sampling: {levl: token}}\n",
            "rejection_sampling.level",
        ),
        (
            "actor_train: {n: 1}\nactor_infer: {n: 1}\ntrain_infer_correction: {filtrs: []}\n",
            "filters",
        ),
        (
            "policy: {n: 1}\ngrpo: {seq_logprob_error_treshold: 1.2}\n"
            "loss_fn: {ratio_clip_min: 0.2, use_importance_sampling_correction: true}\n",
            "seq_logprob_error_threshold",
        ),
    ],
)
def test_a_single_misspelt_setting_of_a_block_is_reported(
    tmp_path: Path, text: str, near: str
) -> None:
    assert f"did you mean {near}?" in newer(plan_of(tmp_path, text)).fix


def test_a_misspelt_setting_in_a_filter_of_roll_gets_the_closest_one(tmp_path: Path) -> None:
    filters = "train_infer_correction: {filters: [{enabled: true, agg_typ: token}]}\n"
    plan = plan_of(tmp_path, f"actor_train: {{n: 1}}\nactor_infer: {{n: 1}}\n{filters}")
    assert plan.corrections == {}
    assert "did you mean agg_type?" in plan.findings[0].fix


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "algorithm: {rollout_correction: {rollout_is: token, rollout_is_floor: 0.5}}\n",
            "verl-0.9 (released",
        ),
        (
            "algorithm: {rollout_correction: {rollout_is: token, loss_type: reinforce, "
            "rollout_token_veto_threshold: 0.1}}\n",
            "",
        ),
        (
            "trainer: {algorithm: {off_policy_correction: {tis_ratio_type: token, "
            "score_centering: true}}}\ngenerator: {n: 1}\n",
            "skyrl-0.4 (",
        ),
        ('[trainer.loss]\ntype = "ipo"\nscore_centering = true\n[inference]\n', "prime-rl-2026"),
    ],
)
def test_a_newer_key_is_ignored_with_a_warning(tmp_path: Path, text: str, message: str) -> None:
    plan = plan_of(tmp_path, text)
    assert list(plan.corrections) == ["config"]
    if not message:  # an older generation has it, and is used
        assert plan.trainer.name == "verl-0.7.0"
        assert "newer-than-known" not in slugs(plan)
        return
    assert message in newer(plan).message
    assert "newer, or misspelt; it is left out" in newer(plan).message


@pytest.mark.parametrize(
    ("text", "name", "value", "assumed", "choice"),
    [
        ("rollout_is: geometric\nrollout_rs: token_k1\nrollout_rs_threshold: 2.0\n",
         "rollout_is", "geometric", "sequence", "token"),
        ("rollout_is: token\nloss_type: grpo\nbypass_mode: true\n",
         "loss_type", "grpo", "ppo_clip", "reinforce"),
        ("use_tis: true\ntis_mode: icepop\n", "tis_mode", "icepop", "truncate", "clip"),
        ('[trainer.loss]\ntype = "kpop"\n[inference]\n', "type", "kpop", "ipo", "icepop"),
        (f"use_vllm: true\n{MODE}: turn_mask\n", MODE, "turn_mask", "sequence_mask", "token_mask"),
        ("rollout_is: token\nrollout_rs: seq_tv\nrollout_rs_threshold: 0.1\n",
         "rollout_rs", "seq_tv", "null", "seq_mean_k1"),
    ],
)  # fmt: skip
def test_an_unknown_value_counts_as_newer(
    tmp_path: Path, text: str, name: str, value: str, assumed: str, choice: str
) -> None:
    plan = plan_of(tmp_path, text)
    finding = newer(plan)
    assert finding.message.startswith(
        f"{name} = {value!r} is read as {assumed}, the default: it is newer than "
        f"{plan.trainer.known}, or misspelt. "
    )
    assert choice in finding.fix
    assert yaml_value(finding.evidence["assumed"]) == assumed
    known = plan_of(tmp_path, text.replace(value, assumed))
    assert plan.corrections == known.corrections
    assert yaml_value(plan.configs["config"][name]) == assumed


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("loss_fn: {use_importance_sampling_correction: true,"
         " truncated_importance_sampling_type: cispo2, truncated_importance_sampling_ratio: 2.0}\n"
         "grpo: {num_generations_per_prompt: 16}\n", "cispo2"),
        ("actor: {use_decoupled_loss: true, recompute_logprob: true,"
         " rejection_sampling: {metric: tv, upper: 0.1}}\n", "tv"),
        ("train_infer_correction: {filters: [{enabled: true, agg_type: turn}]}\n", "turn"),
        ("python -m openrlhf.cli.train_ppo_ray --algo.advantage.is_correction_enable"
         " --algo.advantage.is_correction_type kpop\n", "kpop"),
    ],
)  # fmt: skip
def test_a_trainer_is_not_said_to_stop_where_only_the_default_would(
    tmp_path: Path, text: str, value: str
) -> None:
    """The other settings need the unknown value, or a list or an older generation has it."""
    plan = plan_of(tmp_path, text)
    (finding,) = plan.findings
    assert plan.corrections == {}
    assert f"{value!r} is not one of its values at {plan.trainer.known}" in finding.message
    assert "stops on" not in finding.message


def test_a_setting_of_another_generation_is_reported_as_such(tmp_path: Path) -> None:
    text = (
        "algorithm: {rollout_correction: {rollout_is: token, rollout_token_veto_threshold: 0.1}}\n"
    )
    finding = newer(plan_of(tmp_path, text, "verl-0.9"))
    assert "a setting of verl-0.6.1, verl-20251203, verl-0.7.0" in finding.message
    assert "--trainer verl-0.7.0" in finding.fix


@pytest.mark.parametrize(
    ("own", "doubt"),
    [
        ("", "eps (ipo_threshold) 0.1"),
        ("eps = 0.1\n", "kl_tau 1e-3"),
        ("eps = 0.1\nkl_tau = 0.0\n", ""),
    ],
)
def test_defaults_of_prime_rl_that_changed_are_a_note(tmp_path: Path, own: str, doubt: str) -> None:
    plan = plan_of(tmp_path, f'[trainer.loss]\ntype = "ipo"\n{own}')
    notes = [one.message for one in plan.findings if one.slug == "trainer-guessed"]
    assert len(notes) == bool(doubt)
    assert doubt in "".join(notes)


def test_a_loss_that_a_skyrl_script_registers_is_said_to_be_possible(tmp_path: Path) -> None:
    """As in SkyRL, examples/train/algorithms/custom_policy_loss."""
    text = "trainer: {algorithm: {policy_loss_type: reinforce, off_policy_correction: {}}}\n"
    assert "registers itself (PolicyLossRegistry)" in newer(plan_of(tmp_path, text, "skyrl")).fix


def test_flags_of_two_generations_are_named(tmp_path: Path) -> None:
    flags = "is_correction_enable --algo.advantage.is_correction_level seq --algo.advantage."
    plan = plan_of(tmp_path, f"{OPENRLHF}  --algo.advantage.{flags}is_correction_mode mask\n")
    assert plan.trainer.name == "openrlhf-0.11.0"
    named = [one.message for one in plan.findings if one.slug == "newer-than-known"]
    assert [message.split("`")[1] for message in named] == [
        "is_correction_level", "is_correction_mode"]  # fmt: skip
    assert all("a setting of openrlhf-0.11.2" in message for message in named)


def slugs(plan: Plan) -> set[str]:
    return {finding.slug for finding in plan.findings}


def test_traps_are_findings(tmp_path: Path) -> None:
    masked = f"{AXOLOTL}  async_prefetch: true\n  {MODE}: sequence_mask\n"
    assert "mask-lifted-to-floor" in slugs(plan_of(tmp_path, masked))
    truncated = f"{AXOLOTL}  async_prefetch: true\n"
    assert "mask-lifted-to-floor" not in slugs(plan_of(tmp_path, truncated))
    assert "axolotl-runs-trl" in slugs(plan_of(tmp_path, AXOLOTL))
    assert "axolotl-runs-trl" in slugs(plan_of(tmp_path, AXOLOTL, "axolotl"))
    gspo = OPENRLHF.replace("ppo \\\n", "gspo \\\n --algo.advantage.is_correction_level token")
    plan = plan_of(tmp_path, gspo)
    assert "gspo-takes-the-rollout" in slugs(plan)
    assert plan.corrections["config"].mode == "bypass"


@pytest.mark.parametrize(
    ("trainer", "settings", "ignored"),
    [
        ("trl", {"use_vllm": False, MODE: "token_mask"}, "without use_vllm"),
        ("trl", {"vllm_importance_sampling_correction": False, MODE: "token_mask"}, "false"),
        (
            "trl",
            {"vllm_importance_sampling_cap": 2.0, "vllm_importance_sampling_clip_max": 4.0},
            "the old cap overrides it",
        ),
        ("axolotl", {"vllm_importance_sampling_clip_max": 2.0}, "vllm_importance_sampling_cap"),
        ("openrlhf", {"is_correction_gating": "tv"}, "the correction is off"),
        ("openrlhf-0.11.0", {"is_correction_type": "icepop"}, "the correction is off"),
        ("ms-swift", {"rollout_importance_sampling_threshold": 3.0}, "has no effect without"),
    ],
)
def test_settings_without_effect_are_listed(
    trainer: str, settings: dict[str, object], ignored: str
) -> None:
    from rcdiag.trainers import find_trainer

    found = find_trainer(trainer)
    assert found.ignored({**found.settings}) == []
    (sentence,) = found.ignored({**found.settings, **settings})
    assert ignored in sentence
