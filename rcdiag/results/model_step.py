"""What a replay with a model measures: its gradients, and the policy after the step."""

from __future__ import annotations

from typing import Annotated, TypedDict

from rcdiag.errors import setting
from rcdiag.results.base import MetricValue
from rcdiag.results.doc import Anything, Doc, Number
from rcdiag.results.parts import Part

WITH_MODEL = "--model CHECKPOINT"
_COMMAND = f"rcdiag replay rollouts.parquet {WITH_MODEL}"
_WITH = "G the preset's gradient, R the reference's, sums over each prompt group"
_OFF = "<..> by products of different groups"
_FEW = "null below three groups, and if noise makes the estimate of a squared norm 0 or less."
PER_WEIGHT = "loss per unit of weight"
_GROUPS = "gradients of three groups (2, 0), (1, 1), (2, -1), references (0, 1), (1, 1), (1, 0): "
_TURN = "1 the same direction, 0 orthogonal, below 0 against it"
_TOKENS = "over the recorded tokens"
PER_TOKEN = "nats per token"
_STEPPED = (
    "old to new log-ratios [0.1, -0.1, 1.5], [-1.2, -0.5], rollout to old 0.1 throughout, "
    "advantages 1 and -1: "
)
_SPLIT = "log-ratio 0.1 on every token: 0.00517"
_ENTROPY = "E[-sum_v p(v) log p(v)] " + _TOKENS


class UpdateModel(TypedDict):
    """The model that takes the step, and the settings of the step."""

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
            example=f"{_COMMAND} --precision bfloat16",
            see=("checkpoint", "options"),
        ),
    ]
    options: Annotated[
        dict[str, Anything],
        Doc(
            "Options of the model beside its dtype, as for a policy that is scored.",
            example=f"{_COMMAND} --precision float32,autocast=bfloat16",
            see=("checkpoint", "dtype"),
        ),
    ]
    lora_rank: Annotated[
        int | None,
        Doc(
            "Rank of the LoRA adapters that are trained instead of the weights; null without LoRA.",
            example=f"{_COMMAND} --lora 16",
            see=("checkpoint", "norm_by_layer"),
        ),
    ]
    checkpointing: Annotated[
        bool,
        Doc(
            "Whether activations are computed again in the backward pass: less memory, more time, "
            "the same numbers.",
            example=f"{_COMMAND} --checkpointing",
            see=("checkpoint",),
        ),
    ]
    reference: Annotated[
        str,
        Doc(
            "What gradients are compared with: seq_is, fresh or none.",
            example=f"{_COMMAND} --reference seq_is",
            see=("seq_is", "fresh", "reference.none", "cosine"),
            one_of=("seq_is", "fresh", "none"),
        ),
    ]
    epochs: Annotated[
        int,
        Doc(
            "Number of passes over the batch.",
            example=f"{_COMMAND} --epochs 2",
            see=("minibatches",),
        ),
    ]
    minibatches: Annotated[
        int,
        Doc(
            "Number of optimizer steps in one pass over the batch. From the second step on, "
            "current is not old and the PPO ratio is not 1.",
            example=f"{_COMMAND} --minibatches 4; --split 4",
            see=("epochs", "split", "staleness"),
        ),
    ]
    backwards: Annotated[
        int,
        Doc(
            "Number of backward passes for all gradients together: presets with the same update "
            "share theirs.",
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
            example=f"{_COMMAND} --optimizer sgd",
            see=("adamw", "sgd", "learning_rate"),
            one_of=("adamw", "sgd"),
        ),
    ]
    learning_rate: Annotated[
        Number,
        Doc(
            "Learning rate of the step; no schedule changes it.",
            healthy="where ESS is low: times sqrt(ESS / ESS on policy) (rcdiag's proposal)",
            example=f"{_COMMAND} --lr 1e-6",
            see=("optimizer", "step_norm", "ESS"),
        ),
    ]
    max_grad_norm: Annotated[
        Number | None,
        Doc(
            "Norm to which longer gradients are scaled down; null for no gradient clipping.",
            example=f"{_COMMAND} --max-grad-norm 1",
            see=("grad_norm", "optimizer"),
        ),
    ]
    weight_decay: Annotated[
        Number,
        Doc(
            "Weight decay of the optimizer.",
            example=f"{_COMMAND} --weight-decay 0.01",
            see=("optimizer",),
        ),
    ]


