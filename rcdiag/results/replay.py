"""The result of `rcdiag replay` holds the step that each preset takes, and its health."""

from __future__ import annotations

from typing import Annotated, TypedDict

from msgspec import field

from rcdiag.errors import setting
from rcdiag.formats import number
from rcdiag.results.base import (
    FORMAT_VERSION,
    Behavior,
    Config,
    EmptySequences,
    Findings,
    FormatVersion,
    Histogram,
    KeptSequences,
    KeptTokens,
    KindName,
    LoggedMetrics,
    MetricValue,
    NumSequences,
    NumTokens,
    ProvenanceOfResult,
    Step,
    Target,
    TrainerName,
)
from rcdiag.results.diagnosis import DiagnosisOfTable
from rcdiag.results.doc import Anything, Doc, Number
from rcdiag.results.parts import Part
from rcdiag.results.show import Shown, Summary, size

_MODEL = "--model CHECKPOINT"
_WITH_MODEL = f"rcdiag replay rollouts.parquet {_MODEL}"

_C = "c = d loss / d current log-prob of a token"
_PULL = "c below 0 raises the token's log-prob in a step down the loss, above 0 lowers it"
_PER = "loss per nat"
_PULLED = "coefficients [-0.2, -0.2, -0.1], [0.2, 0.2], advantages 1 and -1: "

_WITH = "G the preset's gradient, R the reference's, sums over each prompt group"
_OFF = "<..> by products of different groups"
_FEW = "null below three groups, and where noise leaves no squared norm above 0."
_UNIT = "loss per unit of weight"
_GROUPS = "gradients of three groups (2, 0), (1, 1), (2, -1), references (0, 1), (1, 1), (1, 0): "
_TURN = "1 the same direction, 0 across, below 0 against it"

_TOKENS = "over the recorded tokens"
_NATS = "nats per token"
_STEPPED = (
    "old to new log-ratios [0.1, -0.1, 1.5], [-1.2, -0.5], rollout to old 0.1 throughout, "
    "advantages 1 and -1: "
)
_SPLIT = "log-ratio 0.1 on every token: 0.00517"
_ENTROPY = "E[-sum_v p(v) log p(v)] " + _TOKENS


class UpdateModel(TypedDict):
    """An update model says which model takes the step, and with which settings."""

    checkpoint: Annotated[
        str,
        Doc(
            "Checkpoint that the model was loaded from.",
            see=("dtype", "reference", "optimizer", "minibatches"),
        ),
    ]
    dtype: Annotated[
        str,
        Doc(
            "Precision of the trained model; weights are stepped in float32 whatever it is.",
            example=f"{_WITH_MODEL} --precision bfloat16",
            see=("checkpoint", "options"),
        ),
    ]
    options: Annotated[
        dict[str, Anything],
        Doc(
            "Options of the model beside its dtype, as those of a policy that is scored.",
            example=f"{_WITH_MODEL} --precision float32,autocast=bfloat16",
            see=("checkpoint", "dtype"),
        ),
    ]
    lora_rank: Annotated[
        int | None,
        Doc(
            "Rank of the adapters that are trained in place of the weights; null without.",
            example=f"{_WITH_MODEL} --lora 16",
            see=("checkpoint", "norm_by_layer"),
        ),
    ]
    checkpointing: Annotated[
        bool,
        Doc(
            "Whether activations are computed again in the backward pass: less memory, more time, "
            "the same numbers.",
            example=f"{_WITH_MODEL} --checkpointing",
            see=("checkpoint",),
        ),
    ]
    reference: Annotated[
        str,
        Doc(
            "What gradients are compared with: seq_is, fresh or none.",
            example=f"{_WITH_MODEL} --reference seq_is",
            see=("seq_is", "fresh", "reference.none", "cosine"),
            one_of=("seq_is", "fresh", "none"),
        ),
    ]
    epochs: Annotated[
        int,
        Doc(
            "Number of passes over the batch.",
            example=f"{_WITH_MODEL} --epochs 2",
            see=("minibatches",),
        ),
    ]
    minibatches: Annotated[
        int,
        Doc(
            "Number of optimizer steps in one pass over the batch. From the second step on current "
            "is not old, and the PPO ratio not 1.",
            example=f"{_WITH_MODEL} --minibatches 4; --split 4",
            see=("epochs", "split", "staleness"),
        ),
    ]
    backwards: Annotated[
        int,
        Doc(
            "Backward passes that all gradients took together: those of presets that are alike are "
            "shared.",
            unit="passes",
            see=("updates", "gradient"),
        ),
    ]
    updates: Annotated[
        int,
        Doc(
            "Number of updates that were computed: presets and `naive`.",
            see=("backwards", "presets"),
        ),
    ]
    optimizer: Annotated[
        str,
        Doc(
            "The optimizer of the step: adamw or sgd.",
            example=f"{_WITH_MODEL} --optimizer sgd",
            see=("adamw", "sgd", "learning_rate"),
            one_of=("adamw", "sgd"),
        ),
    ]
    learning_rate: Annotated[
        Number,
        Doc(
            "Learning rate of the step; no schedule changes it.",
            healthy="where ESS is low: times sqrt(ESS / ESS on policy) (rcdiag's proposal)",
            example=f"{_WITH_MODEL} --lr 1e-6",
            see=("optimizer", "step_norm", "ESS"),
        ),
    ]
    max_grad_norm: Annotated[
        Number | None,
        Doc(
            "Longer gradients are scaled down to this norm; null: never.",
            example=f"{_WITH_MODEL} --max-grad-norm 1",
            see=("grad_norm", "optimizer"),
        ),
    ]
    weight_decay: Annotated[
        Number,
        Doc(
            "Weight decay of the optimizer.",
            example=f"{_WITH_MODEL} --weight-decay 0.01",
            see=("optimizer",),
        ),
    ]


