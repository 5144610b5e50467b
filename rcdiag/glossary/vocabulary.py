"""Words that no definition carries: levels, verdicts, treatments of weights, answers, roles, keys.

To add one: an entry here.
"""

from __future__ import annotations

import re

from rcdiag.entry import Entry
from rcdiag.glossary.kinds import Kind, by_hand

_LEVEL_SOURCE = "every guide names its source: `rcdiag explain NAME`; the worst level decides"
LEVELS: dict[str, Entry] = {
    "ok": Entry(
        what="A number within its guide. A metric without a guide is never called ok.",
        healthy=_LEVEL_SOURCE,
        example="k3_kl below 0.001",
        see=("k3_kl",),
    ),
    "unknown": Entry(
        what="The data cannot tell: the 95% interval of a number reaches from ok to error by its "
        "guide, or no honest interval can be given, as with a single prompt group, or one end "
        "of it is not observable, or the number presupposes that a policy sampled which did "
        "not. It is no alarm and no all-clear: more rows would tell.",
        healthy=_LEVEL_SOURCE,
        example="ess_seq of 0.3 with the interval 0.05 to 0.6",
        see=("k3_kl",),
    ),
    "note": Entry(
        what="A finding that the reader should know and that does not count against a run.",
        example="few-clusters",
        see=("few-clusters",),
    ),
    "warning": Entry(
        what="A number at or beyond the first bound of its guide, or a finding of that weight.",
        healthy=_LEVEL_SOURCE,
        example="k3_kl from 0.001 on; rcdiag score rollouts.parquet --fail-on warning",
        see=("k3_kl",),
    ),
    "error": Entry(
        what="A number at or beyond the second bound of its guide, or a finding of that weight.",
        healthy=_LEVEL_SOURCE,
        example="k3_kl from 0.01 on; rcdiag score rollouts.parquet --fail-on error",
        see=("k3_kl",),
    ),
}
LEVEL: Kind = by_hand(
    "level",
    "Levels",
    LEVELS,
)

# `healthy` is a cause too, so that the names of verdicts carry the word.
VERDICTS: dict[str, Entry] = {
    "verdict-healthy": Entry(
        what="Two policies were compared, and what is between them is rounding noise that costs "
        "nothing. `sweep` recommends no correction.",
        example="two engines in bfloat16 and float32 with the same weights",
    ),
    "verdict-correctable": Entry(
        what="A genuine mismatch, and the recorded distribution is the one that sampled, so that "
        "importance sampling is valid. Its cause may still be worth removing; then the remedy "
        "stands first.",
        example="stale weights: the sampler is some steps behind",
    ),
    "verdict-broken": Entry(
        what="A fault that no weights repair: the recorded distribution did not sample, columns do "
        "not belong together, the two sides saw other contexts, the trainer's own column is "
        "wrong, or the data are damaged. `sweep` ranks nothing.",
        example="log-probs recorded before the temperature; --fail-on error exits with 1",
    ),
    "verdict-inconclusive": Entry(
        what="Too little data, one policy alone, or evidence that points both ways. `next` names "
        "the experiment, the column or the number of rows that would decide.",
        example="two columns that are equal to the last bit",
    ),
}
VERDICT: Kind = by_hand(
    "verdict",
    "Verdicts",
    VERDICTS,
    aliases={name: f"verdict-{name}" for name in ("correctable", "broken", "inconclusive")},
)

_BIAS = "less variance for bias"
_THREE_RATIOS = "bounds 0.5 and 2, ratios 0.4, 1.2, 3: weights"
TREATMENTS: dict[str, Entry] = {
    "TIS": Entry(
        what=f"Truncation: weights above the bound become the bound; {_BIAS}. Small ones stay. "
        "The key of slime of this name is train/tis.",
        formula="min(ratio, upper)",
        units="ratio",
        healthy="see truncation_loss; bounds in use: 2 to 10 by sequence, 1.5 to 5 by token "
        "(verl's documents)",
        example=f"{_THREE_RATIOS} 0.4, 1.2, 2",
        see=("truncation_loss", "rollout_is_threshold", "train/tis"),
    ),
    "clip": Entry(
        what=f"Clipping: weights are moved to the nearest bound, small ones too; {_BIAS}.",
        formula="min(max(ratio, lower), upper)",
        units="ratio",
        example=f"{_THREE_RATIOS} 0.5, 1.2, 2",
        see=("truncation_loss", "tis_mode"),
    ),
    "IcePop": Entry(
        what="Zeroing: weights outside the bounds become 0. Their tokens stay in the loss mask, "
        "and so in the denominator of the loss.",
        formula="ratio if lower <= ratio <= upper else 0",
        units="ratio",
        healthy="bounds of the presets: 0.5 to 5",
        example=f"{_THREE_RATIOS} 0, 1.2, 0",
        see=("rollout_corr/rollout_is_oob_ratio", "decoupled_token_icepop"),
    ),
    "MIS": Entry(
        what="Masking: tokens (or sequences) outside the bounds leave the loss mask; the weights "
        "of the others stay as they are.",
        formula="kept if lower <= ratio <= upper",
        units="ratio",
        healthy="see lost_target_mass_token and lost_target_mass_seq",
        example=f"{_THREE_RATIOS} 0.4, 1.2, 3, of which the second is kept",
        see=("lost_target_mass_token", "rollout_rs", "tis_mode"),
    ),
}
TREATMENT: Kind = by_hand(
    "treatment of weights",
    "Treatments of weights outside the bounds",
    TREATMENTS,
    aliases={"truncate": "TIS", "zero": "IcePop", "mask": "MIS"},
)

