"""Parts of a result of `rcdiag replay`. Source: reference/verl.md 3. To add one: an entry here."""

from __future__ import annotations

from rcdiag.glossary.entry import Entry, by_hand, said
from rcdiag.glossary.generations import SLIME, VERL, label

_JSON = "rcdiag replay rollouts.parquet --json | jq"
_CHOSEN = "rcdiag replay rollouts.parquet"

FIELDS: dict[str, Entry] = {
    "mode": said(
        what="Where the ratios of an update come from: decoupled, bypass or naive.",
        example=f"{_JSON} '.presets[].mode'",
        see=("decoupled", "bypass", "naive"),
    ),
    "loss": said(
        what="Of a preset: the loss as its trainer logs it, null where there is none. Of the whole "
        "result: the name of the policy loss of decoupled mode.",
        formula="aggregation of weight x loss of the token",
        direction="minimised; its size says nothing, its gradient does",
        units="loss",
        healthy="no bound",
        generations={label(VERL): "actor/pg_loss", label(SLIME): "pg_loss"},
        example=f"{_CHOSEN} --loss gspo --json | jq '.loss, .presets.naive.loss'",
        see=("undefined", "vanilla", "aggregation", "coefficients"),
    ),
    "undefined": said(
        what="Why there is no loss; null where there is one.",
        healthy="null",
        generations={
            label(VERL[:3]): "the loss is 0, from 1e-8 in the denominator; in 0.6.0 NaN under "
            "seq-mean-token-mean as soon as one row has no kept token",
            label(VERL[3:]): "NaN where nothing is kept",
            label(SLIME): "never for rejection: rejected tokens are counted, and the loss is 0",
        },
        example=f"{_JSON} '.presets[].undefined'",
        see=("loss-undefined", "everything-rejected", "loss_defined"),
    ),
    "aggregation": said(
        what="How the losses of tokens become one number; gspo and sapo have one of their own in "
        "most generations.",
        generations={
            label(VERL): "loss_agg_mode",
            label(SLIME): "--calculate-per-token-loss",
        },
        example=f"{_CHOSEN} --aggregation seq-mean-token-mean",
        see=("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "denominator"),
    ),
    "denominator": said(
        what="What the loss is divided by: `which` of kept, all and constant was used, what that "
        "is in numbers, and what `kept` and `all` would be.",
        units="tokens or sequences, as `unit` says",
        healthy="used equal to kept: rejection does not lower the learning rate",
        generations={
            label(VERL): "set by the path through the trainer and by no setting (verl.md 3)",
            label(SLIME): "all",
        },
        example=f"{_CHOSEN} --denominator all",
        see=("which", "unit", "used", "denominator.kept", "all", "constant"),
    ),
    "advantage": said(
        what="Where the advantages come from: the column of the table, or rewards and groups.",
        generations={label(VERL): "adv_estimator", label(SLIME): "--advantage-estimator"},
        example=f"{_CHOSEN} --advantage grpo",
        see=("column", "grpo", "rloo", "reinforce++"),
    ),
    "factors": said(
        what="The factors of the ratio current / rollout, always apart: mismatch and staleness.",
        example=f"{_JSON} .factors",
        see=("mismatch", "staleness", "product"),
    ),
    "presets": said(
        what="The update by each preset of the trainer, and `naive`: without any.",
        example=f"{_JSON} '.presets | keys'",
        see=("naive", "mode", "coefficients", "health"),
    ),
    "preset.weights": said(
        what="Kept tokens by the size of their weight in the loss, as log10: `edges` and `counts`; "
        "null without weights.",
        formula="counts of log10 w; 0 in the lowest bin",
        units="tokens",
        example=f"{_JSON} '.presets[].weights.counts'",
        see=("weights", "edges", "counts"),
    ),
    "log_ratio_histogram": said(
        what="Tokens by the log-ratio of a factor: `edges` and `counts`.",
        units="tokens; edges in nats",
        example=f"{_JSON} .factors.mismatch.log_ratio_histogram.counts",
        see=("mismatch", "staleness", "edges", "counts"),
    ),
    "health": said(
        what="Whether a step was safe, by named rules; `verdict` is the worst of them.",
        example=f"{_JSON} '.presets[].health.verdict'",
        see=("verdict", "rules", "missing", "unsafe-update"),
    ),
    "rules": said(
        what="The rules of health, each with its number, level, source, and what it says.",
        example=f"{_JSON} '.presets.naive.health.rules[].name'",
        see=("health", "health.kept_sequences", "health.ess_seq", "mismatch_k3"),
    ),
    "missing": said(
        what="Of health: what could not be judged, and what it needs. Of a comparison of tables: "
        "rows that one of them lacks.",
        example="direction of the gradient: give --model",
        see=("health", "health.cannot judge"),
    ),
    "health.cannot judge": said(
        what="Verdict where no rule is broken and a number that decides is not there: never ok "
        "then.",
        example=f"{_JSON} '.presets[].health.missing'",
        see=("health", "missing", "verdict"),
    ),
}

KIND = by_hand("part of a replay", "Parts of a result of `rcdiag replay`", FIELDS)