class GradientReport(Part, frozen=True, kw_only=True):
    """A gradient report compares the gradient of a preset's loss with the reference's.

    The gradient is by all trained parameters. Products of different prompt groups share no noise,
    so that they are unbiased (U-statistics, Hoeffding 1948).
    """

    grad_norm: Annotated[
        Number,
        Doc(
            "Norm of the gradient before any clipping by it.",
            unit=_UNIT,
            formula="|sum over groups of G|",
            healthy="no bound; above max_grad_norm the step is scaled down",
            example=_GROUPS + "5",
            see=("norm_by_layer", "max_grad_norm", "coefficients.norm"),
            heading="|g|",
        ),
    ]
    norm_by_layer: Annotated[
        dict[str, Number],
        Doc(
            "Norm of the gradient in each part of the model: embedding, layer 0, ..., norm, head.",
            unit=_UNIT,
            formula="|G| of the part; squares add up to grad_norm^2",
            see=("grad_norm", "embedding", "layer 0", "norm_by_layer.norm", "head"),
        ),
    ]
    cosine: Annotated[
        MetricValue,
        Doc(
            "Direction of the gradient against the reference, unbiased by noise; " + _FEW,
            unit="none",
            formula="<G, R> / sqrt(<G, G> <R, R>), " + _OFF + ", held within -1 and 1; " + _WITH,
            direction=_TURN,
            healthy="ideal 1; for bounds see health.cosine",
            example=_GROUPS + "0.8018",
            see=("health.cosine", "cosine_whole", "reference"),
            heading="cos",
        ),
    ]
    cosine_whole: Annotated[
        Number | None,
        Doc(
            "Direction of the whole gradient against the whole reference: both share the noise of "
            "the batch, which makes it larger than `cosine`. Null without a reference and for a "
            "gradient of 0.",
            unit="none",
            formula="sum G . sum R / (|sum G| |sum R|); " + _WITH,
            direction=_TURN,
            healthy="not judged: see cosine",
            example=_GROUPS + "0.7071",
            see=("cosine",),
            heading="~",
        ),
    ]
    norm_ratio: Annotated[
        Number | None,
        Doc(
            "Length of the whole gradient over that of the whole reference.",
            unit="none",
            formula="|sum G| / |sum R|; " + _WITH,
            direction="below 1: a shorter step than the reference's",
            healthy="ideal 1; not judged",
            example=_GROUPS + "1.768",
            see=("norm_ratio_unbiased",),
        ),
    ]
    norm_ratio_unbiased: Annotated[
        MetricValue,
        Doc(
            "Length of the gradient over that of the reference, without the noise of either; "
            + _FEW,
            unit="none",
            formula="sqrt(<G, G> / <R, R>), " + _OFF + "; " + _WITH,
            direction="below 1: a shorter step than the reference's",
            healthy="ideal 1; not judged",
            example=_GROUPS + "1.871",
            see=("norm_ratio", "cosine"),
        ),
    ]
    squared_bias: Annotated[
        MetricValue,
        Doc(
            "Squared distance of the mean gradient from the mean reference, relative to the latter "
            "and without their noise; null below three groups.",
            unit="none",
            formula="max(<G - R, G - R>, 0) / <R, R>, " + _OFF + "; " + _WITH,
            healthy="ideal 0; not judged; 1 is the bias of no step at all",
            example=_GROUPS + "1.5",
            see=("relative_variance", "cosine"),
        ),
    ]
    relative_variance: Annotated[
        Number | None,
        Doc(
            "Noise of the gradient: trace of the covariance of its sum over the squared norm of "
            "its mean; null below three groups and where noise is all there is.",
            unit="none",
            formula="(sum |G|^2 - |sum G|^2 / n) / <G, G>, " + _OFF + ", n groups; " + _WITH,
            healthy="ideal 0; not judged; above 1 noise is larger than the signal",
            example=_GROUPS + "0.1905",
            see=("signal_to_noise",),
        ),
    ]
    signal_to_noise: Annotated[
        Number | None,
        Doc(
            "Squared norm of the mean gradient over its noise.",
            unit="none",
            formula="1 / relative_variance",
            healthy="not judged; below 1 noise is larger than the signal",
            example=_GROUPS + "5.25",
            see=("relative_variance",),
        ),
    ]
    sequence_norms: Annotated[
        list[Number],
        Doc(
            "Norm of each sequence's gradient, the largest first, at most 100 of them; estimated "
            "from a random sketch.",
            unit=_UNIT,
            formula="|gradient of the sequence|",
            see=("top_norm_share",),
        ),
    ]
    top_norm_share: Annotated[
        Number | None,
        Doc(
            "Share of the squared norms that the 1% of sequences with the largest have, one "
            "sequence at least.",
            unit="share",
            formula="sum of the largest 1% of |gradient of the sequence|^2 / their sum",
            healthy="not judged; above 0.5 is flagged for shares of weights (rcdiag's proposal)",
            example="norms 2, 1, 1: 4 / 6 = 0.667",
            see=("sequence_norms", "top_sequences"),
        ),
    ]
    skew: Annotated[
        Number | None,
        Doc(
            "How much leaving out token weights would change a gradient of unclipped losses, "
            "relative to this gradient (after arXiv 2605.14220).",
            unit="none",
            formula="|sum over tokens of (ratio - 1) A / N d log p| / grad_norm, "
            "ratio = old / rollout",
            healthy="ideal 0; not judged",
            see=("squared_bias", "mismatch"),
        ),
    ]


