"""Numbers of a row of `rcdiag sweep`. To add one: an entry here.

Source: reference/theory.md 2.1, 2.7, 4.3 and 4.4.
"""

from __future__ import annotations

from dataclasses import replace

from rcdiag.diagnosis.correction_health import HEALTH
from rcdiag.glossary.entry import Entry, Kind, by_hand, said
from rcdiag.glossary.guides import range_of
from rcdiag.glossary.worked_sweep import example

_CONSTRAINT = "the recommendation refuses"
_STEP = "theory.md 4.3, step 3"
_OF_RATIO = "ratio = target / behavior probability"
_OVER_ALL = "over all sequences, w their mean weight, 0 where rejected"

ROW: dict[str, Entry] = {
    "bounds": said(
        what="The bounds of a setting: `lower` and `upper`; where rejection goes with weights "
        "`rs_lower` and `rs_upper` are those of rejection, `is_upper` is that of the weights.",
        direction=f"ratios that are kept, {_OF_RATIO}; not mirrored as k1 bounds are in verl",
        units="ratio; nats for k2 and k3",
        example='{"rs_lower": 0.99, "rs_upper": 1.01, "is_upper": 2.0}',
        see=("mirrored-bounds", "TIS", "IcePop", "MIS"),
    ),
    "kept_groups": said(
        what="Prompt groups with at least two kept sequences, of those that have two: fewer give a "
        "group baseline nothing to compare.",
        formula="count of groups with 2 kept sequences or more",
        units="groups",
        see=("groups_below_two", "kept_sequences"),
    ),
    "kept_token_share": said(
        what="Share of the tokens that stay in the loss mask.",
        formula="kept_tokens / all unmasked tokens",
        units="share",
        healthy="ideal 1; verl's guide: masked share below 0.1; see kept_sequence_share",
        see=("kept_tokens", "kept_sequence_share"),
    ),
    "kept_sequence_share": said(
        what="Share of the sequences with at least one token that stays: the acceptance.",
        formula="kept_sequences / all sequences with an unmasked token",
        units="share",
        healthy=f"ideal 1; above 0.9 good (theory.md 4.4); below 0.7 {_CONSTRAINT} ({_STEP}, after "
        "trust region masking, arXiv 2512.23075)",
        see=("kept_sequences", "lost_mass"),
    ),
    "ess_trainer": said(
        what="Effective sample size as the newest verl logs it: of tokens, of applied weights "
        "before rejection; null without weights.",
        formula="1 / E[(w / (E[w] + 1e-8))^2] over tokens",
        units="fraction",
        healthy="verl's guide wants 0.5; it does not see what is rejected: see ess_token_applied",
        see=("rollout_corr/rollout_is_eff_sample_size", "ess_token_applied"),
    ),
    "mean_weight": said(
        what="Mean weight of all tokens, rejected ones with weight 0.",
        formula="sum of applied weights of kept tokens / all unmasked tokens",
        direction="below 1 where truncation and rejection take more than ratios above 1 add: the "
        "gradient shrinks with it",
        units="ratio",
        healthy="ideal 1; not judged",
        see=("weight_sum", "rollout_corr/rollout_is_mean"),
    ),
    "lost_mass": said(
        what="Share of the policy that trains that rejection throws away, at the level of the "
        "rejection.",
        formula="E[ratio 1(rejected)] / E[ratio] over tokens or sequences",
        direction=_OF_RATIO,
        units="share",
        healthy=f"{range_of(0.0, HEALTH['lost_target_mass_seq'])}; above 0.1 {_CONSTRAINT}",
        see=("lost_target_mass_token", "lost_target_mass_seq", "truncation_loss"),
    ),
    "variance": said(
        what="Variance over sequences of the mean applied weight: what weighting adds in noise.",
        formula=f"E[w^2] - E[w]^2 {_OVER_ALL}",
        units="ratio^2",
        healthy="ideal 0; not judged by itself: bias^2 + variance / n picks the best setting of a "
        "family (theory.md 4.3, step 5)",
        see=("bias", "ess_seq_applied"),
    ),
    "bias": said(
        what="Distance of the applied weights from the ratios of whole sequences, given that those "
        "average 1: at most so much is the mean of anything between -1 and 1 off. No ratio beyond "
        "the bounds comes in. For weights by token a distance and no bound.",
        formula=f"max(1 - E[w], 0) + 2 E[(w - prod ratio)+] {_OVER_ALL}",
        direction=_OF_RATIO,
        units="none",
        healthy="ideal 0, at most 2; not judged by itself",
        see=("bias_bound", "variance", "efficiency"),
    ),
    "reward_shift": said(
        what="Mean reward of the kept sequences less that of all: whether rejection picks by "
        "reward; null without rewards.",
        formula="E[reward | kept] - E[reward]",
        direction="positive where sequences with high rewards are kept",
        units="reward",
        healthy=f"ideal 0; where its interval leaves 0 out {_CONSTRAINT} ({_STEP})",
        see=("keep_reward_correlation", "advantage_shift"),
    ),
    "advantage_shift": said(
        what="The same of recorded advantages; null without them.",
        formula="E[advantage | kept] - E[advantage] over sequences",
        direction="positive where sequences with high advantages are kept",
        units="advantage",
        healthy="ideal 0; not judged",
        example="advantages 1 and -1, the first sequence kept: 1",
        see=("reward_shift",),
    ),
    "kept_by_length": said(
        what="Share of the tokens that stay, in each quarter of the sequences by length, the "
        "shortest first: unequal ones are the length trap.",
        formula="kept tokens / tokens of the sequences of a quarter",
        units="share",
        healthy="ideal: four equal numbers; see keep_length_correlation",
        example="all of the short sequences kept, and half of the longest: 1, 1, 0.8, 0.5",
        see=("keep_length_correlation", "length"),
    ),
    "clamped_share": said(
        what="Share of tokens, or of sequences for bounds by sequence, whose log-ratio reaches the "
        "clamp of trainers.",
        formula="E[1(|log_ratio| >= 20)] over tokens, or of the sum over sequences",
        units="share",
        healthy=f"ideal 0; where a sequence lies above the clamp {_CONSTRAINT} ({_STEP})",
        see=("unsafe_tokens", "unsafe_sequences"),
    ),
}

_WRITTEN = by_hand(
    "number of a sweep",
    "Numbers of a row of `rcdiag sweep`",
    ROW,
    aliases=dict.fromkeys(("lower", "upper", "rs_lower", "rs_upper", "is_upper"), "bounds"),
)


def entry(name: str) -> Entry:
    """Numbers of a row with a worked example."""
    found = _WRITTEN.entry(name)
    return found if found.example else replace(found, example=example(name))


KIND: Kind = replace(_WRITTEN, entry=entry)