ANSWERS: dict[str, Entry] = {
    "take": Entry(
        what="Take the candidate in `choice`: the simplest one within one standard error of the "
        "best, and 5%.",
        example="rcdiag sweep rollouts.parquet --emit verl > correction.yaml",
        see=("efficiency", "indistinguishable", "none"),
    ),
    "no-correction": Entry(
        what="Train without a correction: weights of whole sequences differ from 1 by less than "
        "0.01 on average, or no candidate has a lower error by more than one standard error and "
        "5%.",
        healthy="what one wants to read: behavior and target are as good as the same",
        example="recorded log-probs of a trainer that uses the sampler's own precision",
        see=("none", "efficiency"),
    ),
    "fix-the-cause": Entry(
        what="The log-probs cannot be trusted: values are NaN, or the tokens were not sampled from "
        "the recorded behavior policy. Ratios are noise then, and weighting with them does harm.",
        example="log-probs recorded before the temperature was applied",
        see=("fix-before-correcting", "kappa", "ratio_mean_z"),
    ),
    "cannot-distinguish": Entry(
        what="The table does not tell which candidate has the lowest error. Too few sequences "
        "carry the ratios for a reference, or the reference is so noisy that the bias without "
        "correction is not known to within the variance of one batch; every candidate breaks a "
        "constraint; all sequences belong to one prompt group; no advantage is known; or the mean "
        "ratio of sequences is above 1. What the candidates cost in variance is shown.",
        example="ratios of 4,000-token sequences, carried by 3 of 512 sequences",
        see=("refused", "gradient_bias_high", "few-clusters"),
    ),
}
ANSWER: Kind = by_hand(
    "answer of a sweep",
    "Answers of `rcdiag sweep`",
    ANSWERS,
)

ROLES: dict[str, Entry] = {
    "sampler": Entry(
        what="The policy whose log-probs were recorded while sampling: `rollout`, or what "
        "--behavior names.",
        example="column rollout_log_probs",
        see=("behavior", "rollout", "recorded-is-not-nearest"),
    ),
    "engine": Entry(
        what="A policy that rcdiag scored again with the inference engine.",
        example="--policy vllm_bf16=vllm:bfloat16",
        see=("generation-against-rescoring", "rescoring-stands-apart"),
    ),
    "trainer": Entry(
        what="A policy that rcdiag scored with Hugging Face, as a trainer does.",
        example="--policy hf_fp32=hf:float32",
        see=("engine-against-trainer",),
    ),
    "recorded": Entry(
        what="A policy of the table that rcdiag did not score: whoever wrote the dump did.",
        example="column old_log_probs as the trainer logged it",
        see=("old", "sampler"),
    ),
    "repeat": Entry(
        what="A second run of a policy with other batches: it makes the noise floor and is no step "
        "of the ladder.",
        example="rcdiag compare scored.parquet --json | jq '.policies[].role'",
        see=("noise-floor", "at_floor"),
    ),
}
ROLE: Kind = by_hand(
    "role of a policy",
    "Roles of policies in `rcdiag compare`",
    ROLES,
)


def _layer(name: str) -> str | None:
    """Take `layer 17` for `layer 0`, and every other layer too."""
    return "layer 0" if re.fullmatch(r"layer[\s_-]*\d+", name.lower()) else None


# Names that results have as keys or values, and not as fields.
_JSON = "rcdiag replay rollouts.parquet --model CHECKPOINT --json | jq"
NAMES_IN_RESULTS: dict[str, Entry] = {
    "embedding": Entry(
        what="Part of the model: the token embedding, and the head where both share a weight.",
        example=f"{_JSON} '.presets[].gradient.norm_by_layer.embedding'",
        see=("norm_by_layer", "head"),
    ),
    "layer 0": Entry(
        what="Part of the model: its first layer; the others are counted on, layer 1 and so forth.",
        example=f"""{_JSON} '.presets[].gradient.norm_by_layer["layer 0"]'""",
        see=("norm_by_layer",),
    ),
    "norm_by_layer.norm": Entry(
        what="Part of the model: what stands after the layers, as a rule the last norm.",
        example=f"{_JSON} '.presets[].gradient.norm_by_layer.norm'",
        see=("norm_by_layer",),
    ),
    "head": Entry(
        what="Part of the model: the output head, where it has a weight of its own.",
        example=f"{_JSON} '.presets[].gradient.norm_by_layer.head'",
        see=("norm_by_layer", "embedding"),
    ),
    "health.cannot judge": Entry(
        what="Verdict on an update where no rule of health is broken and a number that decides is "
        "not known: it is never ok then.",
        example="rcdiag replay rollouts.parquet --json | jq '.presets[].health.not_judged'",
        see=("health", "not_judged", "health.verdict"),
    ),
}
NAME_IN_RESULTS: Kind = by_hand(
    "name in results",
    "Names in results",
    NAMES_IN_RESULTS,
    find=_layer,
)
