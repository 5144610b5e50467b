"""The result of `rcdiag compare` holds the mismatch of all pairs of policies of a table."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from rcdiag.formats import measured
from rcdiag.results.base import (
    LOG_RATIO,
    Behavior,
    EmptySequences,
    MetricValue,
    NumClusters,
    Profile,
    RowsLeftOut,
    Target,
)
from rcdiag.results.doc import Anything, Doc, Number
from rcdiag.results.parts import Part
from rcdiag.results.score import Mismatch, SequenceMeans, TokenMeans
from rcdiag.results.show import KindName, Measured, Summary

_STEPS = "two steps of log-ratio 0.1 and 0.3 on every token: "

AtFloor = Annotated[
    bool | None,
    Doc(
        "Whether two policies may differ no more than two runs of one policy do: then the "
        "difference is noise. Null where no policy was scored twice.",
        formula="lower end of k2 of the pair <= upper end of k2 of the noise floor",
        example="rcdiag score rollouts.parquet --model PATH --noise-floor -o scored.parquet",
        see=("noise-floor", "k2_kl", "repeat"),
    ),
]
_K2 = Doc(
    "Mean over tokens of k2 between two policies, the metric k2_kl: how much they differ, "
    "whichever of them sampled.",
    unit="nats per token",
    formula="E[log_ratio^2] / 2 over tokens",
    direction="the same for log_ratio and -log_ratio",
    healthy="ideal 0",
    see=("k2_kl", "at_floor"),
    heading="own k2",
)
K2 = Annotated[MetricValue, _K2]
K2OfPairs = Annotated[dict[str, MetricValue], _K2]


class PolicySummary(Part, frozen=True, kw_only=True):
    """A policy summary says how near a policy is to the distribution that really sampled."""

    setup: Annotated[
        str,
        Doc(
            "Engine and precision of a policy, as far as the table says.",
            heading="what it is",
        ),
    ]
    role: Annotated[
        str,
        Doc(
            "Role of a policy in the table: sampler, engine, trainer, recorded or repeat.",
            see=("sampler", "engine", "trainer", "recorded", "repeat"),
        ),
    ]
    log_prob_mean: Annotated[
        MetricValue,
        Doc(
            "Mean log-prob of the sampled tokens under a policy.",
            unit="nats per token",
            formula="E[log p] over tokens",
            direction="the higher, the nearer to what sampled them",
            example="probabilities 0.5 and 0.25: -1.04",
            see=("behind",),
            heading="log-prob",
        ),
    ]
    behind: Annotated[
        MetricValue,
        Doc(
            "How much farther than the best policy a policy is from the distribution that really "
            "sampled the tokens, per token; null where stored values are no log-probs.",
            unit="nats per token",
            formula="E[log p_best - log p] = KL(sampler || p) - KL(sampler || p_best)",
            direction="never negative; 0 for the best",
            healthy="ideal 0, within its interval: it cannot be told from the best",
            example="mean log-probs -1.04 of the best and -1.05: 0.01",
            see=("may_be_nearest", "recorded-is-not-nearest"),
            heading="behind best",
        ),
    ]
    may_be_nearest: Annotated[
        bool,
        Doc(
            "Whether the interval of `behind` reaches 0: then the policy cannot be told from the "
            "one that is nearest to the sampler.",
            see=("behind", "recorded-is-not-nearest"),
        ),
    ]
    scoring: Annotated[
        dict[str, Anything], Doc("How a policy was scored, as the table's metadata says.")
    ]


class PairResult(Part, frozen=True, kw_only=True):
    """A pair result compares an ordered pair of policies, behavior and target."""

    behavior: Behavior
    target: Target
    mismatch: Mismatch
    at_floor: AtFloor
    token_means: TokenMeans = None
    sequence_means: SequenceMeans = None


class PairFigure(Part, frozen=True, kw_only=True):
    """A pair figure holds the data of the figures of two policies, in either order."""

    edges: Annotated[list[Number], Doc("Edges of the bins of log-probs.", unit="nats")]
    cells: Annotated[
        list[list[int]],
        Doc(
            "Non-empty bins: bin of the first policy's log-prob, bin of the second's, number of "
            "tokens."
        ),
    ]
    by_probability: Annotated[
        Profile, Doc("The mismatch of a pair by the geometric mean of both probabilities.")
    ]


class Rung(Part, frozen=True, kw_only=True):
    """A rung is a step of the ladder: what the difference of two policies adds."""

    start: Annotated[str, Doc("The policy at which a step of the ladder begins.")]
    end: Annotated[str, Doc("The policy at which a step of the ladder ends.")]
    contribution: Annotated[
        MetricValue,
        Doc(
            "What a step adds to the mismatch between the ends of the ladder; all steps add up to "
            "`whole`.",
            unit="nats per token",
            formula="E[log_ratio of the step x log_ratio between the ends] / 2 over tokens",
            direction="below 0 where a step undoes what others did",
            example=_STEPS + "0.02 and 0.06",
            see=("share", "whole", "at_floor"),
            heading="adds",
        ),
    ]
    share: Annotated[
        MetricValue,
        Doc(
            "The contribution of a step as a share of the whole; null where the ends are equal. "
            "Its level is unknown where its interval is wider than half of the whole or missing: "
            "then screen and page do not show the number.",
            unit="share",
            formula="contribution / whole",
            direction="below 0 where a step undoes what others did; the others then add up to "
            "more than 1",
            example=_STEPS + "0.25 and 0.75",
            see=("contribution", "whole"),
        ),
    ]
    k2: K2
    log_ratio_mean: Annotated[
        MetricValue,
        Doc(
            "Mean log-ratio of a step of the ladder.",
            unit="nats per token",
            formula="E[log p_end - log p_start] over tokens",
            direction=LOG_RATIO,
            healthy="ideal 0",
            example=_STEPS + "0.1 and 0.3",
            see=("log_ratio", "k1_kl"),
        ),
    ]
    at_floor: AtFloor


class Ladder(Part, frozen=True, kw_only=True):
    """The ladder splits the mismatch between the sampler and the trainer into steps."""

    policies: Annotated[
        list[str], Doc("Policies of the ladder in order, from the sampler to the trainer.")
    ]
    whole: Annotated[
        MetricValue,
        Doc(
            "The mismatch between both ends of the ladder, sampler and trainer.",
            unit="nats per token",
            formula="E[log_ratio^2] / 2 over tokens, between the ends",
            direction="the same for log_ratio and -log_ratio",
            healthy="below 0.001 healthy rounding of dense models (rcdiag's proposal)",
            example=_STEPS + "0.08",
            see=("k2_kl", "contribution"),
        ),
    ]
    rungs: Annotated[
        list[Rung],
        Doc(
            "The steps of the ladder, each between two policies.",
            see=("contribution", "share"),
            one_fewer_than="policies",
        ),
    ]


class NoiseFloor(Part, frozen=True, kw_only=True):
    """The noise floor is how much two runs of one policy in different batches differ."""

    policy: Annotated[str, Doc("Name of the policy that was scored twice.")]
    repeat: Annotated[
        str,
        Doc("Name of the second run of a policy, in different batches.", see=("noise-floor",)),
    ]
    k2: K2
    log_ratio_abs_max: Annotated[
        Number | None,
        Doc(
            "Largest log-ratio by size between two runs of one policy.",
            unit="nats",
            formula="max |log_ratio| over tokens",
        ),
    ]


class Triangulation(Part, frozen=True, kw_only=True):
    """Triangulation says which of recorded, re-scored and trainer log-probs is the outlier."""

    sampler_policy: Annotated[str, Doc("Name of the policy whose log-probs the sampler recorded.")]
    engine_policy: Annotated[
        str, Doc("Name of the policy that the inference engine scored afterwards.")
    ]
    trainer_policy: Annotated[str, Doc("Name of the policy that a trainer's model scored.")]
    k2: K2OfPairs
    agreement: Annotated[
        str,
        Doc(
            "Whether three policies of a comparison agree, or which one is the outlier, as the "
            "slug of the finding that says so.",
            see=("three-agree", "three-differ", "engine-against-trainer"),
        ),
    ]
    odd_one_out: Annotated[
        str | None,
        Doc(
            "The policy of recorded, re-scored and trainer that differs from the two others, which "
            "agree; null where none does.",
            formula="k2 between the two others below a quarter of the k2 of each to it, with their "
            "intervals",
            healthy="null, with the agreement three-agree",
            see=("three-agree", "three-differ", "engine-against-trainer"),
        ),
    ]


class JoinReport(Part, frozen=True, kw_only=True):
    """A join report says how several tables become one."""

    tables: Annotated[list[str], Doc("Paths of the tables that were joined.")]
    table_rows: Annotated[
        list[int], Doc("Number of rows of each of the joined tables.", unit="rows")
    ]
    common_samples: Annotated[
        int, Doc("Number of samples that all tables have with equal tokens.", unit="samples")
    ]
    missing_rows: Annotated[
        dict[str, int],
        Doc("Number of rows of other tables that a table lacks, by table.", unit="rows"),
    ]
    tokens_differ: Annotated[
        int,
        Doc(
            "Number of samples that a comparison of tables leaves out because their tokens differ.",
            unit="samples",
            healthy="ideal 0",
            example="rcdiag compare a.parquet b.parquet --json | jq .joined.tokens_differ",
            see=("rows-left-out-of-the-join",),
        ),
    ]
    left_out: Annotated[
        list[str], Doc("The first few samples that a join leaves out, with the reasons.")
    ]
    matched_by: Annotated[
        str,
        Doc(
            "How rows of joined tables are matched: by `sample_id`, `row` (their place) or "
            "`tokens` (step, prompt and response; equal rows match in their order).",
            added=True,
        ),
    ] = ""


Joined = Annotated[
    JoinReport | None,
    Doc(
        "How several tables were joined; null where the result is of a single table.",
        see=("rows-left-out-of-the-join", "matched_by"),
    ),
]


class CompareResult(Measured, frozen=True, kw_only=True):
    """The result of `rcdiag compare` compares all policies of a table, or of several tables."""

    kind: KindName = "compare"
    policies: Annotated[
        dict[str, PolicySummary],
        Doc("Every policy of a comparison, by name.", see=("role", "log_prob_mean", "behind")),
    ]
    num_clusters: NumClusters
    empty_sequences: EmptySequences
    pairs: Annotated[
        dict[str, PairResult],
        Doc('The mismatch of every ordered pair of policies, by "behavior->target".'),
    ]
    nearest_policies: Annotated[
        list[str],
        Doc(
            "Policies whose interval of `behind` reaches 0: they cannot be told from the one that "
            "is nearest to the sampler.",
            formula="lower end of the interval of behind <= 0",
            healthy="the recorded policy is among them",
            see=("behind", "recorded-is-not-nearest"),
        ),
    ]
    ladder: Annotated[
        Ladder,
        Doc("The mismatch between the sampler and the trainer, split into steps.", see=("whole",)),
    ]
    triangulation: Annotated[
        Triangulation | None,
        Doc(
            "Which of recorded, re-scored and trainer log-probs is the outlier; null where one of "
            "the three is not in the table.",
            see=("odd_one_out", "three-agree"),
        ),
    ]
    noise_floor: Annotated[
        NoiseFloor | None,
        Doc(
            "How much two runs of one policy differ; null where no policy was scored twice.",
            see=("noise-floor", "at_floor"),
        ),
    ]
    joined: Joined
    figures: Annotated[
        dict[str, PairFigure],
        Doc('Data of the figures of a comparison, by "a->b"; every pair is there once.'),
    ] = field(default_factory=dict)
    rows_left_out: RowsLeftOut = 0

    def _summary(self) -> Summary:
        """Summarise the policies, the one that is nearest to the sampler first."""
        order = sorted(self.policies.items(), key=lambda item: item[1].behind.value or 0.0)
        rows = [
            (
                name,
                policy.role,
                policy.setup,
                measured(policy.behind)[0],
                "nearest" * policy.may_be_nearest,
            )
            for name, policy in order
        ]
        columns = ("policy", "role", "about", "behind, nats per token", "")
        about = f"{len(self.policies)} policies, {self.size}"
        return Summary(about, columns, rows, "policies")