class Coefficients(Part, frozen=True, kw_only=True):
    """Coefficients are the derivatives of the loss by the current log-prob of each token."""

    norm: Annotated[
        Number,
        Doc(
            "Size of the coefficients as one vector over all tokens.",
            unit=_PER,
            formula="sqrt(sum c^2); " + _C,
            healthy="no bound; compare presets with each other",
            example=_PULLED + "0.4123",
            see=("coefficients", "grad_norm"),
            heading="|c|",
        ),
    ]
    sum: Annotated[
        Number,
        Doc(
            "Sum of the coefficients: which way log-probs are pulled on the whole.",
            unit=_PER,
            formula="sum c; " + _C,
            direction=_PULL,
            healthy="no bound; near 0 where advantages are centred and nothing is clipped or "
            "rejected",
            example=_PULLED + "-0.1",
            see=("coefficients",),
        ),
    ]
    abs_sum: Annotated[
        Number,
        Doc(
            "Sum of the sizes of the coefficients.",
            unit=_PER,
            formula="sum |c|; " + _C,
            healthy="no bound; compare presets with each other",
            example=_PULLED + "0.9",
            see=("coefficients", "shares"),
        ),
    ]
    nonzero: Annotated[
        int,
        Doc(
            "Number of tokens that are pulled at all: neither rejected, nor clipped flat, nor of "
            "advantage 0, nor of weight 0.",
            unit="tokens",
            formula="count of c != 0; " + _C,
            healthy="no bound; of all unmasked tokens",
            example=_PULLED + "5",
            see=("coefficients", "kept_tokens"),
        ),
    ]
    largest: Annotated[
        Number,
        Doc(
            "The largest coefficient by size.",
            unit=_PER,
            formula="max |c|; " + _C,
            healthy="no bound; see top_tokens",
            example=_PULLED + "0.2",
            see=("coefficients", "top_tokens"),
        ),
    ]


