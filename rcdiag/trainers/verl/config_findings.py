"""Findings on the rest of a whole verl config, which may disable its rollout correction.

The correction block may look right and still do nothing, because the trainer that reads it, the
policy loss and the sampler's log-probs are set elsewhere in the file. Each check uses several keys
and the version; therefore they are functions and not rows of `findings.toml`. To add one: a
function, and its name in CHECKS. Sources: packages verl 0.6.0 to 0.9.1, verl/trainer/config and
verl/trainer/ppo, and the issues of github.com/verl-project/verl that the checks name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from rcdiag.results import Finding
from rcdiag.trainers.settings_document import MISSING, at_path
from rcdiag.trainers.settings_table import Config

# In these versions the sampler records no log-probs unless calculate_log_probs is set.
LOG_PROBS_OFF_BY_DEFAULT = (
    *("20250826", "0.6.0", "20251027", "0.6.1", "20251203", "0.7.0", "0.7.1", "0.8.0"),
)
LEGACY_ACTOR = LOG_PROBS_OFF_BY_DEFAULT[:-1]
PROCESSED_BY_DEFAULT = ("0.7.0", "0.7.1", "0.8.0", "0.9")
BY_GROUP = ("grpo", "rloo")  # advantages against the other samples of a prompt
WHOLE = "actor_rollout_ref"  # a file without it is only the correction block


class WholeConfig(Struct, frozen=True):
    """A verl config file with the settings of its correction."""

    document: Mapping[str, Any]
    version: str
    settings: Config  # of the correction, including defaults

    def get(self, path: str, default: Any = None) -> Any:
        """Return a value by its dotted path."""
        value = at_path(self.document, path.split("."))
        return default if value is MISSING else value

    @property
    def bypass(self) -> bool:
        return bool(self.settings.get("bypass_mode"))

    @property
    def rejects(self) -> bool:
        return self.settings.get("rollout_rs") is not None

    @property
    def corrects(self) -> bool:
        weights = self.settings.get("rollout_is") or self.settings.get("tis_imp_ratio_cap", 0) > 0
        return bool(weights) or self.rejects or self.bypass

    @property
    def separate(self) -> bool:
        """Tell whether sampler and trainer have GPUs of their own (verl/experimental).

        `one_step_off_policy` and `fully_async_policy` have a block `rollout` at the top for it.
        """
        own = ("async_training", "rollout.nnodes", "rollout.n_gpus_per_node")
        return any(self.get(path) is not None for path in own)

    @property
    def v1(self) -> bool:
        """Tell whether the V1 trainer is used, which is the default from 0.9 on."""
        is_default = self.version == "0.9" and not self.separate
        return is_default and self.get("trainer.use_v1", True) is not False


def config_findings(
    document: Mapping[str, Any], settings: Config, *, version: str
) -> list[Finding]:
    """Return findings on the rest of the file; none if the file is only the correction block."""
    if not isinstance(document.get(WHOLE), Mapping):
        return []
    config = WholeConfig(document, version, settings)
    return [finding for check in CHECKS for finding in check(config)]


def _on_policy_shortcut(config: WholeConfig) -> list[Finding]:
    actor = "actor_rollout_ref.actor"
    batch, mini = config.get("data.train_batch_size"), config.get(f"{actor}.ppo_mini_batch_size")
    epochs = config.get(f"{actor}.ppo_epochs", 1)
    one = isinstance(batch, int) and isinstance(mini, int) and batch <= mini and epochs == 1
    kept = config.get(f"{actor}.use_rollout_log_probs", False)
    if not (config.bypass and one and config.version in LEGACY_ACTOR) or kept:
        return []
    return [
        Finding(
            slug="bypass-not-active",
            severity="error",
            message=f"one mini-batch ({mini} of {batch}) and one epoch: verl {config.version} then "
            "uses the current log-probs as the old ones, so the PPO ratio is 1 and bypass mode "
            "does nothing",
            fix=f"set {actor}.use_rollout_log_probs=true",
            evidence={"train_batch_size": batch, "ppo_mini_batch_size": mini},
        )
    ]


def _rejected_in_denominator(config: WholeConfig) -> list[Finding]:
    engine = config.version in ("0.8.0", "0.9")
    if not (config.rejects and engine and (config.bypass or config.v1)):
        return []
    why = (
        "batch_num_tokens is counted before rejection in bypass mode (verl #4852)"
        if config.bypass
        else "the V1 trainer's loss_mask does not include the rejection"
    )
    return [
        Finding(
            slug="rejected-in-denominator",
            severity="warning",
            message=f"{why}: rejected tokens stay in the denominator of the loss, which shrinks "
            "by the kept share, and with it the effective learning rate",
            fix="raise the learning rate by 1 / kept share where much is rejected, or fix the "
            "denominator; `rcdiag replay --denominator kept` shows the other loss",
            evidence={"issue": "verl#4852"},
        )
    ]


def _rejected_in_baseline(config: WholeConfig) -> list[Finding]:
    estimator = config.get("algorithm.adv_estimator")
    if not (config.rejects and estimator in BY_GROUP):
        return []
    return [
        Finding(
            slug="rejected-in-baseline",
            severity="note",
            message=f"adv_estimator {estimator}: rewards of rejected rows are still part of the "
            "baseline of their group (verl #6362)",
            fix="look at kept groups and at the advantages recomputed without rejected rows",
            evidence={"issue": "verl#6362"},
        )
    ]


def _log_probs_off(config: WholeConfig) -> list[Finding]:
    place = "actor_rollout_ref.rollout.calculate_log_probs"
    recorded = config.get(place, config.version not in LOG_PROBS_OFF_BY_DEFAULT)
    if recorded or not config.corrects:
        return []
    return [
        Finding(
            slug="rollout-log-probs-off",
            severity="error",
            message=f"{place} is false: the sampler records no log-probs, so that no correction "
            "is possible",
            fix=f"set {place}=true",
            evidence={},
        )
    ]


def _other_distribution(config: WholeConfig) -> list[Finding]:
    """Report that the sampler records log-probs of another distribution than the trainer."""
    place = "actor_rollout_ref.rollout"
    default = "processed_logprobs" if config.version in PROCESSED_BY_DEFAULT else "raw_logprobs"
    processed = config.get(f"{place}.logprobs_mode", default) == "processed_logprobs"
    temperature = config.get(f"{place}.temperature", 1.0)
    top_p, top_k = config.get(f"{place}.top_p", 1), config.get(f"{place}.top_k", -1)
    if processed and (top_p != 1 or top_k not in (-1, 0, None)):
        message = (
            f"top_p {top_p}, top_k {top_k}: recorded log-probs are renormalised over the kept "
        )
        message += "set, the trainer's are not, so log-ratios are below 0 throughout"
    elif not processed and temperature != 1:
        message = (
            f"temperature {temperature} with raw_logprobs: recorded log-probs are those before "
        )
        message += "the temperature, the trainer's those after it (verl #4162)"
    else:
        return []
    return [
        Finding(
            slug="sampler-distribution-differs",
            severity="warning",
            message=message,
            fix="sample from the whole distribution (top_p 1, top_k -1), record processed_logprobs",
            evidence={"temperature": temperature, "top_p": top_p, "top_k": top_k},
        )
    ]


CHECKS = (
    _on_policy_shortcut,
    _log_probs_off,
    _rejected_in_denominator,
    _rejected_in_baseline,
    _other_distribution,
)
