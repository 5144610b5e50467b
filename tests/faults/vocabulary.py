"""The causes of generated tables: families, verdicts, and causes with the same evidence.

A cause is looked up from what a table without a model can show: many differences between two
forward passes (other weights, precision, model function) leave noise-like log-ratios alone.
"""

from __future__ import annotations

FAMILIES: dict[str, tuple[str, ...]] = {
    "nothing wrong": ("healthy", "engine-noise"),
    "precision": (
        *("bf16-logits", "int8-weights", "int4-weights", "fp8-weights", "fp8-kv-cache"),
        *("dropout-in-trainer", "batch-noise", "moe-routing"),
    ),
    "sampling law": (
        *("temperature-raw-recorded", "trainer-without-temperature", "log-probs-divided"),
        *("sampler-ignores-temperature", "temperature-silent", "top-p-renormalised"),
        *("top-k-renormalised", "min-p-renormalised", "top-p-silent", "repetition-penalty"),
        *("presence-penalty", "logit-bias", "min-tokens"),
    ),
    "recording": (
        *("top-one-recorded", "entropy-recorded", "draft-recorded", "columns-identical"),
        "duplicated-rows",
    ),
    "alignment": (
        *("shift-by-one", "shift-some-rows", "shift-after-tool", "rows-swapped"),
        *("logits-not-shifted", "mask-includes-tool", "mask-drops-last", "eos-one-sided"),
        *("special-token-ids", "retokenised"),
    ),
    "context": (
        *("prompt-truncated", "prompt-template", "bos-differs", "context-stripped"),
        *("position-ids", "attention-to-padding", "packing-leak", "prefix-cache-stale"),
    ),
    "weights": (
        *("stale-weights", "weights-never-synced", "reference-as-old", "old-after-update"),
        *("partial-sync", "tied-head-desync", "shard-wrong", "vocab-shard-wrong"),
        *("lora-missing", "replica-unsynced", "in-flight-update"),
    ),
    "function": (
        *("rope-theta", "norm-eps", "sliding-window", "logit-softcap", "vocabulary-padding"),
    ),
    "storage": (
        *("nan-log-probs", "zero-placeholder", "sentinel", "floor-clip", "stored-bfloat16"),
        *("stored-float16", "stored-rounded", "log-base", "probabilities-stored"),
        *("sign-flipped", "cumulative-stored"),
    ),
}
FAMILY = {slug: family for family, slugs in FAMILIES.items() for slug in slugs}

NOISE = ("engine-noise", "healthy")
QUANTISED = ("fp8-weights", "int4-weights", "int8-weights", "quantised-weights")
WEIGHTS = (
    *("stale-weights", "forwards-differ", *QUANTISED, "lora-missing", "old-after-update"),
    *("partial-sync", "reference-as-old", "tied-head-desync", "weights-differ"),
    "weights-never-synced",
)
BODY = (*WEIGHTS, "dropout-in-trainer", "fp8-kv-cache", "norm-eps", "shard-wrong")
FUNCTION = (*BODY, "logit-softcap", "position-ids", "rope-theta", "sliding-window")
PROMPTS = ("bos-differs", "context-differs", "prompt-template", "prompt-truncated")
CONTEXTS = (*PROMPTS, *BODY, "attention-to-padding", "packing-leak", "position-ids")
KEPT_SETS = (*("top-p-renormalised", "min-p-renormalised", "top-k-renormalised", "truncated-law"),)
PENALTIES = ("logit-bias", "min-tokens", "penalty", "presence-penalty", "repetition-penalty")
# If half of the vocabulary is scaled alike, the table does not show which side did it.
SUMS = ("vocab-shard-wrong", "vocabulary-padding", "shard-wrong", "tied-head-desync", *KEPT_SETS)

