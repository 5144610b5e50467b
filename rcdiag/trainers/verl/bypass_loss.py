"""Where the loss of verl 0.9's bypass mode reads the correction, which depends on the trainer.

The loss reads `actor.policy_loss.rollout_correction`, not `algorithm.rollout_correction`. The V1
trainer leaves both as they are in the file. The others copy the second to the first when they train
on their first batch, after the workers were given their configuration. Sources: package verl 0.9.1
(main at 1dda039b9 of 2026-08-22 is the same), verl/trainer/ppo/core_algos.py
(`compute_policy_loss_bypass_mode`), verl/workers/config/actor.py (`PolicyLossConfig`),
verl/trainer/ppo/v1/trainer_base.py (`_compute_old_log_prob`), verl/trainer/ppo/ray_trainer.py and
verl/experimental/separation/ray_trainer.py (`apply_bypass_mode`).

The loss of verl-omni's diffusion trainers is another: it reads `actor.rollout_correction`, which
takes every value from the algorithm block. Source: verl-project/verl-omni at commit a1139baf,
verl_omni/workers/utils/losses.py and verl_omni/trainer/config/diffusion/actor/diffusion_actor.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rcdiag.results import Finding
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.settings_table import Config
from rcdiag.trainers.verl.config_findings import WHOLE, WholeConfig

POLICY_LOSS = f"{WHOLE}.actor.policy_loss"
OWN = f"{POLICY_LOSS}.rollout_correction"
# The loss reads an existing block as a mapping, in which missing weights are off. Without a block
# it reads an instance of verl's class, whose defaults are those of the settings.
WITHOUT_WEIGHTS: Config = {"rollout_is": None}


def with_bypass_loss(
    settings: Config, document: Document, defaults: Config
) -> tuple[Config, list[Finding]]:
    """Return the settings that the loss of a whole file reads, and a finding if they differ."""
    config = WholeConfig(document.tree, "0.9", settings)
    diffusion = document.mentions("verl_omni.trainer.main_diffusion") or document.has(
        "actor.rollout_correction"
    )
    if not isinstance(document.tree.get(WHOLE), Mapping) or not config.bypass or diffusion:
        return settings, []
    mode, block = config.get(f"{POLICY_LOSS}.loss_mode", "vanilla"), config.get(OWN)
    read: dict[str, Any] = {**WITHOUT_WEIGHTS, **block} if isinstance(block, Mapping) else {}
    if mode != "bypass_mode":
        read = dict(WITHOUT_WEIGHTS)
    read = {name: value for name, value in read.items() if name in defaults}
    read["bypass_mode"] = True
    lost = [
        name
        for name, value in settings.items()
        if value is not None and value != {**defaults, **read}[name]
    ]
    if not lost:
        return (read if config.v1 else settings), []
    if config.v1:
        return read, [_not_read(lost, mode)]
    return settings, [_read_late(lost)]


def _not_read(lost: list[str], mode: str) -> Finding:
    """Report settings of the algorithm block that the loss under the V1 trainer does not read."""
    why = (
        f"the loss reads {OWN}"
        if mode == "bypass_mode"
        else f"{POLICY_LOSS}.loss_mode is {mode}, which reads no correction"
    )
    return Finding(
        slug="bypass-not-active",
        severity="error",
        message=f"bypass_mode is on, and the V1 trainer only copies the rollout log-probs into "
        f"old_log_probs; {why}: {', '.join(lost)} of algorithm.rollout_correction do nothing "
        "(verl #4912). What is computed is without them",
        fix=_FIX,
        evidence={"loss_mode": mode, "settings": lost, "issue": "verl#4912"},
    )


def _read_late(lost: list[str]) -> Finding:
    """Report settings that reach the loss after the workers have started, if they do."""
    return Finding(
        slug="bypass-not-active",
        severity="warning",
        message="bypass_mode is on, and this trainer hands algorithm.rollout_correction to the "
        f"loss at its first batch, when workers have their configuration: {', '.join(lost)} may "
        "do nothing (verl #4272, #4930). What is computed is with them",
        fix=f"{_FIX}; workers have these from their start",
        evidence={"settings": lost, "issue": "verl#4930"},
    )


_FIX = (
    f"set {POLICY_LOSS}.loss_mode=bypass_mode and repeat the settings in {OWN} (on a command line "
    f"with a plus: +{OWN}.rollout_is=token)"
)
