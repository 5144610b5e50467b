"""What one correction keeps and weights: what its trainer logs of it, and its actual numbers."""

from __future__ import annotations

from typing import Annotated, TypedDict

from msgspec import field

from rcdiag.results.base import (
    ESS_SEQ_APPLIED,
    ESS_TOKEN_APPLIED,
    LEVELS,
    RATIO,
    TOY,
    TRUNCATION_LOSS,
    BiasBound,
    Config,
    KeepLengthCorrelation,
    KeptSequences,
    KeptTokens,
    LoggedMetrics,
    TrainerName,
)
from rcdiag.results.doc import Anything, Doc, Number
from rcdiag.results.parts import Part

WeightSum = Annotated[
    Number | None,
    Doc(
        "Sum of the weights over all unmasked tokens, rejected ones too, before batch "
        "normalisation; null without weights.",
        unit="ratio",
        formula="sum of applied weights over tokens",
        example=TOY + "6.365",
    ),
]


class _CorrectionNumbers(TypedDict):
    """These numbers of a correction count rows with a token and are in float64.

    Ratios have no clamp; weights are those that enter the loss, truncated where a correction
    truncates.
    Sources: Kish 1965, Survey Sampling (effective sample size); Vehtari et al. 2024, Pareto
    smoothed importance sampling (k-hat); bounds on the bias are those for values within [-1, 1].
    """

    ess_token_applied: Annotated[Number | None, ESS_TOKEN_APPLIED]
    ess_seq_applied: Annotated[Number | None, ESS_SEQ_APPLIED]
    lost_target_mass_token: Annotated[
        Number | None,
        Doc(
            "Share of the target policy's probability mass in tokens that are rejected or have "
            "weight 0. The heading `lost` shows the larger of this and the share by sequence.",
            unit="share",
            formula="E[ratio 1(rejected or weight 0)] / E[ratio] over tokens",
            direction=RATIO,
            healthy="ideal 0",
            example=TOY + "0.7284",
            see=("lost_target_mass_seq",),
            heading="lost",
        ),
    ]
    lost_target_mass_seq: Annotated[
        Number | None,
        Doc(
            "Share of the target policy's probability mass in sequences of which no token is kept "
            "with a weight above 0.",
            unit="share",
            formula="E[prod ratio 1(rejected or weight 0)] / E[prod ratio] over sequences",
            direction=RATIO,
            healthy="ideal 0",
            example=TOY + "0.03917",
        ),
    ]
    truncation_loss: Annotated[Number | None, TRUNCATION_LOSS]
    bias_bound: BiasBound
    unsafe_tokens: Annotated[
        Number | None,
        Doc(
            "Share of tokens whose log-ratio reaches the clamp of trainers, 20 nats.",
            unit="share",
            formula="E[1(|log_ratio| >= 20)] over tokens",
            direction=RATIO,
            healthy="ideal 0",
            example=TOY + "0",
        ),
    ]
    unsafe_sequences: Annotated[
        Number | None,
        Doc(
            "Share of sequences whose summed log-ratio reaches the clamp of trainers, 20 nats.",
            unit="share",
            formula="E[1(|sum log_ratio| >= 20)] over sequences",
            direction=RATIO,
            healthy="ideal 0",
            example=TOY + "0",
        ),
    ]
    keep_length_correlation: KeepLengthCorrelation
    keep_reward_correlation: Annotated[
        Number | None,
        Doc(
            "Whether rejection selects by reward, and so changes the objective; null without "
            "rewards, and where all or nothing is kept everywhere.",
            unit="none",
            formula="Pearson correlation over sequences of kept share and reward",
            healthy="ideal 0",
            example="of two sequences the one with the higher reward is kept: 1",
        ),
    ]
    groups_below_two: Annotated[
        int,
        Doc(
            "Number of prompt groups of two or more sequences that keep fewer than two: a group "
            "baseline has nothing to compare there.",
            unit="groups",
            formula="count of groups with size >= 2 and fewer than 2 kept sequences",
            healthy="ideal 0",
            example=TOY + "0",
        ),
    ]
    denominator_kept: Annotated[
        int,
        Doc(
            "What the loss divides by where rejected tokens are not counted: verl's legacy workers "
            "up to 0.7.1, and its engine workers in decoupled mode with token-mean.",
            unit="tokens",
            formula="count of kept tokens",
            example=TOY + "2",
            see=("denominator_all",),
        ),
    ]
    denominator_all: Annotated[
        int,
        Doc(
            "What the loss divides by where rejected tokens are counted: verl's V1 trainer, bypass "
            "mode, IcePop, mask mode of 0.6.0, and slime. Rejection then shrinks the loss.",
            unit="tokens",
            formula="count of unmasked tokens",
            example=TOY + "5",
            see=("denominator_kept",),
        ),
    ]
    khat: Annotated[
        Number | None,
        Doc(
            "Pareto k-hat of the raw ratios at the level of the weights; null without weights.",
            unit="none",
            formula="khat_token or khat_seq",
            healthy="below 0.5 finite variance; from 0.7 on unreliable (Vehtari et al. 2024, "
            "Pareto smoothed importance sampling)",
            see=("khat_token", "khat_seq"),
            heading="k-hat",
        ),
    ]


