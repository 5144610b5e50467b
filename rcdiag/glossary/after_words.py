"""The policy after the step of a replay, and one step against several.

Source: reference/theory.md 2.2 and 4.3; rcdiag/replaying/after.py.
"""

from __future__ import annotations

from dataclasses import replace

from rcdiag.glossary.entry import Entry, Kind, by_hand, said
from rcdiag.glossary.worked_replay import stepped

_JSON = "rcdiag replay rollouts.parquet --model CHECKPOINT --json | jq"
_TOKENS = "over the recorded tokens"
_NATS = "nats per token"

AFTER: dict[str, Entry] = {
    "after_step": said(
        what="The policy after the step, on the same batch; null without --model and where there "
        "is no step.",
        example=f"{_JSON} '.presets[].after_step.kl_old_new'",
        see=("kl_old_new", "kl_rollout_new", "mismatch_growth", "beyond_clip"),
    ),
    "step_norm": said(
        what="How far the weights moved: the norm of their change, in quadrature over the "
        "optimizer steps.",
        formula="sqrt(sum over steps of |change of the weights|^2)",
        units="weight",
        healthy="no bound",
        example=f"{_JSON} '.presets[].after_step.step_norm'",
        see=("learning_rate", "norm"),
    ),
    "kl_old_new": said(
        what="How far the step moves the policy, by k3.",
        formula=f"E[ratio - 1 - log_ratio] {_TOKENS}, ratio = new / old",
        direction="KL(old || new)",
        units=_NATS,
        healthy="no ideal; for bounds see health.kl_old_new",
        see=("health.kl_old_new", "k3", "kl_rollout_new"),
    ),
    "kl_rollout_new": said(
        what="How far the policy is from its sampler after the step, by k3: mismatch and step "
        "together. Decoupled updates do not see it.",
        formula=f"E[ratio - 1 - log_ratio] {_TOKENS}, ratio = new / rollout",
        direction="KL(rollout || new)",
        units=_NATS,
        healthy="ideal: as small as before the step; see mismatch_growth",
        see=("kl_old_new", "mismatch_growth", "updates-part"),
    ),
    "log_prob_change_positive": said(
        what="Mean change of log-probs of tokens with positive advantage; null without any.",
        formula="E[log p_new - log p_old] where A > 0",
        direction="above 0: the step makes them more likely, as it should",
        units="nats",
        healthy="above 0; not judged",
        see=("log_prob_change_negative",),
    ),
    "log_prob_change_negative": said(
        what="Mean change of log-probs of tokens with negative advantage; null without any.",
        formula="E[log p_new - log p_old] where A < 0",
        direction="below 0: the step makes them less likely, as it should",
        units="nats",
        healthy="below 0; not judged",
        see=("log_prob_change_positive",),
    ),
    "entropy_before": said(
        what="Mean entropy of the next-token distribution before the step.",
        formula=f"E[-sum_v p(v) log p(v)] {_TOKENS}",
        units=_NATS,
        healthy="no bound; compare with entropy_after",
        example="two tokens equally likely: 0.693",
        see=("entropy_after",),
    ),
    "entropy_after": said(
        what="The same after the step: a fall from step to step is a policy that stops exploring.",
        formula=f"E[-sum_v p(v) log p(v)] {_TOKENS}",
        units=_NATS,
        healthy="no bound; compare with entropy_before",
        example=f"{_JSON} '.presets[].after_step.entropy_after'",
        see=("entropy_before",),
    ),
    "perplexity_before": said(
        what="Perplexity of the recorded tokens under the policy before the step.",
        formula="exp(-E[log p_old]) over tokens",
        units="none",
        healthy="no bound",
        example="log-probs -1 and -0.5: exp(0.75) = 2.12",
        see=("perplexity_after",),
    ),
    "perplexity_after": said(
        what="The same after the step.",
        formula="exp(-E[log p_new]) over tokens",
        direction="above perplexity_before where the step makes the recorded tokens less likely",
        units="none",
        healthy="no bound",
        example="log-probs -0.9 and -0.5: exp(0.7) = 2.01",
        see=("perplexity_before",),
    ),
    "beyond_clip": said(
        what="Share of tokens that the step moves beyond the clip range: a second step on the "
        "batch would find them clipped.",
        formula="E[1(new / old outside [1 - clip_low, 1 + clip_high])]",
        units="share",
        healthy="ideal 0; not judged",
        see=("clip_low", "clip_high", "actor/pg_clipfrac"),
    ),
    "mismatch_growth": said(
        what="How many times as far from its sampler the policy is after the step as before; null "
        "where it was not apart.",
        formula="k3(rollout, new) / k3(rollout, old)",
        units="none",
        healthy="ideal 1; for bounds see health.mismatch_growth",
        see=("health.mismatch_growth", "kl_rollout_new"),
    ),
    "reward_before": said(
        what="Mean reward of fresh samples before the step; null without --evaluate.",
        formula="E[reward] over samples, interval by prompt",
        units="reward",
        healthy="compare with reward_after, and their intervals",
        example=f"{_JSON} '.presets[].after_step.reward_before'",
        see=("reward_after",),
    ),
    "reward_after": said(
        what="The same after the step, with the same seed.",
        formula="E[reward] over samples, interval by prompt",
        units="reward",
        healthy="above reward_before; not judged",
        example=f"{_JSON} '.presets[].after_step.reward_after'",
        see=("reward_before",),
    ),
}

_SPLIT = "log-ratio 0.1 on every token: 0.00517"
_OF_SPLIT = "tells which mode stays put when a batch is cut into several; not judged"

SPLIT: dict[str, Entry] = {
    "split": said(
        what="The batch as one optimizer step and as several mini-batches, from the same start; "
        "null without --split.",
        example=f"{_JSON} '.presets[].split.kl_between'",
        see=("kl_between", "kl_whole", "kl_split", "minibatches"),
    ),
    "kl_between": said(
        what="How far apart one step and several lead, by k3.",
        formula=f"E[ratio - 1 - log_ratio] {_TOKENS}, ratio = several / one",
        direction="KL(one step || several)",
        units=_NATS,
        healthy=f"ideal 0; {_OF_SPLIT}",
        example=_SPLIT,
        see=("kl_whole", "kl_split"),
    ),
    "kl_whole": said(
        what="How far one step on the whole batch leads, by k3.",
        formula=f"E[ratio - 1 - log_ratio] {_TOKENS}, ratio = one step / old",
        direction="KL(old || one step)",
        units=_NATS,
        healthy="as kl_old_new",
        example=_SPLIT,
        see=("kl_split", "kl_old_new"),
    ),
    "kl_split": said(
        what="How far the several steps lead, by k3.",
        formula=f"E[ratio - 1 - log_ratio] {_TOKENS}, ratio = several / old",
        direction="KL(old || several)",
        units=_NATS,
        healthy="as kl_old_new",
        example=_SPLIT,
        see=("kl_whole", "kl_old_new"),
    ),
}

_WRITTEN = by_hand(
    "number after a step", "Numbers after a step of `rcdiag replay`", {**AFTER, **SPLIT}
)


def entry(name: str) -> Entry:
    """With a worked example."""
    found = _WRITTEN.entry(name)
    return found if found.example else replace(found, example=stepped(name))


KIND: Kind = replace(_WRITTEN, entry=entry)