class Shares(Part, frozen=True, kw_only=True):
    """Shares say who gets the gradient: each is a part of the summed sizes of the coefficients."""

    by_length: Annotated[
        list[Number],
        Doc(
            "Share of sum |c| that each quarter of the sequences by length gets, the shortest "
            "first.",
            unit="share",
            formula="sum |c| of the quarter / sum |c|; " + _C,
            healthy="no bound; beside tokens_by_length it shows what the aggregation prefers",
            example=_PULLED + "0.4444, 0, 0, 0.5556",
            see=("tokens_by_length", "token-mean", "seq-mean-token-mean"),
            entries=4,
        ),
    ]
    tokens_by_length: Annotated[
        list[Number],
        Doc(
            "Share of sum |c| that each quarter of the sequences by length would get by its "
            "tokens alone.",
            unit="share",
            formula="tokens of the quarter / all tokens",
            healthy="no bound; what by_length is to be compared with",
            example=_PULLED + "0.4, 0, 0, 0.6",
            see=("by_length",),
            entries=4,
        ),
    ]
    positive_advantage: Annotated[
        Number,
        Doc(
            "Share of sum |c| that tokens of positive advantage get.",
            unit="share",
            formula="sum |c| where A > 0 / sum |c|; " + _C,
            healthy="no bound; the clip takes ratios above it from A > 0, below it from A < 0",
            example=_PULLED + "0.5556",
            see=("negative_advantage", "actor/pg_clipfrac"),
        ),
    ]
    negative_advantage: Annotated[
        Number,
        Doc(
            "Share of sum |c| that tokens of negative advantage get.",
            unit="share",
            formula="sum |c| where A < 0 / sum |c|; " + _C,
            healthy="no bound; see positive_advantage",
            example=_PULLED + "0.4444",
            see=("positive_advantage", "actor/pg_clipfrac_lower"),
        ),
    ]
    top_tokens: Annotated[
        Number,
        Doc(
            "Share of sum |c| that the 1% of tokens with the largest coefficients get, one token "
            "at least.",
            unit="share",
            formula="sum of the largest 1% of |c| / sum |c|; " + _C,
            healthy="0.01 where all get the same; no bound",
            example=_PULLED + "0.2222",
            see=("largest", "top_sequences"),
        ),
    ]
    top_sequences: Annotated[
        Number,
        Doc(
            "Share of sum |c| that the 1% of sequences with the most get, one sequence at least.",
            unit="share",
            formula="sum |c| of the largest 1% of sequences / sum |c|; " + _C,
            healthy="near top_sequences_uncorrected; for bounds see health.top_sequences",
            example=_PULLED + "0.5556",
            see=("health.top_sequences", "sequences"),
            heading="top 1%",
        ),
    ]
    sequences: Annotated[
        list[Number],
        Doc(
            "Share of sum |c| that each sequence gets, the largest first, at most 100 of them.",
            unit="share",
            formula="sum |c| of the sequence / sum |c|; " + _C,
            example=_PULLED + "0.5556, 0.4444",
            see=("top_sequences",),
        ),
    ]
    histogram: Annotated[
        Histogram,
        Doc(
            "Tokens by the size of their coefficient: `edges` and `counts`; those of 0 are left "
            "out.",
            unit="tokens",
            formula="counts of log10 |c|; " + _C,
            see=("coefficients", "edges", "counts"),
        ),
    ]
    top_sequences_uncorrected: Annotated[
        float | None,
        Doc(
            "What top_sequences is where every ratio and weight is 1 and nothing is rejected: the "
            "part that lengths, advantages and the aggregation alone give to the largest 1% of the "
            "sequences. Null where every advantage is 0, and in older documents.",
            unit="share",
            formula="sum |c| of the largest 1% of sequences / sum |c|, c of the loss at ratio 1",
            healthy="no bound; what top_sequences is compared with",
            example=_PULLED + "0.6",
            see=("top_sequences", "health.top_sequences"),
            sparse=True,
        ),
    ] = None


class Denominator(Part, frozen=True, kw_only=True):
    """A denominator says what the loss is a mean over, and what the other counts are."""

    basis: Annotated[
        str,
        Doc(
            "Which denominator of the loss was used: kept, all or constant.",
            see=("divisor", "denominator.kept", "all", "constant"),
            one_of=("kept", "all", "constant"),
        ),
    ]
    counted: Annotated[
        str,
        Doc(
            "What the loss is a mean over, by its aggregation: tokens, sequences, or nothing for a "
            "sum.",
            see=("divisor", "aggregation"),
        ),
    ]
    divisor: Annotated[
        Number,
        Doc(
            "What the sum of losses is divided by in this replay, before any constant length: all "
            "coefficients scale with 1 / divisor.",
            unit="tokens or sequences, as `counted` says",
            formula="the number that `basis` says, of what `counted` says",
            healthy="no bound; above kept_count rejection lowers the learning rate",
            example="5 tokens of which 3 are kept: 3, or 5 with --denominator all",
            see=("denominator", "basis", "counted", "rejected-in-denominator"),
        ),
    ]
    kept_count: Annotated[
        Number,
        Doc(
            "What the loss would be divided by with the denominator kept: how many tokens, or "
            "sequences, stay in the loss.",
            unit="tokens or sequences, as `counted` says",
            see=("denominator",),
        ),
    ]
    full_count: Annotated[
        Number,
        Doc(
            "What the loss would be divided by with the denominator all: how many tokens, or "
            "sequences, there are, rejected ones too.",
            unit="tokens or sequences, as `counted` says",
            see=("denominator",),
        ),
    ]


class Rule(Part, frozen=True, kw_only=True):
    """A rule of health gives its number, its level and whose rule it is."""

    name: Annotated[
        str, Doc("Name of a rule of health, which `rcdiag explain health.NAME` answers.")
    ]
    value: Annotated[
        Number | None, Doc("The number that a rule of health looks at; null where it has none.")
    ]
    level: Annotated[
        str,
        Doc(
            "What a rule of health makes of its number: ok, warning or error.",
            see=("ok", "warning", "error"),
            one_of=("ok", "warning", "error"),
        ),
    ]
    message: Annotated[
        str,
        Doc(
            "What a rule of health says about the update, in words.",
            heading="what it found",
        ),
    ]
    source: Annotated[str, Doc("Whose rule a rule of health is.")]


