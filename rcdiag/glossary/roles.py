"""Roles of policies in `rcdiag compare` are explained here. To add one: an entry here."""

from __future__ import annotations

from rcdiag.glossary.entry import Entry, by_hand, unnamed_entry

_EXAMPLE = "rcdiag compare scored.parquet --json | jq '.policies[].role'"

ROLES: dict[str, Entry] = {
    "sampler": unnamed_entry(
        what="The policy whose log-probs were recorded while sampling: `rollout`, or what "
        "--behavior names.",
        example="column rollout_log_probs",
        see=("behavior", "rollout", "recorded-is-not-nearest"),
    ),
    "engine": unnamed_entry(
        what="A policy that rcdiag scored again with the inference engine.",
        example="--policy vllm_bf16=vllm:bfloat16",
        see=("generation-against-rescoring", "rescoring-stands-apart"),
    ),
    "trainer": unnamed_entry(
        what="A policy that rcdiag scored with Hugging Face, as a trainer does.",
        example="--policy hf_fp32=hf:float32",
        see=("engine-against-trainer",),
    ),
    "recorded": unnamed_entry(
        what="A policy of the table that rcdiag did not score: whoever wrote the dump did.",
        example="column old_log_probs as the trainer logged it",
        see=("old", "sampler"),
    ),
    "repeat": unnamed_entry(
        what="A second run of a policy with other batches: it makes the noise floor and is no step "
        "of the ladder.",
        example=_EXAMPLE,
        see=("noise-floor", "at_floor"),
    ),
}

KIND = by_hand("role of a policy", "Roles of policies in `rcdiag compare`", ROLES)