# slug -> correct answers from the table alone, and with the trainer's checkpoint.
LOOK_ALIKES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "healthy": (NOISE, NOISE),
    "engine-noise": ((*NOISE, "bf16-logits"), (*NOISE, "bf16-logits")),
    "bf16-logits": (NOISE, NOISE),
    "batch-noise": (NOISE, NOISE),
    "moe-routing": ((*NOISE, "forwards-differ"), (*NOISE, "forwards-differ")),
    "int8-weights": (BODY, (*QUANTISED, "weights-differ")),
    "int4-weights": (BODY, (*QUANTISED, "weights-differ")),
    "fp8-weights": (BODY, (*QUANTISED, "weights-differ")),
    "fp8-kv-cache": (FUNCTION, (*QUANTISED, "forwards-differ")),
    "dropout-in-trainer": (BODY, ("forwards-differ",)),
    "trainer-without-temperature": ((), ()),
    "top-p-renormalised": (KEPT_SETS, ("truncated-law",)),
    "top-k-renormalised": (KEPT_SETS, ("truncated-law",)),
    "min-p-renormalised": (KEPT_SETS, ("truncated-law",)),
    "temperature-silent": ((*NOISE, "columns-identical"), ()),
    "top-p-silent": ((*NOISE, "columns-identical"), ()),
    "repetition-penalty": (PENALTIES, ("penalty",)),
    "presence-penalty": (PENALTIES, ("penalty",)),
    "logit-bias": (PENALTIES, ("penalty",)),
    "min-tokens": (PENALTIES, ("penalty",)),
    "top-one-recorded": (("entropy-recorded",), ()),
    "entropy-recorded": (("top-one-recorded",), ()),
    "draft-recorded": (WEIGHTS, ("stale-weights", "weights-differ")),
    "shift-some-rows": (("shift-by-one",), ("shift-by-one",)),
    "shift-after-tool": (("shift-by-one", "shift-some-rows"), ("shift-some-rows",)),
    "logits-not-shifted": (("context-differs", "forwards-differ", "shift-by-one"), ()),
    "mask-drops-last": (NOISE, ()),
    "eos-one-sided": (
        ("special-token-ids", "zero-placeholder"),
        ("special-token-ids", "zero-placeholder"),
    ),
    "special-token-ids": (("eos-one-sided",), ("eos-one-sided",)),
    "retokenised": (("context-differs", "forwards-differ"), ("context-differs",)),
    "prompt-truncated": (CONTEXTS, PROMPTS),
    "prompt-template": (CONTEXTS, PROMPTS),
    "bos-differs": (CONTEXTS, PROMPTS),
    "context-stripped": ((*PROMPTS, "forwards-differ"), ("context-differs",)),
    "position-ids": ((*CONTEXTS, *FUNCTION), ("forwards-differ", "context-differs")),
    "attention-to-padding": (CONTEXTS, ("forwards-differ", "context-differs")),
    "packing-leak": (CONTEXTS, ("forwards-differ", "context-differs")),
    "prefix-cache-stale": (
        (*PROMPTS, *WEIGHTS, "replica-unsynced"),
        (*PROMPTS, "weights-differ"),
    ),
    "stale-weights": (WEIGHTS, ("weights-differ",)),
    "weights-never-synced": (("stale-weights", "weights-differ"), ("weights-differ",)),
    "reference-as-old": (WEIGHTS, ("old-after-update", "stale-weights", "weights-differ")),
    "old-after-update": (WEIGHTS, ("reference-as-old", "stale-weights", "weights-differ")),
    "partial-sync": (WEIGHTS, ("weights-differ",)),
    "tied-head-desync": (WEIGHTS, ("weights-differ",)),
    "shard-wrong": (FUNCTION, ("weights-differ",)),
    "vocab-shard-wrong": (SUMS, ("vocabulary-padding",)),
    "lora-missing": (FUNCTION, ("stale-weights", "weights-differ")),
    "replica-unsynced": ((*CONTEXTS, *WEIGHTS), ("weights-differ",)),
    "in-flight-update": (WEIGHTS, ("weights-differ",)),
    "rope-theta": (FUNCTION, ("forwards-differ",)),
    "norm-eps": (FUNCTION, ("forwards-differ",)),
    "sliding-window": (FUNCTION, ("forwards-differ",)),
    "logit-softcap": (FUNCTION, ("forwards-differ",)),
    "vocabulary-padding": (SUMS, ("vocab-shard-wrong",)),
    "stored-bfloat16": (NOISE, NOISE),
    "stored-float16": (NOISE, NOISE),
    "stored-rounded": (NOISE, NOISE),
    "mask-includes-tool": ((), ()),
}

# Verdicts of causes that are not faults of trainer or recorder; all others are broken.
_HONEST = {
    **dict.fromkeys((*NOISE, "bf16-logits", "batch-noise", "moe-routing"), "healthy"),
    **dict.fromkeys(
        (*QUANTISED, "fp8-kv-cache", "forwards-differ", "weights-differ"), "correctable"
    ),
    **dict.fromkeys(("stored-bfloat16", "stored-float16", "stored-rounded"), "healthy"),
    **dict.fromkeys(("stale-weights", "weights-never-synced", "partial-sync"), "correctable"),
    **dict.fromkeys(("tied-head-desync", "shard-wrong", "lora-missing"), "correctable"),
    **dict.fromkeys(("replica-unsynced", "in-flight-update"), "correctable"),
    "columns-identical": "inconclusive",
}


def verdict_of(slug: str, side: str, k3: float) -> str:
    """Return the verdict that a cause gives; `k3` is KL(sampler || trainer) in nats per token."""
    verdict = _HONEST.get(slug, "broken")
    if side == "trainer" and FAMILY.get(slug) == "weights":
        return "broken"
    if verdict in ("healthy", "correctable") and slug in FAMILY:
        return "healthy" if k3 < 1e-3 and FAMILY[slug] != "weights" else "correctable"
    return verdict


def right_answers(slug: str, *, model: bool) -> list[str]:
    """Return the correct answers: the slug first, then causes with the same evidence."""
    alike = LOOK_ALIKES.get(slug, ((), ()))[int(model)]
    return [slug, *sorted({*alike} - {slug})]