class GradientReport(Part, frozen=True, kw_only=True):
    """A gradient report compares the gradient of a preset's loss with the reference gradient.

    Gradients are with respect to all trained parameters. Products of different prompt groups share
    no noise, so that they are unbiased (U-statistics, Hoeffding 1948).
    """

    grad_norm: Annotated[
        Number,
        Doc(
            "Norm of the gradient before gradient clipping.",
            unit=PER_WEIGHT,
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
            unit=PER_WEIGHT,
            formula="|G| of the part; squares add up to grad_norm^2",
            see=("grad_norm", "embedding", "layer 0", "norm_by_layer.norm", "head"),
        ),
    ]
    cosine: Annotated[
        MetricValue,
        Doc(
            "Cosine between the gradient and the reference, unbiased by noise; " + _FEW,
            unit="none",
            formula="<G, R> / sqrt(<G, G> <R, R>), " + _OFF + ", clipped to [-1, 1]; " + _WITH,
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
            "Cosine between the whole gradient and the whole reference: both share the noise of "
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
            "Norm of the whole gradient divided by that of the whole reference.",
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
            "Norm of the gradient divided by that of the reference, without the noise of either; "
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
            "Squared distance of the mean gradient from the mean reference, relative to the "
            "latter's squared norm and without their noise; null below three groups.",
            unit="none",
            formula="max(<G - R, G - R>, 0) / <R, R>, " + _OFF + "; " + _WITH,
            healthy="ideal 0; not judged; 1 is the bias of a gradient of 0",
            example=_GROUPS + "1.5",
            see=("relative_variance", "cosine"),
        ),
    ]
    relative_variance: Annotated[
        Number | None,
        Doc(
            "Noise of the gradient: trace of the covariance of its sum divided by the squared norm "
            "of its mean; null below three groups and where there is only noise.",
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
            "Squared norm of the mean gradient divided by its noise.",
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
            unit=PER_WEIGHT,
            formula="|gradient of the sequence|",
            see=("top_norm_share",),
        ),
    ]
    top_norm_share: Annotated[
        Number | None,
        Doc(
            "Share of the sum of squared norms that is from the 1% of sequences with the largest "
            "ones, at least one sequence.",
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
            "How much token weights change the gradient of the unclipped loss, relative to this "
            "gradient (after arXiv 2605.14220).",
            unit="none",
            formula="|sum over tokens of (ratio - 1) A / N d log p| / grad_norm, "
            "ratio = old / rollout",
            healthy="ideal 0; not judged",
            see=("squared_bias", "mismatch"),
        ),
    ]


class AfterStep(Part, frozen=True, kw_only=True):
    """These numbers describe the policy after the step, on the same batch."""

    learning_rate: Annotated[Number, Doc("Learning rate of the step.", see=("step_norm",))]
    step_norm: Annotated[
        Number,
        Doc(
            "Size of the change of the weights: the root of the summed squared norms of the "
            "optimizer steps.",
            unit="weight",
            formula="sqrt(sum over steps of |change of the weights|^2)",
            healthy="no bound",
            see=("learning_rate", "grad_norm"),
        ),
    ]
    kl_old_new: Annotated[
        MetricValue,
        Doc(
            "KL divergence between the policies before and after the step, by k3.",
            unit=PER_TOKEN,
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
            "KL divergence between the sampler and the policy after the step, by k3: mismatch and "
            "step together. Decoupled updates do not bound it.",
            unit=PER_TOKEN,
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
            unit=PER_TOKEN,
            formula=_ENTROPY,
            healthy="no bound; compare with entropy_after",
            example="two tokens equally likely: 0.693",
            see=("entropy_after",),
        ),
    ]
    entropy_after: Annotated[
        Number | None,
        Doc(
            "Mean entropy of the next-token distribution after the step: if it falls step after "
            "step, the policy stops exploring.",
            unit=PER_TOKEN,
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
            "would clip them.",
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
            "KL divergence from the sampler after the step divided by that before; null where it "
            "was 0 before.",
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
            "Mean reward of fresh samples after the step, drawn with the same seed as before it; "
            f"null without {setting('evaluate')}.",
            unit="reward",
            formula="E[reward] over samples, interval by prompt",
            healthy="above reward_before; not judged",
            see=("reward_before",),
        ),
    ]


class SplitReport(Part, frozen=True, kw_only=True):
    """A split report compares one step on the batch with several steps on its mini-batches."""

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
            "KL divergence between the policies after one step and after several, by k3.",
            unit=PER_TOKEN,
            formula="E[ratio - 1 - log_ratio] " + _TOKENS + ", ratio = several / one",
            direction="KL(one step || several)",
            healthy="ideal 0; small for a mode that does not depend on how a batch is split; not "
            "judged",
            example=_SPLIT,
            see=("kl_whole", "kl_split"),
            heading="between",
        ),
    ]
    kl_whole: Annotated[
        MetricValue,
        Doc(
            "KL divergence between the policies before and after one step on the whole batch, by "
            "k3.",
            unit=PER_TOKEN,
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
            "KL divergence between the policies before and after the several steps, by k3.",
            unit=PER_TOKEN,
            formula="E[ratio - 1 - log_ratio] " + _TOKENS + ", ratio = several / old",
            direction="KL(old || several)",
            healthy="as kl_old_new",
            example=_SPLIT,
            see=("kl_whole", "kl_old_new"),
            heading="old to several",
        ),
    ]
