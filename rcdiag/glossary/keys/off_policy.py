"""Keys about both policies alone, logged whatever the correction is."""

from __future__ import annotations

from rcdiag.glossary.generations import LATER, SLIME, VERL
from rcdiag.glossary.keys.base import LIKE_ITS_FORMULA, Key

_SEQ = "mean over sequences of their means, not over tokens"
_PPL = "a row without a token adds 0"
_DIFF = (
    "log perplexity of the trainer less that of the rollout: above 0 where the trainer's is higher"
)
_SIGN = "verl's document has the opposite sign"

OFF_POLICY: dict[str, Key] = {
    "training_ppl": Key(
        what="Perplexity of the trainer's policy.",
        formula="mean over sequences of exp(-mean old log-prob)",
        of={VERL: "over all rows; a row without a token adds 1", SLIME: _PPL},
    ),
    "training_log_ppl": Key(
        what="Log perplexity of the trainer's policy.",
        formula="mean over sequences of -mean old log-prob",
        units="nats",
        of={VERL: "over all rows; a row without a token adds 0", SLIME: _PPL},
    ),
    "rollout_ppl": Key(
        what="Perplexity of the rollout policy.",
        formula="mean over sequences of exp(-mean rollout log-prob)",
        of={VERL: "over all rows; a row without a token adds 1", SLIME: _PPL},
    ),
    "rollout_log_ppl": Key(
        what="Log perplexity of the rollout policy.",
        formula="mean over sequences of -mean rollout log-prob",
        units="nats",
        of={VERL: "over all rows; a row without a token adds 0", SLIME: _PPL},
    ),
    "kl": Key(
        what="KL by k1: unbiased, noisy, may be negative. NaN or infinite as its tokens are; no "
        "clamp.",
        formula="E[rollout - old log-prob] = E[-log_ratio]",
        direction="KL(rollout || trainer); above 0 where the trainer gives the tokens less",
        units="nats",
        healthy="ideal 0; |kl| above 0.1 is an alarm (verl's guide), 70 to 100 times as lax as "
        "those of other frameworks",
        of={VERL: "over tokens", SLIME: _SEQ},
    ),
    "k3_kl": Key(
        what="KL by k3, without the clamp at +-20 that token_k3 has: one log-ratio of 25 rules a "
        "batch. In float32 it may be negative, to -6e-8 per token.",
        formula="E[ratio - log_ratio - 1]",
        direction="KL(rollout || trainer)",
        units="nats",
        healthy="ideal 0; NeMo RL calls below 0.001 acceptable",
        of={VERL: "over tokens", SLIME: _SEQ},
    ),
    "log_ppl_diff": Key(
        what="Mean difference of log perplexities; kl with every sequence counted once.",
        formula="mean over sequences of -mean log_ratio",
        direction=f"{_DIFF}; {_SIGN}",
        units="nats",
        healthy="ideal 0",
        of={VERL: "over all rows; a row without a token adds 0", SLIME: _PPL},
    ),
    "log_ppl_abs_diff": Key(
        what="Mean size of the difference of log perplexities.",
        formula="mean over sequences of |mean log_ratio|",
        units="nats",
        healthy="ideal 0",
        of={VERL: "over all rows; a row without a token adds 0", SLIME: _PPL},
    ),
    "log_ppl_diff_max": Key(
        what="Largest difference of log perplexities of any sequence.",
        formula="max over rows of -mean log_ratio",
        direction=f"{_DIFF}; {_SIGN}",
        units="nats",
        healthy="ideal 0",
        of={VERL: "a row without a token puts in a 0"},
    ),
    "log_ppl_diff_min": Key(
        what="Smallest difference of log perplexities of any sequence.",
        formula="min over rows of -mean log_ratio",
        direction=f"{_DIFF}; {_SIGN}",
        units="nats",
        healthy="ideal 0",
        of={VERL: "a row without a token puts in a 0"},
    ),
    "ppl_ratio": Key(
        what="Mean ratio of perplexities, trainer over rollout: a mean of ratios; verl's document "
        "has the exp of a mean.",
        formula="mean over sequences of exp(-mean log_ratio)",
        direction="above 1 where the trainer's perplexity is the higher one",
        healthy="ideal 1",
        of={VERL: "over all rows; a row without a token adds 1", SLIME: _PPL},
    ),
    "chi2_token": Key(
        what="Chi-squared of tokens: what importance weights cost in variance. An estimate may be "
        "negative; verl's document says never.",
        formula="E[exp(clamp(log_ratio, +-20))^2] - 1",
        direction="chi2(trainer || rollout)",
        healthy="ideal 0; above 1 severe (verl's guide)",
        of={LATER: "over tokens", SLIME: "mean over sequences of their means, less 1"},
    ),
    "chi2_seq": Key(
        what="Chi-squared of sequences: one row with a sum above 20 rules it, and e^40 is its end.",
        formula="mean over sequences of exp(2 clamp(sum log_ratio, +-20)) - 1",
        direction="chi2(trainer || rollout)",
        healthy="ideal 0",
        of={LATER: "over all rows; a row without a token counts as 0", SLIME: LIKE_ITS_FORMULA},
    ),
}