class Health(Part, frozen=True, kw_only=True):
    """Health says whether a step is safe: the worst of named rules decides."""

    verdict: Annotated[
        str,
        Doc(
            "The worst level of the rules of health: ok, warning or error; cannot judge where what "
            "would decide is not known.",
            see=("health", "health.cannot judge"),
            one_of=("ok", "warning", "error", "cannot judge"),
        ),
    ]
    rules: Annotated[
        list[Rule],
        Doc(
            "The rules of health, each with its number, level, source, and what it says.",
            see=("health", "health.kept_sequences", "health.ess_seq", "mismatch_k3"),
            heading="rule",
        ),
    ]
    not_judged: Annotated[
        list[str],
        Doc(
            "What of an update's health could not be judged, and what that needs.",
            example=f"direction of the gradient: give {setting('model')}",
            see=("health", "health.cannot judge"),
        ),
    ]


class AfterStep(Part, frozen=True, kw_only=True):
    """These numbers describe the policy after the step, on the same batch."""

    learning_rate: Annotated[Number, Doc("Learning rate of the step.", see=("step_norm",))]
    step_norm: Annotated[
        Number,
        Doc(
            "How far the weights moved: the norm of their change, in quadrature over the optimizer "
            "steps.",
            unit="weight",
            formula="sqrt(sum over steps of |change of the weights|^2)",
            healthy="no bound",
            see=("learning_rate", "grad_norm"),
        ),
    ]
    kl_old_new: Annotated[
        MetricValue,
        Doc(
            "How far the step moves the policy, by k3.",
            unit=_NATS,
            formula="E[ratio - 1 - log_ratio] " + _TOKENS + ", ratio = new / old",
            direction="KL(old || new)",
            healthy="no ideal; for bounds see health.kl_old_new",
            example=_STEPPED + "0.5199",
            see=("health.kl_old_new", "k3", "kl_rollout_new"),
            heading="KL step",
        ),
    ]
    kl_rollout_new: Annotated[
        MetricValue,
        Doc(
            "How far the policy is from its sampler after the step, by k3: mismatch and step "
            "together. Decoupled updates do not see it.",
            unit=_NATS,
            formula="E[ratio - 1 - log_ratio] " + _TOKENS + ", ratio = new / rollout",
            direction="KL(rollout || new)",
            healthy="ideal: as small as before the step; see mismatch_growth",
            example=_STEPPED + "0.5755",
            see=("kl_old_new", "mismatch_growth", "updates-part"),
        ),
    ]
    log_prob_change_positive: Annotated[
        Number | None,
        Doc(
            "Mean change of log-probs of tokens with positive advantage; null without any.",
            unit="nats",
            formula="E[log p_new - log p_old] where A > 0",
            direction="above 0: the step makes them more likely, as it should",
            healthy="above 0; not judged",
            example=_STEPPED + "0.5",
            see=("log_prob_change_negative",),
        ),
    ]
    log_prob_change_negative: Annotated[
        Number | None,
        Doc(
            "Mean change of log-probs of tokens with negative advantage; null without any.",
            unit="nats",
            formula="E[log p_new - log p_old] where A < 0",
            direction="below 0: the step makes them less likely, as it should",
            healthy="below 0; not judged",
            example=_STEPPED + "-0.85",
            see=("log_prob_change_positive",),
        ),
    ]
    entropy_before: Annotated[
        Number | None,
        Doc(
            "Mean entropy of the next-token distribution before the step.",
            unit=_NATS,
            formula=_ENTROPY,
            healthy="no bound; compare with entropy_after",
            example="two tokens equally likely: 0.693",
            see=("entropy_after",),
        ),
    ]
    entropy_after: Annotated[
        Number | None,
        Doc(
            "Mean entropy of the next-token distribution after the step: a fall from step to step "
            "is a policy that stops exploring.",
            unit=_NATS,
            formula=_ENTROPY,
            healthy="no bound; compare with entropy_before",
            see=("entropy_before",),
        ),
    ]
    perplexity_before: Annotated[
        Number,
        Doc(
            "Perplexity of the recorded tokens under the policy before the step.",
            unit="none",
            formula="exp(-E[log p_old]) over tokens",
            healthy="no bound",
            example="log-probs -1 and -0.5: exp(0.75) = 2.12",
            see=("perplexity_after",),
        ),
    ]
    perplexity_after: Annotated[
        Number,
        Doc(
            "Perplexity of the recorded tokens under the policy after the step.",
            unit="none",
            formula="exp(-E[log p_new]) over tokens",
            direction="above perplexity_before where the step makes the recorded tokens less "
            "likely",
            healthy="no bound",
            example="log-probs -0.9 and -0.5: exp(0.7) = 2.01",
            see=("perplexity_before",),
        ),
    ]
    beyond_clip: Annotated[
        Number,
        Doc(
            "Share of tokens that the step moves beyond the clip range: a second step on the batch "
            "would find them clipped.",
            unit="share",
            formula="E[1(new / old outside [1 - clip_low, 1 + clip_high])]",
            healthy="ideal 0; not judged",
            example=_STEPPED + "0.6",
            see=("clip_low", "clip_high", "actor/pg_clipfrac"),
        ),
    ]
    mismatch_growth: Annotated[
        Number | None,
        Doc(
            "How many times as far from its sampler the policy is after the step as before; null "
            "where it was not apart.",
            unit="none",
            formula="k3(rollout, new) / k3(rollout, old)",
            healthy="ideal 1; for bounds see health.mismatch_growth",
            example=_STEPPED + "111.3",
            see=("health.mismatch_growth", "kl_rollout_new"),
        ),
    ]
    reward_before: Annotated[
        MetricValue | None,
        Doc(
            f"Mean reward of fresh samples before the step; null without {setting('evaluate')}.",
            unit="reward",
            formula="E[reward] over samples, interval by prompt",
            healthy="compare with reward_after, and their intervals",
            see=("reward_after",),
        ),
    ]
    reward_after: Annotated[
        MetricValue | None,
        Doc(
            "Mean reward of fresh samples after the step, drawn with the seed of those before it; "
            f"null without {setting('evaluate')}.",
            unit="reward",
            formula="E[reward] over samples, interval by prompt",
            healthy="above reward_before; not judged",
            see=("reward_before",),
        ),
    ]