class CorrectionNumbers(_CorrectionNumbers, total=False):
    """All numbers of a correction; three exist only where verl's code and documents differ."""

    accepted_ratios: Annotated[
        dict[str, dict[str, list[Number]]],
        Doc(
            "Range of ratios that each k1 option keeps, by verl's code and by verl's documents; "
            "the key exists only where they differ.",
            unit="ratio",
            formula="code [1/upper, 1/lower], documents [lower, upper]",
            direction=RATIO,
            example=TOY + "token_k1 code [0.625, 1.667], documents [0.6, 1.6]",
            see=("mirrored-bounds", "token_k1"),
        ),
    ]
    kept_tokens_by_documents: Annotated[
        int,
        Doc(
            "Number of tokens that the bounds keep as verl's documents define them; the key exists "
            "only where that differs from the code.",
            unit="tokens",
            formula="count of tokens with lower <= ratio <= upper",
            direction=RATIO,
            example=TOY + "3",
            see=("mirrored-bounds",),
        ),
    ]
    kept_sequences_by_documents: Annotated[
        int,
        Doc(
            "Number of sequences that the bounds keep as verl's documents define them; the key "
            "exists only where that differs from the code.",
            unit="sequences",
            formula="count of sequences with a token that would be kept",
            example=TOY + "2",
            see=("mirrored-bounds",),
        ),
    ]


class CorrectionResult(Part, frozen=True, kw_only=True):
    """A correction result shows what a trainer logs of a correction, and its actual numbers."""

    trainer: TrainerName
    config: Config
    kept_tokens: KeptTokens
    kept_sequences: KeptSequences
    weight_sum: WeightSum
    metrics: LoggedMetrics
    actual: Annotated[
        dict[str, Anything],
        Doc(
            "Numbers of a correction beside those that the trainer logs: over sequences with a "
            "token, in float64, with unclamped ratios and weights as they enter the loss.",
            see=("ess_seq_applied", "lost_target_mass_seq", "truncation_loss"),
            keys=CorrectionNumbers,
        ),
    ]
    log_bounds: Annotated[
        dict[str, list[Number]],
        Doc(
            "Log-ratios at which a correction begins to act, by scope (token, sequence, "
            "geometric); figures mark them.",
            unit="nats",
            formula="log of each bound; -upper and -lower for k1 bounds",
            example=TOY + "sequence [0.6931], token [-0.47, 0.5108]",
        ),
    ] = field(default_factory=dict)
    level: Annotated[
        str | None,
        Doc(
            "The worst level of the numbers that judge a correction; error where no token is kept, "
            "unknown where one of them is missing, for example because weights are NaN; null where "
            "the PPO ratio alone corrects, which `replay` judges.",
            see=(*LEVELS, "actual"),
            one_of=LEVELS,
        ),
    ] = None
    in_float32: Annotated[
        dict[str, Anything] | None,
        Doc(
            "What the correction keeps when computed in float32, as trainers do: kept tokens, kept "
            "sequences and the weight sum; null where float64 decides the same for every token.",
            see=("float32-decides", "kept_tokens", "weight_sum"),
            sparse=True,
        ),
    ] = None

    @property
    def lost_mass(self) -> float | None:
        """Share of the target's probability mass that is lost: the larger one by its two levels."""
        shares = (self.actual[f"lost_target_mass_{level}"] for level in ("token", "seq"))
        return max((share for share in shares if share is not None), default=None)

    def mean_weight(self, num_tokens: int) -> float | None:
        """Return the mean weight of a batch's tokens before rejection; None without weights."""
        return None if self.weight_sum is None or not num_tokens else self.weight_sum / num_tokens
