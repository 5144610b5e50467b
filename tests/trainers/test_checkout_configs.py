"""Whole configurations of prime-rl, open-instruct, ROLL and miles, in their own formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rcdiag.corrections.bounds import equivalent
from rcdiag.errors import RcdiagError
from rcdiag.trainers import find_trainer
from rcdiag.trainers.emit import emit, expresses
from rcdiag.trainers.own_config import read_trainer_config
from rcdiag.trainers.plan import plan_corrections
from tests.trainers.miles.variants import ICEPOP, MIS

FILTER = {"enabled": True, "agg_type": "token", "ratio_low": 0.7, "ratio_high": 1.4}
FILES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "prime-rl, whole": (
        "max_steps = 10\n[trainer.loss]\ndppo_mask_low = 0.15\n[orchestrator]\nbatch_size = 3\n",
        "prime-rl-20260821",
        {"dppo_mask_low": 0.15},
    ),
    "prime-rl, of the trainer": ('[loss]\ntype = "ipo"\n', "prime-rl-20260918", {"type": "ipo"}),
    "prime-rl, before September": (
        '[loss]\ntype = "ipo"\nipo_threshold = 0.2\n',
        "prime-rl-20260821",
        {"type": "ipo", "ipo_threshold": 0.2},
    ),
    "prime-rl, icepop": (
        '[trainer.loss]\ntype = "icepop"\nratio_low = 0.5\n[inference]\n',
        "prime-rl-20260918",
        {"type": "icepop", "ratio_low": 0.5},
    ),
    "prime-rl, nothing said": ("[trainer]\n[orchestrator]\n[inference]\n", "prime-rl-20260918", {}),
    "open-instruct": (
        "python grpo_fast.py --beta 0.0 \\\n  --use_rho_correction true \\\n"
        "  --rho_clamp_upper_bound 3.0 --rho_mask_sequence_level\n",
        "open-instruct",
        {
            "use_rho_correction": True,
            "rho_clamp_upper_bound": 3.0,
            "rho_mask_sequence_level": True,
        },
    ),
    "open-instruct, off": (
        "python grpo_fast.py --no_use_rho_correction\n",
        "open-instruct",
        {"use_rho_correction": False},
    ),
    "roll, whole": (
        "actor_train: {}\nactor_infer: {}\ntrain_infer_correction:\n"
        "  is_weight: {enabled: true, upper_bound: null}\n"
        "  filters:\n    - {enabled: true, agg_type: token, ratio_low: 0.7, ratio_high: 1.4}\n",
        "roll",
        {"is_weight.enabled": True, "is_weight.upper_bound": None, "filters": [FILTER]},
    ),
    "roll, the block": ("is_weight: {enabled: true}\n", "roll", {"is_weight.enabled": True}),
    "roll, nothing said": ("actor_train: {}\nactor_infer: {}\n", "roll", {}),
    "miles, icepop": (
        f"python3 train.py --use-tis --tis-clip 1.8 \\\n --custom-tis-function-path {ICEPOP}\n",
        "miles",
        {"use_tis": True, "tis_clip": 1.8, "custom_tis_function_path": ICEPOP},
    ),
    "miles, helper": (
        f"use_tis: true\ncustom_tis_function_path: {MIS}\ntis_mode: clip\n",
        "miles",
        {"use_tis": True, "custom_tis_function_path": MIS, "tis_mode": "clip"},
    ),
    "miles, its clamp": (
        "python3 miles/train.py --use-tis --tis-clip 1.8\n",
        "miles",
        {"use_tis": True, "tis_clip": 1.8},
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_the_trainer_of_a_file_is_detected(name: str, tmp_path: Path) -> None:
    text, trainer, settings = FILES[name]
    path = tmp_path / "config"
    path.write_text(text)
    read = read_trainer_config(path)
    assert (read.trainer.name, dict(read.settings)) == (trainer, settings)
    plan = plan_corrections(read.trainer, {"config": read.settings})
    assert list(plan.corrections) == ["config"]
    slugs = {finding.slug for finding in read.findings}
    assert ("trainer-defaults" in slugs) == (settings == {})


def test_the_helpers_yaml_alone_is_miles_only_with_trainer(tmp_path: Path) -> None:
    path = tmp_path / "mis.yaml"
    path.write_text("use_tis: true\ntis_mode: mask\n")
    assert read_trainer_config(path).trainer.family == "slime"
    read = read_trainer_config(path, "miles")
    assert read.settings["custom_tis_function_path"] == MIS
    assert [finding.slug for finding in read.findings] == ["read-as-helper-yaml"]


@pytest.mark.parametrize(
    ("trainer", "text", "slug"),
    [
        (
            "roll",
            "loss_agg_mode: token-mean\ntrain_infer_correction: {filters: [{enabled: true}]}\n",
            "filters-without-effect",
        ),
        (
            "roll",
            "train_infer_correction: {is_weight: {enabled: true}}\n"
            "actor_infer: {generating_args: {logprobs: 0}}\n",
            "no-sampler-log-probs",
        ),
        (
            "roll",
            "actor_train: {pg_variant: tis}\nactor_infer: {}\n",
            "tis-of-the-ppo-ratio",
        ),
        (
            "open-instruct",
            "--rho_mask_tv_divergence true --rho_mask_lower_bound 0.4\n",
            "lower-tv-bound-drops-the-nearest",
        ),
        (
            "open-instruct",
            "--rho_mask_tv_divergence true --rho_mask_upper_bound 1.05\n",
            "tv-bound-above-one",
        ),
        ("open-instruct", "--rho_mask_sequence_level true\n", "sequence-is-a-pack"),
    ],
)
def test_traps(trainer: str, text: str, slug: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    read = read_trainer_config(path)
    assert read.trainer.name == trainer
    plan = plan_corrections(read.trainer, {"config": read.settings}, findings=read.findings)
    assert slug in {finding.slug for finding in plan.findings}


@pytest.mark.parametrize(
    ("trainer", "settings", "message"),
    [
        ("prime-rl-20260821", {"dppo_mask_low": -0.1}, "dppo_mask_low"),
        ("prime-rl-20260821", {"type": "icepop"}, "type: 'icepop' is not one of its values"),
        ("prime-rl", {"type": "icepop", "ratio_low": 6.0}, "ratio_low: 6 is above ratio_high, 5"),
        ("prime-rl", {"eps": -0.1}, "eps"),
        ("open-instruct", {"use_vllm_logprobs": True}, "both on"),
        ("open-instruct", {"rho_mask_upper_bound": 0.9}, "rho_mask_upper_bound: 0.9"),
        ("open-instruct", {"rho_clamp_lower_bound": 1.0}, "rho_clamp_lower_bound: 1"),
        ("roll", {"filters": [{"enabled": True, "agg_type": "turn"}]}, "agg_type: 'turn'"),
        ("roll", {"filters": [{"enable": True}]}, "no setting `enable`"),
        ("miles", {"use_tis": True, "use_rollout_logprobs": True}, "both on"),
        ("miles", {"get_mismatch_metrics": True}, "no function"),
        ("miles", {"use_tis": True, "custom_tis_function_path": "a.b.c"}, "does not know"),
    ],
)
def test_settings_that_the_trainer_refuses(
    trainer: str, settings: dict[str, Any], message: str
) -> None:
    plan = plan_corrections(find_trainer(trainer), {"it": settings})
    (finding,) = (each for each in plan.findings if each.slug == "trainer-refuses")
    assert message in finding.message
    assert plan.corrections == {}


def test_a_custom_function_is_not_computed() -> None:
    plan = plan_corrections(find_trainer("prime-rl"), {"it": {"type": "custom"}})
    assert [finding.slug for finding in plan.findings] == ["settings-not-computed"]
    assert "type: custom, a function of your own" in plan.findings[0].message
    assert plan.corrections == {}


def test_a_trainers_name_uses_the_generation_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config"
    for text, generation in (
        ("[loss]\ndppo_mask_low = 0.1\n", "prime-rl-20260821"),
        ('[loss]\ntype = "default"\n', "prime-rl-20260821"),
        ('[loss]\ntype = "icepop"\n', "prime-rl-20260918"),
        ('[loss]\ntype = "kpop"\nkpop_threshold = 0.1\n', "prime-rl-20260918"),
    ):
        path.write_text(text)
        assert read_trainer_config(path, "prime-rl").trainer.name == generation


def test_kpop_gives_newer_than_known(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text('[trainer.loss]\ntype = "kpop"\nkpop_threshold = 0.1\n')
    read = read_trainer_config(path, "prime-rl")
    plan = plan_corrections(read.trainer, {"config": read.settings}, findings=read.findings)
    assert [finding.slug for finding in plan.findings] == ["newer-than-known"] * 2
    assert {finding.evidence["setting"] for finding in plan.findings} == {"type", "kpop_threshold"}
    known = "prime-rl-20260918 (pull request #3586 of 2026-09-18)"
    assert all(known in finding.message for finding in plan.findings)


EMITTED = {
    "prime-rl-20260821": ({"dppo_mask_high": 0.05}, {"type": "ipo", "ipo_threshold": 0.3}),
    "prime-rl": ({"eps": 0.05}, {}, {"type": "icepop"}, {"type": "icepop", "ratio_high": 2.0}),
    "open-instruct": (
        {},
        {"rho_clamp_upper_bound": 0.0, "rho_mask_lower_bound": 0.5, "rho_mask_upper_bound": 2.0},
        {"rho_mask_sequence_level": True, "rho_clamp_lower_bound": 0.5},
        {"rho_mask_tv_divergence": True, "rho_mask_upper_bound": 1.5},
        {"rho_mask_tv_divergence": True, "rho_mask_lower_bound": 0.5, "rho_mask_upper_bound": 2.0},
        {"use_rho_correction": False},
    ),
    "roll": (
        {"is_weight.enabled": True, "is_weight.weight_type": "segment"},
        {"filters": [FILTER, {"enabled": True, "ratio_enabled": False, "diff_enabled": True}]},
    ),
    "miles": (
        {"use_tis": True, "tis_clip_low": 0.5},
        {"use_tis": True, "custom_tis_function_path": ICEPOP, "tis_clip_low": 0.5},
        {"use_tis": True, "custom_tis_function_path": MIS, "rs_veto_threshold": None},
        {"use_rollout_logprobs": True},
        {},
    ),
}


@pytest.mark.parametrize(
    ("name", "settings"), [(name, each) for name, given in EMITTED.items() for each in given]
)
def test_a_written_configuration_is_read_back(
    name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    trainer = find_trainer(name)
    correction = trainer.read({**trainer.settings, **settings})
    assert expresses(trainer, correction)
    path = tmp_path / "emitted"
    path.write_text(emit(correction, name).text)
    read = read_trainer_config(path, name)
    again = trainer.read({**trainer.settings, **read.settings})
    assert equivalent(correction, again)


def test_a_correction_that_a_trainer_cannot_express_is_refused() -> None:
    verl = find_trainer("verl")
    correction = verl.read({**verl.settings, **verl.presets["decoupled_seq_is_rs"]})
    for name in ("prime-rl", "open-instruct"):
        assert not expresses(find_trainer(name), correction)
        with pytest.raises(RcdiagError, match=rf"{name}(-\d+)? has no"):
            emit(correction, name)