class SplitReport(Part, frozen=True, kw_only=True):
    """A split report compares one step on the whole batch with several on its mini-batches."""

    minibatches: Annotated[
        int,
        Doc(
            "Number of mini-batches that the batch was cut into.",
            see=("split",),
            heading="mini-batches",
        ),
    ]
    kl_between: Annotated[
        MetricValue,
        Doc(
            "How far apart one step and several lead, by k3.",
            unit=_NATS,
            formula="E[ratio - 1 - log_ratio] " + _TOKENS + ", ratio = several / one",
            direction="KL(one step || several)",
            healthy="ideal 0; tells which mode stays put when a batch is cut into several; not "
            "judged",
            example=_SPLIT,
            see=("kl_whole", "kl_split"),
            heading="between",
        ),
    ]
    kl_whole: Annotated[
        MetricValue,
        Doc(
            "How far one step on the whole batch leads, by k3.",
            unit=_NATS,
            formula="E[ratio - 1 - log_ratio] " + _TOKENS + ", ratio = one step / old",
            direction="KL(old || one step)",
            healthy="as kl_old_new",
            example=_SPLIT,
            see=("kl_split", "kl_old_new"),
            heading="old to one",
        ),
    ]
    kl_split: Annotated[
        MetricValue,
        Doc(
            "How far the several steps lead, by k3.",
            unit=_NATS,
            formula="E[ratio - 1 - log_ratio] " + _TOKENS + ", ratio = several / old",
            direction="KL(old || several)",
            healthy="as kl_old_new",
            example=_SPLIT,
            see=("kl_whole", "kl_old_new"),
            heading="old to several",
        ),
    ]


