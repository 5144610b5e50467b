"""Shell variables in scripts: assigned values are used, values known only at run time refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from rcdiag.errors import RcdiagError
from rcdiag.trainers.config_text import with_values
from rcdiag.trainers.own_config import read_trainer_config
from rcdiag.trainers.settings_document import Document

SKYRL = r"""set -x
# Main parameters: don't change these
: "${LOGGER:=wandb}"  # "console" prints
EPS_CLIP_LOW=0.2
export EPS_CLIP_HIGH="0.28"
METRIC=${METRIC:-geometric}
GEO_HIGH=1.01
BOUND=$GEO_HIGH
uv run -m skyrl.train.entrypoints.main_base \
  trainer.algorithm.eps_clip_low=$EPS_CLIP_LOW \
  trainer.algorithm.eps_clip_high=${EPS_CLIP_HIGH} \
  trainer.algorithm.off_policy_correction.sequence_mask_metric=$METRIC \
  trainer.algorithm.off_policy_correction.geo_mask_high=$BOUND \
  trainer.algorithm.off_policy_correction.geo_mask_low=${LOW:-0.99} \
  trainer.logger=$LOGGER \
  trainer.policy.model.path="$HOME/model"
"""


def parsed(script: str) -> Document:
    return Document.parse(script, Path("run.sh"))


def test_settings_in_variables_are_read(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(SKYRL)
    config = read_trainer_config(path)
    assert config.trainer.name == "skyrl-0.4"
    assert config.settings["sequence_mask_metric"] == "geometric"
    assert (config.settings["geo_mask_low"], config.settings["geo_mask_high"]) == (0.99, 1.01)
    choice = config.trainer.config.loss(config.document)
    assert (choice.own["clip_low"], choice.own["clip_high"]) == (0.2, 0.28)
    assert config.document.find("trainer.logger") == "wandb"


@pytest.mark.parametrize(
    "given",
    [
        "HIGH=0.28\nif $WIDE; then\n  HIGH=0.4\nfi\n",  # two values
        "HIGH=$(cat high.txt)\n",  # the output of a command
        "HIGH=`cat high.txt`\n",
        "",  # from the environment
    ],
)
@pytest.mark.parametrize("used", ["$HIGH", "${HIGH}"])
def test_values_known_only_at_run_time_are_refused(given, used, tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(
        f"{given}python3 -m verl.trainer.main_ppo \\\n"
        f"  actor_rollout_ref.actor.clip_ratio_high={used} \\\n"
        "  algorithm.rollout_correction.rollout_is=token\n"
    )
    config = read_trainer_config(path, "verl-0.9")
    with pytest.raises(RcdiagError, match=r"clip_ratio_high: wanted a number") as refused:
        config.trainer.config.loss(config.document)
    assert "write the number in its place" in str(refused.value.hint)


def test_a_setting_known_only_at_run_time_is_refused(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(SKYRL.replace("METRIC=${METRIC:-geometric}", "METRIC=$(cat metric)"))
    with pytest.raises(
        RcdiagError, match=r"sequence_mask_metric is \$METRIC, whose value is only known"
    ):
        read_trainer_config(path)


def test_values_are_those_of_the_script():
    assert with_values("A=1\nB=$A\nrun $B ${C:-2} ${A:-3} $D '$5'\n").splitlines()[-1] == (
        "run 1 2 1 $D '$5'"
    )
    assert "run $A" in with_values("A=$B\nB=$A\nrun $A\n").replace("$B", "$A")  # it ends


def test_a_text_between_quotes_may_hold_lines_that_begin_with_a_comment_sign():
    script = (
        'PROMPT="Answer after ####.\nFor example:\n#### 42"\n'
        "swift rlhf --rlhf_type grpo --loss_type grpo  # it's GRPO\n"
        "  # --epsilon 0.5\n"
    )
    assert parsed(script).tree == {"rlhf_type": "grpo", "loss_type": "grpo"}
