"""These are the words of findings that `rcdiag.trainers` makes while it reads settings."""

from __future__ import annotations

from rcdiag.diagnosis.checks.check import Check
from rcdiag.errors import setting

_VERL = "verl, verl/trainer/ppo/rollout_corr_helper.py"


def _of_settings(
    slug: str,
    severity: str,
    asks: str,
    says: str,
    fix: str,
    example: str,
    see: tuple[str, ...] = (),
    source: str = "",
) -> Check:
    return Check(
        slug=slug,
        severity=severity,
        stages=("config",),
        asks=asks,
        says=says,
        fix=fix,
        example=example,
        see=see,
        source=source,
        find=None,
    )


TRAINER_CONFIG_CHECKS = (
    _of_settings(
        "threshold-read-as-number",
        "error",
        "Does YAML read every bound as it is written?",
        "YAML lets underscores group digits, so that bounds without quotes may be one number, and "
        "the trainer takes that.",
        "write the bounds in quotes",
        'rollout_is_threshold: 0.5_5 is 0.55; write "0.5_5"',
        ("rollout_is_threshold", "rollout_rs_threshold"),
        "YAML 1.1, integers and floats, https://yaml.org/type/float.html",
    ),
    _of_settings(
        "trainer-refuses",
        "error",
        "Does the trainer itself take these settings?",
        "The trainer itself would stop on these settings. Nothing is computed for them; all else "
        "goes on.",
        "change the settings as the message says",
        "rollout_rs: geometric in verl 0.7.1, which calls it seq_mean_k1",
        ("rollout_rs", "rollout_is_threshold"),
        _VERL,
    ),
    _of_settings(
        "bypass-not-active",
        "error",
        "Does bypass mode do anything in this config?",
        "Bypass mode is on in the correction block and does nothing, because of the rest of the "
        "trainer's config: another loss mode under verl's V1 trainer, or one mini-batch and one "
        "epoch under its legacy actor, which makes the PPO ratio 1.",
        "set the loss mode, or keep the rollout log-probs, as the message says",
        "actor_rollout_ref.actor.policy_loss.loss_mode=bypass_mode",
        ("bypass_mode", "loss_type"),
        "verl issue #4912, https://github.com/verl-project/verl/issues/4912",
    ),
    _of_settings(
        "rejected-in-denominator",
        "warning",
        "Do rejected tokens leave the denominator of the loss?",
        "Rejected tokens give no gradient and still count in the denominator of the loss, so "
        "rejection lowers the learning rate.",
        "raise the learning rate by 1 / kept share where much is rejected, or fix the denominator",
        "half of the tokens rejected: half of the loss",
        ("kept_tokens", "rollout_rs"),
        "verl issue #4852, https://github.com/verl-project/verl/issues/4852",
    ),
    _of_settings(
        "rejected-in-baseline",
        "note",
        "Do rewards of rejected rows leave the baseline of their group?",
        "Rejection comes after or beside the advantages: rewards of rejected rows still make the "
        "baseline of their group.",
        "look at kept groups and at the advantages recomputed without rejected rows",
        "adv_estimator: grpo with rollout_rs: seq_mean_k1",
        ("rollout_rs",),
        "verl issue #6362, https://github.com/verl-project/verl/issues/6362",
    ),
    _of_settings(
        "rollout-log-probs-off",
        "error",
        "Does the sampler record log-probs?",
        "The trainer's config asks for a correction and not for the sampler's log-probs, without "
        "which there is none. They are off by default in verl until 0.8.0.",
        "set actor_rollout_ref.rollout.calculate_log_probs=true",
        "actor_rollout_ref.rollout.calculate_log_probs=true",
        (),
        "verl, verl/trainer/config/rollout/rollout.yaml",
    ),
    _of_settings(
        "sampler-law-differs",
        "warning",
        "Does the sampler record the log-probs that the trainer computes?",
        "By the trainer's config the sampler records log-probs of another distribution than the "
        "trainer computes: renormalised over a top-p or top-k set, or before the temperature.",
        "sample from the whole distribution (top_p 1, top_k -1), record processed_logprobs",
        "top_p: 0.9 with processed_logprobs: log-ratios are below 0 throughout",
        (),
        "verl issue #4162, https://github.com/verl-project/verl/issues/4162; vLLM, logprobs_mode",
    ),
    _of_settings(
        "trainer-guessed",
        "note",
        "Which generation of the trainer is the config of?",
        "A trainer's config fits several generations; the finding names the one it was read as.",
        f"say which it is with {setting('trainer')}",
        "rcdiag score rollouts.parquet --trainer-config config.yaml --trainer verl-0.8.0",
    ),
)