class PresetReplay(Part, frozen=True, kw_only=True):
    """A preset replay describes the update by one preset on one batch."""

    mode: Annotated[
        str,
        Doc(
            "Where the ratios of an update come from: decoupled, bypass or naive.",
            see=("decoupled", "bypass", "naive"),
            one_of=("decoupled", "bypass", "naive"),
        ),
    ]
    loss_type: Annotated[
        str,
        Doc(
            "The policy loss of an update; `ppo_clip` stands for the loss `vanilla`, in any mode.",
            see=("vanilla", "ppo_clip"),
        ),
    ]
    config: Config
    loss: Annotated[
        Number | None,
        Doc(
            "The loss of a preset as its trainer logs it; null where there is none.",
            unit="loss",
            formula="aggregation of weight x loss of the token",
            direction="minimised; its size says nothing, its gradient does",
            healthy="no bound",
            trainers={"verl": "actor/pg_loss", "slime": "pg_loss"},
            see=("undefined", "vanilla", "aggregation", "coefficients"),
        ),
    ]
    undefined: Annotated[
        str | None,
        Doc(
            "Why a preset has no loss; null where it has one.",
            healthy="null",
            trainers={
                "verl-0.6.0 to verl-0.6.1": "the loss is 0, from 1e-8 in the denominator; in 0.6.0 "
                "NaN under seq-mean-token-mean as soon as one row has no kept token",
                "verl-20251203 to verl-0.9": "NaN where nothing is kept",
                "slime": "never for rejection: rejected tokens are counted, and the loss is 0",
            },
            see=("loss-undefined", "everything-rejected", "loss_defined"),
        ),
    ]
    metrics: LoggedMetrics
    coefficients: Annotated[
        Coefficients,
        Doc(
            "The pull of the loss on every token's log-prob, rejection, weights, clip and "
            "denominator all in it; the gradient is their sum, each times the token's own "
            "gradient.",
            unit=_PER,
            formula=_C + ", exact",
            direction=_PULL,
            see=("coefficients.norm", "sum", "abs_sum", "nonzero", "largest", "shares"),
        ),
    ]
    shares: Annotated[
        Shares | None,
        Doc(
            "Who gets the gradient: shares of the summed sizes of the coefficients; null where all "
            "are 0.",
            unit="share",
            formula="sum |c| of a part / sum |c|; " + _C,
            see=("by_length", "positive_advantage", "top_tokens", "top_sequences"),
        ),
    ]
    denominator: Annotated[
        Denominator,
        Doc(
            "What the loss is divided by: `basis` says which of kept, all and constant was used, "
            "`divisor` gives that number, `kept_count` and `full_count` what others would be.",
            unit="tokens or sequences, as `counted` says",
            healthy="divisor equal to kept_count: rejection does not lower the learning rate",
            trainers={
                "verl": "set by the path through the trainer and by no setting",
                "slime": "all",
            },
            example="rcdiag replay rollouts.parquet --denominator all",
            see=("basis", "counted", "divisor", "denominator.kept", "all", "constant"),
        ),
    ]
    kept_tokens: KeptTokens
    kept_sequences: KeptSequences
    gradient: Annotated[
        GradientReport | None,
        Doc(
            "The gradient of a preset's loss by all trained parameters, against the reference; "
            f"null without {setting('model')} and where coefficients are not finite.",
            unit=_UNIT,
            formula="sum over tokens of c d log p / d parameters, c its coefficient",
            see=("cosine", "norm_ratio", "squared_bias", "relative_variance", "reference"),
            needs=_MODEL,
        ),
    ]
    after_step: Annotated[
        AfterStep | None,
        Doc(
            "The policy after the step, on the same batch; null without "
            f"{setting('model')} and where there is no step.",
            see=("kl_old_new", "kl_rollout_new", "mismatch_growth", "beyond_clip"),
            needs=_MODEL,
        ),
    ]
    split: Annotated[
        SplitReport | None,
        Doc(
            "The batch as one optimizer step and as several mini-batches, from the same start; "
            f"null without {setting('split')}.",
            see=("kl_between", "kl_whole", "kl_split", "minibatches"),
            needs=_MODEL + " --split 4",
        ),
    ]
    health: Annotated[
        Health,
        Doc(
            "Whether a step was safe, by named rules; `verdict` is the worst of them.",
            see=("health.verdict", "rules", "not_judged", "unsafe-update"),
        ),
    ]
    scatter: Annotated[
        list[list[Number]],
        Doc(
            "Some tokens that are pulled at, at most 300 by a hash: what the figure draws.",
            unit="nats; advantage; loss per nat",
            formula="log-prob under the current policy, advantage, coefficient",
            see=("coefficients",),
        ),
    ] = field(default_factory=list)
    weight_histogram: Annotated[
        Histogram | None,
        Doc(
            "Kept tokens by the size of their weight in the loss, as log10: `edges` and `counts`; "
            "null without weights.",
            unit="tokens",
            formula="counts of log10 w; 0 in the lowest bin",
            see=("weights", "edges", "counts"),
        ),
    ] = None


class Factor(Part, frozen=True, kw_only=True):
    """A factor is one of the two factors of the ratio current / rollout, or their product."""

    behavior: Behavior
    target: Target
    k3_kl: Annotated[
        MetricValue,
        Doc(
            "Distance of the two policies of a factor, by k3.",
            unit=_NATS,
            formula="E[ratio - 1 - log_ratio] over tokens",
            direction="KL(behavior || target)",
            healthy="ideal 0; for bounds see mismatch_k3 and staleness_k3",
            see=("k3", "mismatch_k3", "staleness_k3"),
            heading="KL, nats per token",
        ),
    ]
    ess_seq: Annotated[
        MetricValue,
        Doc(
            "Effective sample size of sequences by the raw ratios of a factor.",
            unit="fraction",
            formula="(sum w)^2 / (n sum w^2) over sequences, w the product of ratios",
            healthy="ideal 1",
            see=("ESS", "uncorrected_ess"),
            heading="ESS seq",
        ),
    ]
    log_ratio_abs_max: Annotated[
        Number | None,
        Doc(
            "Largest log-ratio of a factor by size.",
            unit="nats",
            formula="max |log_ratio| over tokens",
        ),
    ]
    log_ratio_histogram: Annotated[
        Histogram,
        Doc(
            "Tokens by the log-ratio of a factor: `edges` and `counts`.",
            unit="tokens; edges in nats",
            see=("mismatch", "staleness", "edges", "counts"),
        ),
    ]


Presets = Annotated[
    dict[str, PresetReplay],
    Doc(
        "The update by each preset of the trainer, and `naive`: without any.",
        see=("naive", "mode", "coefficients", "health"),
        heading="preset",
    ),
]


class ReplayStep(Part, frozen=True, kw_only=True):
    """A replay step is one training step of a replay over several."""

    step: Step
    presets: Presets
    num_sequences: NumSequences
    num_tokens: NumTokens


