"""Settings of stored update cases as the configuration file of a run."""

from __future__ import annotations

from typing import Any

from rcdiag.trainers import TRAINERS
from rcdiag.trainers.plan import Plan
from rcdiag.trainers.settings_document import Document
from rcdiag.usecases.replay.update import TrainerUpdate, chosen_update
from tests.trainers.answers import Settings

_OF_SKYRL = {
    **dict.fromkeys(("tau_pos", "tau_neg"), "sapo"),
    **dict.fromkeys(("cispo_anchor", "cispo_eps_clip_low", "cispo_eps_clip_high"), "cispo"),
    **dict.fromkeys(("dppo_type", "delta_low", "delta_high"), "dppo"),
    **dict.fromkeys(("kl_cov_frac", "ppo_kl_coef"), "kl_cov"),
    **dict.fromkeys(("clip_ratio", "clip_cov_lb", "clip_cov_ub"), "clip_cov"),
}


def _skyrl(settings: Settings) -> dict[str, Any]:
    algorithm: dict[str, Any] = {}
    for name, value in settings.items():
        block = _OF_SKYRL.get(name)
        (algorithm if block is None else algorithm.setdefault(block, {}))[name] = value
    return {"trainer": {"algorithm": algorithm}}


def document_of(trainer: str, settings: Settings) -> Document:
    """Return the settings in the layout of the trainer's own file."""
    family = TRAINERS[trainer].family
    if family == "openrlhf" and "eps_clip_low" in settings:
        ends = [settings["eps_clip_low"], settings["eps_clip_high"]]
        settings = {**settings, "eps_clip_low_high": ends}
    if family == "skyrl":
        return Document(_skyrl(settings))
    if family == "pipelinerl":
        return Document({"finetune": {"rl": settings}})
    if family == "xtuner":
        return Document({"loss_cfg": {"policy_loss_cfg": settings}})
    if family == "rllm":
        return Document({"rllm": {"algorithm": settings}})
    blocks = {"nemo-rl": "loss_fn", "areal": "actor", "axolotl": "trl", "openrlhf": "actor"}
    blocks |= {"rlinf": "algorithm"}
    return Document({blocks[family]: settings} if family in blocks else settings)


def update_of(plan: Plan, loss_settings: Any = (), **given: Any) -> TrainerUpdate:
    """Make the update on a table with advantages; the rest are the trainer's defaults."""
    options = dict.fromkeys(
        ("loss", "aggregation", "denominator", "constant", "loss_scale_factor", "advantage")
    )
    chosen: dict[str, Any] = {**options, "rebaseline": False, **given}
    return chosen_update(plan, ["advantage"], loss_settings=loss_settings, **chosen)
