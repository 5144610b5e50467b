"""What each setting of a trainer means; defaults come from the trainers' own registry.

Sources: reference/verl.md 1.4, 1.5, 1.7, 2 and 4.2; reference/frameworks.md 1.2 and 1.6. To add a
setting: one entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rcdiag.glossary.generations import (
    APPLIED,
    BROKEN,
    BY_K,
    BY_RATIO,
    FIRST,
    MENDED,
    OLD,
    SECOND,
    Trainers,
)

V071 = tuple(name for name in BY_K if name not in APPLIED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What it is, and where generations differ."""

    what: str
    of: Mapping[Trainers, str] = field(default_factory=dict)
    units: str | None = None
    healthy: str | None = None
    example: str
    see: tuple[str, ...] = ()


_RATIOS = "ratio"
_SLIME_FALLBACK = "null: that of TIS"
_K_BOUNDS = (
    'k1: "lower_upper", or u for 1/u to u; k2, k3: one number; one for all options or one each; a '
    "lower bound above the upper one"
)

SETTINGS: dict[str, Setting] = {
    "rollout_is": Setting(
        what="Importance-sampling weights in the loss.",
        of={
            OLD: "true puts weights into the loss; false only logs them",
            (
                *BY_RATIO,
                *BY_K,
            ): "level of the weights: token, sequence, or null for none; verl's "
            "YAML file has null, its dataclass sequence",
        },
        example="rollout_is: token",
        see=("weights", "token", "sequence"),
    ),
    "rollout_is_threshold": Setting(
        what="Upper bound of the weights.",
        of={
            OLD: "null turns everything off, metrics too",
            (*BY_RATIO, *V071): "a number; weights are truncated at it; null turns them off",
            APPLIED: 'a number truncates; the text "lower_upper" sets weights outside to 0 '
            "(IcePop); null turns them off",
        },
        units=_RATIOS,
        example='rollout_is_threshold: "0.5_5.0"; without quotes and as 0.5_5 it is the number '
        "0.55 in YAML",
        see=("TIS", "IcePop", "threshold-read-as-number"),
    ),
    "rollout_is_threshold_lower": Setting(
        what="Lower bound of the weights, for mask mode and for statistics; null: 1/upper.",
        units=_RATIOS,
        example="rollout_is_threshold_lower: 0.5",
    ),
    "rollout_is_level": Setting(
        what="Level of the weights: token, sequence or geometric.",
        example="rollout_is_level: token",
        see=("token", "sequence", "geometric"),
    ),
    "rollout_is_mode": Setting(
        what="What happens to weights outside the bounds: truncate or mask.",
        of={
            FIRST: "mask sets them to 0; their tokens stay in the loss mask",
            SECOND: "mask takes their tokens out of the loss mask; the weights stay",
        },
        example="rollout_is_mode: mask",
        see=("TIS", "MIS"),
    ),
    "rollout_is_veto_threshold": Setting(
        what="A sequence with a token ratio below it is out.",
        of={
            FIRST: "its weights are set to 0; verl's document has null as the default",
            SECOND: "its tokens leave the loss mask",
        },
        units=_RATIOS,
        example="rollout_is_veto_threshold: 1.0e-4",
        see=("veto", "rollout_token_veto_threshold"),
    ),
    "rollout_rs": Setting(
        what="What decides which tokens or sequences leave the loss mask; null for nothing.",
        of={
            BY_RATIO: "token, sequence or geometric: by the ratio at that level",
            BY_K: "one or more of token_k1 ... seq_max_k3, separated by commas; a token "
            "stays if all keep it",
        },
        example="rollout_rs: seq_mean_k1,token_k3",
        see=("geometric", "token_k1", "seq_mean_k1", "seq_mean_k3"),
    ),
    "rollout_rs_threshold": Setting(
        what="Bounds of rejection; verl stops without it where rollout_rs is set.",
        of={
            BY_RATIO: "a number, the upper bound; verl's documents say that null takes "
            "rollout_is_threshold, the code stops",
            (*V071, *BROKEN): f"{_K_BOUNDS} rejects everything",
            MENDED: f"{_K_BOUNDS} is refused",
        },
        units="ratio; nats for k2 and k3",
        example='rollout_rs_threshold: "0.5_2.0,0.01" with rollout_rs: token_k1,seq_mean_k3',
        see=("token_k1", "mirrored-bounds", "threshold-read-as-number"),
    ),
    "rollout_rs_threshold_lower": Setting(
        what="Lower bound of rejection; null: 1/upper.",
        units=_RATIOS,
        example="rollout_rs_threshold_lower: 0.999",
    ),
    "rollout_token_veto_threshold": Setting(
        what="A sequence with a token ratio below it leaves the loss mask whole; null: off. Gone "
        "from 0.7.1 on.",
        units=_RATIOS,
        healthy="verl's documents: 1e-6 to 1e-4",
        example="rollout_token_veto_threshold: 1.0e-4",
        see=("veto",),
    ),
    "bypass_mode": Setting(
        what="Takes the rollout log-probs for the old ones: two policies instead of three.",
        of={
            (*BY_RATIO, *V071): "with one mini-batch and one epoch the actor takes its "
            "own log-probs and it does nothing, unless actor.use_rollout_log_probs is on",
            MENDED: "the V1 trainer only copies the log-probs: without loss_mode: bypass_mode in "
            "actor.policy_loss nothing else of the block has an effect (verl #4912)",
        },
        example="bypass_mode: true",
        see=("bypass", "decoupled", "loss_type"),
    ),
    "use_policy_gradient": Setting(
        what="REINFORCE in place of the clipped PPO loss, in bypass mode. Called loss_type from "
        "0.7.0 on.",
        example="use_policy_gradient: true",
        see=("loss_type", "reinforce"),
    ),
    "loss_type": Setting(
        what="Loss in bypass mode: ppo_clip or reinforce.",
        example="loss_type: reinforce",
        see=("ppo_clip", "reinforce"),
    ),
    "rollout_is_batch_normalize": Setting(
        what="Divides the weights by their mean over the batch; rejected tokens take part.",
        of={
            tuple(name for name in BY_RATIO if name != "verl-0.7.0"): "sequence weights: over all "
            "rows, those without a token as 0",
            ("verl-0.7.0", *BY_K): "sequence weights: over rows with a token",
        },
        example="rollout_is_batch_normalize: true",
        see=("batch normalisation",),
    ),
    "use_tis": Setting(
        what="Turns the helper on; without it nothing happens, rejection and veto included.",
        example="use_tis: true",
        see=("setting-without-effect",),
    ),
    "use_rs": Setting(
        what="Rejection by ratios, and the veto; needs use_tis.",
        example="use_rs: true",
        see=("rs_level", "rs_veto_threshold"),
    ),
    "tis_level": Setting(
        what="Level of the weights: token, sequence or geometric. geometric stops with "
        "tis_batch_normalize, though the comments of slime's YAML offer both.",
        example="tis_level: token",
        see=("token", "sequence", "geometric"),
    ),
    "rs_level": Setting(
        what="Level of the ratio that use_rs holds against its bounds.",
        example="rs_level: sequence",
        see=("token", "sequence", "geometric"),
    ),
    "tis_mode": Setting(
        what="What happens to weights outside the bounds: truncate, clip or mask. The README has "
        "no mask; the YAML comment says that it zeroes weights, the code takes the tokens out of "
        "the loss mask and leaves the weights.",
        example="tis_mode: mask",
        see=("TIS", "clip", "MIS"),
    ),
    "tis_lower_bound": Setting(
        what="Lower bound of the weights; null: 1/upper. In truncate mode it only serves as the "
        "default of rs_lower_bound.",
        units=_RATIOS,
        example="tis_lower_bound: 0.5",
    ),
    "tis_upper_bound": Setting(
        what="Upper bound of the weights.", units=_RATIOS, example="tis_upper_bound: 2.0"
    ),
    "rs_lower_bound": Setting(
        what=f"Lower bound of rejection; {_SLIME_FALLBACK}.",
        units=_RATIOS,
        example="rs_lower_bound: 0.5",
    ),
    "rs_upper_bound": Setting(
        what=f"Upper bound of rejection; {_SLIME_FALLBACK}.",
        units=_RATIOS,
        example="rs_upper_bound: 2.0",
    ),
    "rs_veto_threshold": Setting(
        what="A sequence with a token ratio below it leaves the loss mask whole; needs use_rs and "
        "use_tis, the README says neither.",
        units=_RATIOS,
        example="rs_veto_threshold: 1.0e-4; 1e-4 is text in YAML 1.1, and slime stops",
        see=("veto",),
    ),
    "tis_batch_normalize": Setting(
        what="Divides the weights by their mean over one micro-batch on one rank; the README says "
        "over the batch.",
        example="tis_batch_normalize: true",
        see=("batch normalisation",),
    ),
}