class PairedDifference(Part, frozen=True, kw_only=True):
    """A paired difference is that of two presets on the same groups, the first less the other.

    What both share drops out. Intervals are 95% intervals: the same group is left out of both, and
    weights and advantages stay those of the whole batch.
    """

    loss: Annotated[
        MetricValue | None,
        Doc("Difference of the losses; null where one has none.", unit=_UNIT, see=("loss",)),
    ]
    grad_norm: Annotated[
        MetricValue | None,
        Doc(
            "Difference of the norms of the gradients; null without a model.",
            unit=_UNIT,
            see=("grad_norm",),
        ),
    ] = None
    kl_rollout_new: Annotated[
        MetricValue | None,
        Doc(
            "Difference of the distances from the sampler after the step, by k3; null without a "
            "model.",
            unit=_NATS,
            see=("kl_rollout_new",),
        ),
    ] = None


# Levels in the order in which a reader of a summary wants to see them.
UPDATE_LEVELS = ("ok", "note", "warning", "error", "cannot judge")


class ReplayResult(Shown, frozen=True, kw_only=True):
    """The result of `rcdiag replay` describes updates on one training step, or on several."""

    kind: KindName = "replay"
    format_version: FormatVersion = FORMAT_VERSION
    provenance: ProvenanceOfResult
    trainer: TrainerName
    rollout: Annotated[
        str, Doc("Name of the policy whose log-probs stand for the sampler's in an update.")
    ]
    old: Annotated[
        str,
        Doc(
            "Name of the policy whose log-probs stand for the trainer's before the update, or "
            "`computed` where the model computed them.",
        ),
    ]
    current: Annotated[
        str,
        Doc(
            "Name of the policy whose log-probs stand for those of the policy that is updated, or "
            "`computed` where the model computed them.",
        ),
    ]
    policy_loss: Annotated[
        str, Doc("Name of the policy loss of decoupled mode.", example="--loss gspo")
    ]
    aggregation: Annotated[
        str,
        Doc(
            "How the losses of tokens become one number; gspo and sapo have one of their own in "
            "most generations.",
            trainers={"verl": "loss_agg_mode", "slime": "--calculate-per-token-loss"},
            example="rcdiag replay rollouts.parquet --aggregation seq-mean-token-mean",
            see=("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "denominator"),
        ),
    ]
    advantage: Annotated[
        str,
        Doc(
            "Where the advantages come from: the column of the table, or rewards and groups.",
            trainers={"verl": "adv_estimator", "slime": "--advantage-estimator"},
            example="rcdiag replay rollouts.parquet --advantage grpo",
            see=("column", "grpo", "rloo", "reinforce++"),
        ),
    ]
    clip_low: Annotated[
        Number, Doc("How far below 1 the PPO ratio goes before the clip acts.", unit="ratio")
    ]
    clip_high: Annotated[
        Number, Doc("How far above 1 the PPO ratio goes before the clip acts.", unit="ratio")
    ]
    step: Step
    num_sequences: NumSequences
    num_tokens: NumTokens
    num_groups: Annotated[
        int,
        Doc("Number of prompt groups of the batch.", unit="groups", see=("few-clusters",)),
    ]
    empty_sequences: EmptySequences
    factors: Annotated[
        dict[str, Factor],
        Doc(
            "The factors of the ratio current / rollout, always apart: mismatch, staleness, and "
            "their product.",
            see=("mismatch", "staleness", "product"),
            heading="factor",
        ),
    ]
    presets: Presets
    paired: Annotated[
        dict[str, dict[str, PairedDifference]],
        Doc(
            "Differences of every two presets, by the name of the one and of the other, which is "
            "taken from it; of presets that are equal in everything one alone is named.",
            see=("loss", "grad_norm", "kl_rollout_new"),
            added=True,
        ),
    ] = field(default_factory=dict)
    model: Annotated[
        dict[str, Anything] | None,
        Doc(
            "How the step was computed: the checkpoint and all that was set; null without a model.",
            see=("dtype", "reference", "optimizer", "minibatches"),
            needs=_MODEL,
            keys=UpdateModel,
        ),
    ] = None
    steps: Annotated[
        list[ReplayStep],
        Doc(
            f"The update of every training step of a replay with {setting('steps')}, in which "
            "every preset goes on with a copy of its own.",
            example="rcdiag replay rollouts.parquet --model CHECKPOINT --steps 3",
            see=("step", "updates-part"),
        ),
    ] = field(default_factory=list)
    findings: Findings = field(default_factory=list)
    diagnosis: DiagnosisOfTable = None

    def _summary(self) -> Summary:
        """Summarise the presets with their health, those with a safe update first."""
        rows = [
            (
                name,
                number(replay.loss),
                f"{replay.kept_tokens / max(self.num_tokens, 1):.1%}",
                number(replay.coefficients.norm),
                replay.health.verdict,
            )
            for name, replay in self.presets.items()
        ]
        rows.sort(key=lambda row: UPDATE_LEVELS.index(row[-1]))
        step = "" if self.step is None else f"step {self.step}, "
        about = f"{self.trainer}, {self.policy_loss} loss, {step}{size(self)}"
        return Summary(
            about, ("preset", "loss", "kept", "|coefficients|", "health"), rows, "presets"
        )
