"""Numbers of `rcdiag sweep`: of a row, and of the judgement of candidates."""

from __future__ import annotations

from dataclasses import replace

from rcdiag.diagnosis.constraints import CONSTRAINTS
from rcdiag.diagnosis.correction_health import LOST_MASS
from rcdiag.glossary.entry import Entry, Kind, by_hand, said
from rcdiag.glossary.guides import range_of
from rcdiag.glossary.worked_sweep import example

_CONSTRAINT = "the recommendation refuses"
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
        healthy=f"ideal 1; from 0.7 down {_CONSTRAINT} (Trust Region Masking, arXiv 2512.23075)",
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
        healthy=f"{range_of(0.0, LOST_MASS)}; from 0.1 on {_CONSTRAINT}",
        see=("lost_target_mass_token", "lost_target_mass_seq", "truncation_loss"),
    ),
    "variance": said(
        what="Variance over sequences of the mean applied weight: what weighting adds in noise.",
        formula=f"E[w^2] - E[w]^2 {_OVER_ALL}",
        units="ratio^2",
        healthy="ideal 0; not judged by itself: bias^2 + variance / n picks the best setting of a "
        "family",
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
        healthy=f"ideal 0; where its interval leaves 0 out {_CONSTRAINT}",
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
        healthy=f"ideal 0; where a sequence lies above the clamp {_CONSTRAINT}",
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

JUDGED: dict[str, Entry] = {
    "efficiency": said(
        what="How well a candidate serves, free of scale: the descent expected of its gradient at "
        "the best step size, relative to the reference without noise. Where that gradient is not "
        "to be had or not to be believed: 1 - bias / 2. `method` says which.",
        formula="(m . g)^2 / (|g|^2 E|mean|^2); m the candidate's mean gradient, g that of "
        "untruncated ratios of sequences",
        units="none",
        healthy="ideal 1; it ranks candidates of one table and is not comparable between tables",
        example="a gradient across the reference: 0; the reference itself without noise: 1",
        see=("bias", "indistinguishable"),
    ),
    "rank": said(
        what="Place of a candidate by efficiency, from 1; null where it is refused.",
        example="rcdiag sweep rollouts.parquet --json | jq '.recommendation.candidates[].rank'",
        see=("efficiency", "refused"),
    ),
    "refused": said(
        what="Constraints that a candidate breaks, in words.",
        healthy="ideal: none",
        example="keeps 21.0% of the sequences, not above 70%",
        see=tuple(f"constraint.{name}" for name in CONSTRAINTS),
    ),
    "indistinguishable": said(
        what="Candidates within one standard error of the best: the table does not tell them "
        "apart, and the simplest of them is chosen.",
        formula="efficiency of the best less its own <= standard deviation of that over replicates "
        "of the clusters",
        example="none among them: do not correct",
        see=("efficiency", "do-not-correct"),
    ),
    "choice": said(
        what="The candidate that is recommended; null where there is none.",
        example="rcdiag sweep rollouts.parquet --json | jq .recommendation.choice",
        see=("correct", "none", "indistinguishable"),
    ),
}

JUDGED_KIND = by_hand("judgement of candidates", "How `rcdiag sweep` judges candidates", JUDGED)
