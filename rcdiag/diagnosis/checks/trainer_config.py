"""Texts of findings that are made while a trainer's settings are read.

A trainer's own are in the `findings.toml` next to its code.
"""

from __future__ import annotations

from rcdiag.diagnosis.checks.check import Check
from rcdiag.errors import setting
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.toml_words import read_findings

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
        "Does YAML read every bound as intended?",
        "YAML lets underscores group digits: unquoted bounds may be read as one number, and the "
        "trainer uses that.",
        "write the bounds in quotes",
        'rollout_is_threshold: 0.5_5 is 0.55; write "0.5_5"',
        ("rollout_is_threshold", "rollout_rs_threshold"),
        "YAML 1.1, integers and floats, https://yaml.org/type/float.html",
    ),
    _of_settings(
        "trainer-refuses",
        "error",
        "Does the trainer accept these settings?",
        "The trainer itself rejects these settings, at the version and date that the message "
        "names; a newer one may take them. Nothing is computed for them.",
        "change the settings as the message says",
        "rollout_rs: geometric in verl 0.7.1, which calls it seq_mean_k1",
        ("rollout_rs", "rollout_is_threshold"),
        _VERL,
    ),
    _of_settings(
        "newer-than-known",
        "warning",
        "Does rcdiag know every setting of the config, and its value?",
        "A setting, or a value of one, is newer than the version of the trainer that rcdiag knows, "
        "or misspelt. The message names that version, its date, and what is assumed instead.",
        "correct the name, or take a newer rcdiag",
        'type = "kpop" in prime-rl, whose pull request #3283 was open in September 2026',
        ("trainer-refuses",),
    ),
    _of_settings(
        "settings-not-computed",
        "error",
        "Can these settings be computed from a table?",
        "The trainer accepts these settings, but they need data that no table has. Nothing is "
        "computed for them.",
        "use the settings that the message names",
        "prox_logp_method: loglinear in AReaL, by versions that the trainer was at",
        ("prox_logp_method", "trainer-refuses"),
    ),
    _of_settings(
        "trainer-guessed",
        "note",
        "Which version of the trainer is the config for?",
        "The config fits several versions of the trainer; the finding names the one used.",
        f"say which it is with {setting('trainer')}",
        "rcdiag score rollouts.parquet --trainer-config config.yaml --trainer verl-0.8.0",
    ),
    _of_settings(
        "trainer-not-chosen",
        "note",
        "Are the presets those of the trainer that wrote the dump?",
        "The dump was written by one trainer, and the presets are those of another, which is the "
        "default.",
        f"choose it with {setting('trainer')}",
        "rcdiag score rollout_data/ --trainer slime",
    ),
    _of_settings(
        "trainer-defaults",
        "note",
        "Does the file configure the correction?",
        "The config has no settings of the correction; the trainer's default is computed, which "
        "for some trainers is a correction.",
        "give the file with the settings",
        "a TRL config with use_vllm: true alone runs sequence_mask with clip_max 3",
    ),
    _of_settings(
        "base-config-missing",
        "warning",
        "Are the base files of the config there?",
        "A YAML config names base files in `defaults`; they are missing, so the trainer's own "
        "defaults are used.",
        "put the base files where `defaults` names them",
        "defaults: grpo_math_1B.yaml in a recipe of NeMo-RL",
        source="NeMo-RL, nemo_rl/utils/config.py, load_config_with_inheritance",
    ),
    _of_settings(
        "loss-of-trainer-config",
        "note",
        "Which policy loss does the trainer's config choose?",
        "A replayed update uses policy loss, clip range and aggregation of the trainer's config "
        "file.",
        "options of the command override the file",
        "actor.policy_loss.loss_mode: gspo with clip_ratio_low: 3e-4 in a verl config",
        ("clip_low", "clip_high", "clip_c", "token-mean"),
    ),
    _of_settings(
        "carried-over",
        "note",
        "Which other trainers have this correction?",
        "A preset of one trainer is translated to another: there is an exact equivalent, a close "
        "one (the message says what differs), or none.",
        "use the settings of an exact equivalent; a close one gives other numbers",
        "rcdiag score rollouts.parquet --carry verl:decoupled_token_is",
    ),
    _of_settings(
        "advantages-missing",
        "warning",
        "Does the table have the advantages that the correction needs?",
        "A correction that depends on the sign of the advantages is not computed for a table "
        "without them.",
        "record them in a column `advantages`",
        "DPPO drops tokens whose probability rose where the advantage is above 0",
    ),
)


def trainer_checks() -> tuple[Check, ...]:
    """Return the words of findings that trainers make of their own settings, one per slug."""
    packages = dict.fromkeys(trainer.package for trainer in TRAINERS.values())
    words = {
        finding.slug: finding for package in packages for finding in read_findings(package).values()
    }
    return tuple(
        _of_settings(
            finding.slug,
            finding.severity,
            finding.asks,
            finding.says,
            finding.fix,
            finding.example,
            finding.see,
            finding.source,
        )
        for finding in words.values()
    )
