"""These are the words of findings that are made while settings of a trainer are read.

Those that a trainer makes of its own settings stand in the `findings.toml` beside its code.
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
        "settings-not-computed",
        "error",
        "Can a table give what these settings compute?",
        "The trainer takes these settings, and they need what no table has. Nothing is computed "
        "for them; all else goes on.",
        "take the settings that the message names",
        "prox_logp_method: loglinear in AReaL, by versions that the trainer was at",
        ("prox_logp_method", "trainer-refuses"),
    ),
    _of_settings(
        "trainer-guessed",
        "note",
        "Which generation of the trainer is the config of?",
        "A trainer's config fits several generations; the finding names the one it was read as.",
        f"say which it is with {setting('trainer')}",
        "rcdiag score rollouts.parquet --trainer-config config.yaml --trainer verl-0.8.0",
    ),
    _of_settings(
        "trainer-defaults",
        "note",
        "Does the file set anything of the correction?",
        "A trainer's config has no setting of its correction; what is computed is what the trainer "
        "then does, which is a correction for some trainers.",
        "give the file in which the settings stand",
        "a TRL config with use_vllm: true alone runs sequence_mask with clip_max 3",
    ),
    _of_settings(
        "base-config-missing",
        "warning",
        "Are the files there on which the trainer's config stands?",
        "A YAML config names other files in `defaults` and changes some of their settings; without "
        "them the trainer's own defaults are taken.",
        "put the files where `defaults` names them",
        "defaults: grpo_math_1B.yaml in a recipe of NeMo-RL",
        source="NeMo-RL, nemo_rl/utils/config.py, load_config_with_inheritance",
    ),
    _of_settings(
        "loss-of-trainer-config",
        "note",
        "Which policy loss does the trainer's configuration ask for?",
        "A replayed update takes its policy loss, the bounds of it and how losses of tokens become "
        "one number from the trainer's own configuration file.",
        "options of the command override the file",
        "actor.policy_loss.loss_mode: gspo with clip_ratio_low: 3e-4 in a verl config",
        ("clip_low", "clip_high", "clip_c", "token-mean"),
    ),
    _of_settings(
        "carried-over",
        "note",
        "Which other trainers have this correction?",
        "A preset of one trainer is carried over to another: it has an equal, only something near, "
        "which does otherwise what the sentence says, or nothing.",
        "take the settings of an equal; a near one gives other numbers",
        "rcdiag score rollouts.parquet --carry verl:decoupled_token_is",
    ),
    _of_settings(
        "advantages-missing",
        "warning",
        "Does the table have what the correction looks at?",
        "A correction that looks at the sign of the advantages is not computed for a table without "
        "them.",
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
