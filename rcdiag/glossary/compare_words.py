"""Numbers of `rcdiag compare`. To add one: an entry here."""

from __future__ import annotations

from rcdiag.glossary.entry import LOG_RATIO, Entry, by_hand, said

_STEPS = "two steps of log-ratio 0.1 and 0.3 on every token"

NUMBERS: dict[str, Entry] = {
    "log_prob_mean": said(
        what="Mean log-prob of the sampled tokens under a policy.",
        formula="E[log p] over tokens",
        direction="the higher, the nearer to what sampled them",
        units="nats per token",
        example="probabilities 0.5 and 0.25: -1.04",
        see=("behind",),
    ),
    "behind": said(
        what="How much farther a policy is from what really sampled the tokens than the best one "
        "is, token by token.",
        formula="E[log p_best - log p] = KL(sampler || p) - KL(sampler || p_best)",
        direction="never negative; 0 for the best",
        units="nats per token",
        healthy="ideal 0, within its interval: nothing tells it from the best",
        example="mean log-probs -1.04 of the best and -1.05: 0.01",
        see=("nearest", "recorded-is-not-nearest"),
    ),
    "nearest": said(
        what="Policies whose interval of `behind` reaches 0: nothing tells them from the one that "
        "is nearest to the sampler.",
        healthy="the recorded policy is among them",
        example="rcdiag compare scored.parquet --json | jq .nearest",
        see=("behind", "recorded-is-not-nearest"),
    ),
    "contribution": said(
        what="What a step of the ladder adds to the mismatch between its ends; all steps add up to "
        "`whole`.",
        formula="E[log_ratio of the step x log_ratio between the ends] / 2 over tokens",
        direction="below 0 where a step undoes what others did",
        units="nats per token",
        example=f"{_STEPS}: 0.02 and 0.06",
        see=("share", "whole", "at_floor"),
    ),
    "share": said(
        what="The contribution of a step as a share of the whole; null where the ends are equal.",
        formula="contribution / whole",
        direction="below 0 where a step undoes what others did, and others then add up to above 1",
        units="share",
        example=f"{_STEPS}: 0.25 and 0.75",
        see=("contribution", "whole"),
    ),
    "whole": said(
        what="The mismatch between both ends of the ladder, sampler and trainer.",
        formula="E[log_ratio^2] / 2 over tokens, between the ends",
        direction="the same for log_ratio and -log_ratio",
        units="nats per token",
        healthy="below 0.001 healthy rounding of dense models (the guide of k3_kl)",
        example=f"{_STEPS}: 0.08",
        see=("k2_kl", "contribution"),
    ),
    "log_ratio_mean": said(
        what="Mean log-ratio of a step of the ladder.",
        formula="E[log p_end - log p_start] over tokens",
        direction=LOG_RATIO,
        units="nats per token",
        healthy="ideal 0",
        example=f"{_STEPS}: 0.1 and 0.3",
        see=("log_ratio", "k1_kl"),
    ),
    "at_floor": said(
        what="Whether two policies may be no further apart than two runs of one policy are: then "
        "the difference is noise. Null where no policy was scored twice.",
        formula="lower end of k2 of the pair <= upper end of k2 of the noise floor",
        example="rcdiag score rollouts.parquet --model PATH --noise-floor -o scored.parquet",
        see=("noise-floor", "k2_kl", "repeat"),
    ),
    "odd_one_out": said(
        what="The policy of recorded, re-scored and trainer that stands apart from the two others; "
        "null where none does.",
        formula="k2 of the two others below a quarter of either's to it, intervals counted",
        healthy="null, with the verdict three-agree",
        example="rcdiag compare scored.parquet --json | jq .triangulation.odd_one_out",
        see=("three-agree", "three-differ", "engine-against-trainer"),
    ),
}

KIND = by_hand("number of a comparison", "Numbers of `rcdiag compare`", NUMBERS)
