"""All generations of verl share these names, and the place of their settings."""

from __future__ import annotations

FAMILY = "verl"
PACKAGE = "rcdiag.trainers.verl"
# 0.6.0 and 20251027 have them in `algorithm` itself.
PATH = ("algorithm", "rollout_correction")
NEEDS = ("needs actor_rollout_ref.rollout.calculate_log_probs: true",)
# trainer/config/algorithm/rollout_correction.yaml: the dataclass's default, `sequence`, is not that
# of a run.
UNSET = {"rollout_is": None}
