"""The result of `rcdiag replay`: the step that each preset takes, and its health."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from rcdiag.errors import setting
from rcdiag.formats import number
from rcdiag.results.base import (
    LEVELS,
    Behavior,
    Config,
    EmptySequences,
    Histogram,
    KeptSequences,
    KeptTokens,
    LoggedMetrics,
    MetricValue,
    NumSequences,
    NumTokens,
    Step,
    Target,
    TrainerName,
)
from rcdiag.results.coefficients import (
    COEFFICIENT,
    COEFFICIENT_SIGN,
    PER_NAT,
    Coefficients,
    Denominator,
    Shares,
)
from rcdiag.results.doc import Anything, Doc, Number
from rcdiag.results.model_step import (
    PER_TOKEN,
    PER_WEIGHT,
    WITH_MODEL,
    AfterStep,
    GradientReport,
    SplitReport,
    UpdateModel,
)
from rcdiag.results.parts import Part
from rcdiag.results.show import KindName, Measured, Summary


class Rule(Part, frozen=True, kw_only=True):
    """A rule of health, with its number, its level and its source."""

    name: Annotated[
        str, Doc("Name of a rule of health, which `rcdiag explain health.NAME` answers.")
    ]
    value: Annotated[
        Number | None, Doc("The number that a rule of health judges; null if it is missing.")
    ]
    level: Annotated[
        str,
        Doc(
            "What a rule of health makes of its number: ok, warning, error, or unknown where it "
            "has none or the data cannot tell.",
            see=LEVELS,
            one_of=LEVELS,
        ),
    ]
    message: Annotated[
        str,
        Doc(
            "What a rule of health says about the update, in a sentence.",
            heading="what it found",
        ),
    ]
    source: Annotated[str, Doc("The source of a rule of health.")]


class Health(Part, frozen=True, kw_only=True):
    """Health says whether a step is safe: the worst of its rules decides."""

    verdict: Annotated[
        str,
        Doc(
            "The worst level of the rules of health: ok, warning or error; cannot judge if a "
            "number that decides is unknown.",
            see=("health", "health.cannot judge"),
            one_of=("ok", "warning", "error", "cannot judge"),
        ),
    ]
    rules: Annotated[
        list[Rule],
        Doc(
            "The rules of health, each with its number, level, source and message.",
            see=("health", "kept_share", "ess_seq_applied", "mismatch_k3"),
            heading="rule",
        ),
    ]
    not_judged: Annotated[
        list[str],
        Doc(
            "What could not be judged of an update's health, and the option that each needs.",
            example=f"direction of the gradient: give {setting('model')}",
            see=("health", "health.cannot judge"),
        ),
    ]


class PresetReplay(Part, frozen=True, kw_only=True):
    """A preset replay describes the update by one preset on one batch."""

    mode: Annotated[
        str,
        Doc(
            "Which policies the ratios of an update are between: decoupled, bypass or naive.",
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
            "The loss of a preset as its trainer logs it; null if it has none.",
            unit="loss",
            formula="aggregation of weight x loss of the token",
            direction="minimised; only its gradient matters, not its value",
            healthy="no bound",
            trainers={"verl": "actor/pg_loss", "slime": "pg_loss"},
            see=("undefined", "vanilla", "aggregation", "coefficients"),
        ),
    ]
    undefined: Annotated[
        str | None,
        Doc(
            "Why a preset has no loss; null if it has one.",
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
            "Derivative of the loss by every token's current log-prob, which contains rejection, "
            "weights, clip and denominator; the gradient is the sum over tokens of coefficient "
            "times the gradient of the log-prob.",
            unit=PER_NAT,
            formula=COEFFICIENT + ", exact",
            direction=COEFFICIENT_SIGN,
            see=("coefficients.norm", "sum", "abs_sum", "nonzero", "largest", "shares"),
        ),
    ]
    shares: Annotated[
        Shares | None,
        Doc(
            "Which tokens the gradient comes from: shares of sum |c|; null if all coefficients are "
            "0.",
            unit="share",
            formula="sum |c| of a part / sum |c|; " + COEFFICIENT,
            see=("by_length", "positive_advantage", "top_tokens", "top_sequences"),
        ),
    ]
    denominator: Annotated[
        Denominator,
        Doc(
            "What the loss is divided by: `basis` says which of kept, all and constant was used, "
            "`divisor` is that number, `kept_count` and `full_count` are the alternatives.",
            unit="tokens or sequences, as `counted` says",
            healthy="divisor equal to kept_count: rejection does not scale the gradient down",
            trainers={
                "verl": "no setting: it depends on the code path in the trainer",
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
            "The gradient of a preset's loss by all trained parameters, compared with the "
            f"reference; null without {setting('model')} and if coefficients are not finite.",
            unit=PER_WEIGHT,
            formula="sum over tokens of c d log p / d parameters, c its coefficient",
            see=("cosine", "norm_ratio", "squared_bias", "relative_variance", "reference"),
            needs=WITH_MODEL,
        ),
    ]
    after_step: Annotated[
        AfterStep | None,
        Doc(
            "The policy after the step, on the same batch; null without "
            f"{setting('model')} and if there is no step.",
            see=("kl_old_new", "kl_rollout_new", "mismatch_growth", "beyond_clip"),
            needs=WITH_MODEL,
        ),
    ]
    split: Annotated[
        SplitReport | None,
        Doc(
            "One optimizer step on the whole batch against several mini-batches, from one start; "
            f"null without {setting('split')}.",
            see=("kl_between", "kl_whole", "kl_split", "minibatches"),
            needs=WITH_MODEL + " --split 4",
        ),
    ]
    health: Annotated[
        Health,
        Doc(
            "Whether a step is safe, by named rules; `verdict` is the worst level.",
            see=("health.verdict", "rules", "not_judged", "unsafe-update"),
        ),
    ]
    scatter: Annotated[
        list[list[Number]],
        Doc(
            "Tokens with a non-zero coefficient that the figure draws, at most 300, chosen by a "
            "hash.",
            unit="nats; advantage; loss per nat",
            formula="log-prob under the current policy, advantage, coefficient",
            see=("coefficients",),
        ),
    ] = field(default_factory=list)
    weight_histogram: Annotated[
        Histogram | None,
        Doc(
            "Histogram of log10 of the weights of kept tokens in the loss: `edges` and `counts`; "
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
            unit=PER_TOKEN,
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
            "Largest absolute log-ratio of a factor.",
            unit="nats",
            formula="max |log_ratio| over tokens",
        ),
    ]
    log_ratio_histogram: Annotated[
        Histogram,
        Doc(
            "Histogram of the log-ratios of a factor over tokens: `edges` and `counts`.",
            unit="tokens; edges in nats",
            see=("mismatch", "staleness", "edges", "counts"),
        ),
    ]


Presets = Annotated[
    dict[str, PresetReplay],
    Doc(
        "The update by each preset of the trainer, and `naive`, the one without correction.",
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
    """A paired difference is the first preset's number minus the second's, on the same groups.

    Noise that both share cancels. The 95% intervals are of a jackknife that leaves the same group
    out of both; weights and advantages are always those of the whole batch.
    """

    loss: Annotated[
        MetricValue | None,
        Doc("Difference of the losses; null if one has none.", unit=PER_WEIGHT, see=("loss",)),
    ]
    grad_norm: Annotated[
        MetricValue | None,
        Doc(
            "Difference of the norms of the gradients; null without a model.",
            unit=PER_WEIGHT,
            see=("grad_norm",),
        ),
    ] = None
    kl_rollout_new: Annotated[
        MetricValue | None,
        Doc(
            "Difference of the distances from the sampler after the step, by k3; null without a "
            "model.",
            unit=PER_TOKEN,
            see=("kl_rollout_new",),
        ),
    ] = None


# Levels in the order of a summary.
UPDATE_LEVELS = ("ok", "note", "warning", "error", "cannot judge")


class ReplayResult(Measured, frozen=True, kw_only=True):
    """The result of `rcdiag replay` describes updates on one training step, or on several."""

    kind: KindName = "replay"
    trainer: TrainerName
    rollout: Annotated[
        str, Doc("Name of the policy whose log-probs are taken as the sampler's in an update.")
    ]
    old: Annotated[
        str,
        Doc(
            "Name of the policy whose log-probs are taken as the trainer's before the update, or "
            "`computed` if the model computed them.",
        ),
    ]
    current: Annotated[
        str,
        Doc(
            "Name of the policy whose log-probs are taken as those of the policy that is updated, "
            "or `computed` if the model computed them.",
        ),
    ]
    policy_loss: Annotated[
        str, Doc("Name of the policy loss in decoupled mode.", example="--loss gspo")
    ]
    aggregation: Annotated[
        str,
        Doc(
            "How the losses of tokens are aggregated to one number; gspo and sapo have their own "
            "aggregation in most generations.",
            trainers={"verl": "loss_agg_mode", "slime": "--calculate-per-token-loss"},
            example="rcdiag replay rollouts.parquet --aggregation seq-mean-token-mean",
            see=("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "denominator"),
        ),
    ]
    advantage: Annotated[
        str,
        Doc(
            "The source of the advantages: the table's column, or a formula of rewards and groups.",
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
    num_groups: Annotated[
        int,
        Doc("Number of prompt groups of the batch.", unit="groups", see=("few-clusters",)),
    ]
    empty_sequences: EmptySequences
    factors: Annotated[
        dict[str, Factor],
        Doc(
            "The factors of the ratio current / rollout, kept separate: mismatch, staleness, and "
            "their product.",
            see=("mismatch", "staleness", "product"),
            heading="factor",
        ),
    ]
    presets: Presets
    paired: Annotated[
        dict[str, dict[str, PairedDifference]],
        Doc(
            "Differences of all pairs of presets: first preset -> second preset -> first minus "
            "second. Of presets that are equal in everything only one is named.",
            see=("loss", "grad_norm", "kl_rollout_new"),
            added=True,
        ),
    ] = field(default_factory=dict)
    model: Annotated[
        dict[str, Anything] | None,
        Doc(
            "How the step was computed: the checkpoint and all settings; null without a model.",
            see=("dtype", "reference", "optimizer", "minibatches"),
            needs=WITH_MODEL,
            keys=UpdateModel,
        ),
    ] = None
    steps: Annotated[
        list[ReplayStep],
        Doc(
            f"The update of every training step of a replay with {setting('steps')}, in which each "
            "preset trains its own copy of the weights.",
            example="rcdiag replay rollouts.parquet --model CHECKPOINT --steps 3",
            see=("step", "updates-part"),
        ),
    ] = field(default_factory=list)

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
        about = f"{self.trainer}, {self.policy_loss} loss, {step}{self.size}"
        return Summary(
            about, ("preset", "loss", "kept", "|coefficients|", "health"), rows, "presets"
        )
