"""Sentences of `rcdiag explain` before, and in TOML now. Goes with the old code of `explain`."""

from __future__ import annotations

from rcdiag.explain.loss_keys import KEYS

_RAW = "of the raw weights"
_RAW_NOW = "computed from the raw weights"
_COMMENT = " (a comment in the code calls them truncated)"
_APPLIED = "of the applied weights: truncated, or 0 outside the bounds with IcePop"
_APPLIED_NOW = "computed from the applied weights: truncated, or 0 outside the bounds with IcePop"
_ROWS = ", over all rows; a row without a token has 0"
_BOUND = ": a weight at the bound is not beyond it. "
_STRICT, _STRICT_NOW = "the raw weights, compared strictly", "compares the raw weights strictly"
_LOW_HIGH = "k1 options hold -log_ratio against the log of the bounds: high means a small ratio."
_HIGH_NOW = "k1 options compare -log_ratio with the logs of the bounds: high means a small ratio."
_LOW_NOW = "k1 options compare -log_ratio with the logs of the bounds: low means a large ratio."
_SIGN = (
    "log perplexity of the trainer less that of the rollout: above 0 where the trainer's is higher"
)
_LOSS = "a mean over sequences of their means, rejected tokens in all denominators and as 0"
_LOSS_NOW = "a mean over sequences of their means, reduced as the loss is"
_SHRINKS = "the reducer is that of the loss, so it shrinks when tokens are rejected"
_SHRINKS_NOW = (
    "a rejected token counts as 0 and stays in the denominators, so that the number shrinks"
)
_RS = "of the ratio at the level of rollout_rs, with the bounds of rejection."
_AT = "at the level of rollout_rs"
_GUIDE = "verl, docs/algo/rollout_corr.md:"
_K_BOUNDS = 'k1: "lower_upper", or u for 1/u to u; k2, k3: one number; one for all options or one '
_K_BOUNDS_NOW = (
    'bounds of k1 are written "lower_upper", or u for 1/u to u, those of k2 and k3 as one number; '
    "there is one for all options or one for "
)

REWORDED: dict[str, str] = {
    # The two policies.
    "KL by k1: unbiased, noisy, may be negative. NaN or infinite as its tokens are; no clamp.": (
        "KL by k1: it is unbiased and noisy and may be negative. It is not clamped: one log-prob "
        "that is NaN or infinite makes it so."
    ),
    "ideal 0; |kl| above 0.1 is an alarm (verl's guide), 70 to 100 times as lax as those of other "
    "frameworks": f"ideal 0; {_GUIDE} |kl| above 0.1 is an alarm, which is 100 times the 0.001 "
    "that NeMo RL's docs/guides/grpo.md calls acceptable",
    "over tokens": "a mean over tokens",
    "mean over sequences of their means, not over tokens": (
        "a mean over sequences of their means, not over tokens"
    ),
    "KL by k3, without the clamp at +-20 that token_k3 has: one log-ratio of 25 rules a batch. In "
    "float32 it may be negative, to -6e-8 per token.": (
        "KL by k3, without the clamp at +-20 that token_k3 has: one log-ratio of 25 outweighs a "
        "whole batch. In float32 it may be negative, down to -6e-8 per token."
    ),
    "ideal 0; NeMo RL calls below 0.001 acceptable": (
        "ideal 0; NeMo RL, docs/guides/grpo.md: below 0.001 is acceptable"
    ),
    "Mean difference of log perplexities; kl with every sequence counted once.": (
        "Mean difference of the two policies' log perplexities: kl, with every sequence counted "
        "once."
    ),
    f"{_SIGN}; verl's document has the opposite sign": (
        f"{_SIGN}; docs/algo/rollout_corr.md has the opposite sign"
    ),
    "Mean size of the difference of log perplexities.": (
        "Mean absolute difference of the two policies' log perplexities."
    ),
    "Largest difference of log perplexities of any sequence.": (
        "Largest difference of the two policies' log perplexities of a sequence."
    ),
    "Smallest difference of log perplexities of any sequence.": (
        "Smallest difference of the two policies' log perplexities of a sequence."
    ),
    "a row without a token puts in a 0": "a row without a token counts as 0",
    "Mean ratio of perplexities, trainer over rollout: a mean of ratios; verl's document has the "
    "exp of a mean.": "Mean ratio of perplexities, trainer over rollout. It is a mean of ratios; "
    "docs/algo/rollout_corr.md has the exp of a mean.",
    "Chi-squared of tokens: what importance weights cost in variance. An estimate may be negative; "
    "verl's document says never.": "Chi-squared of tokens: what importance weights cost in "
    "variance. An estimate may be negative, though docs/algo/rollout_corr.md says never.",
    "ideal 0; above 1 severe (verl's guide)": f"ideal 0; {_GUIDE} above 1 is severe",
    "Chi-squared of sequences: one row with a sum above 20 rules it, and e^40 is its end.": (
        "Chi-squared of sequences. One row whose log-ratios sum to more than 20 outweighs all "
        "others; a row adds e^40 at most."
    ),
    # Weights.
    "Mean weight over tokens, also of sequence weights: a long row counts by its length. Not "
    "comparable between 0.7.1 and 0.8.0.": "Mean weight over tokens, also of sequence weights: a "
    "long row counts by its length. Numbers of 0.7.1 and 0.8.0 cannot be compared.",
    "ideal 1; verl's guide: from 0.5 to 2": f"ideal 1; {_GUIDE} from 0.5 to 2",
    "Largest weight. verl's document says before the threshold, which is untrue for tokens from "
    "0.8.0 on.": "Largest weight. docs/algo/rollout_corr.md says that it is taken before the "
    "threshold, which is untrue of token weights from 0.8.0 on.",
    f"{_RAW}; by sequence a row without a token counts as 1": (
        f"{_RAW_NOW}; by sequence a row without a token counts as 1"
    ),
    "by token of the applied weights, by sequence still of the raw ones": (
        "computed by token from the applied weights, by sequence still from the raw ones"
    ),
    "by token of the applied weights (0 with IcePop), by sequence of the raw ones": (
        "computed by token from the applied weights (0 with IcePop), by sequence from the raw ones"
    ),
    "Share of raw weights above the upper bound: what is truncated or zeroed.": (
        "Share of raw weights above the upper bound, which are truncated or set to 0."
    ),
    f"{_STRICT}{_BOUND}By token and geometric: of tokens; by sequence: of all rows": (
        f"{_STRICT_NOW}{_BOUND}Token and geometric weights: share of tokens; sequence weights: "
        "share of all rows"
    ),
    f"{_STRICT}{_BOUND}By token: of tokens; by sequence: of all rows": (
        f"{_STRICT_NOW}{_BOUND}Token weights: share of tokens; sequence weights: share of all rows"
    ),
    "Standard deviation of clipped weights over tokens, biased. With the bounds 0.5 and 2 it "
    "cannot exceed 0.75, so that the alarm of verl's guide above 1 never comes.": (
        "Standard deviation of clipped weights over tokens, biased. With the bounds 0.5 and 2 it "
        "cannot exceed 0.75, so that verl's alarm above 1 never comes."
    ),
    "ideal 0; verl's guide: up to 1": f"ideal 0; {_GUIDE} up to 1",
    f"{_RAW} clipped to [lower, upper]": f"{_RAW_NOW} clipped to [lower, upper]",
    "of the applied weights clipped to [0, upper]": (
        "computed from the applied weights clipped to [0, upper]"
    ),
    "ideal 1; verl's guide: 0.5 is good, below 0.3 an alarm": (
        f"ideal 1; {_GUIDE} 0.5 is good, below 0.3 is an alarm"
    ),
    "Effective sample size as a fraction of tokens, also of sequence weights. Clipping hides the "
    "bad news: see ess_token_applied and ess_seq_applied.": (
        "Effective sample size as a fraction of tokens, also of sequence weights. It is that of "
        "clipped weights, which hides large ones: see ess_token_applied and ess_seq_applied."
    ),
    f"{_RAW} clipped to [lower, upper]; with 0.5 and 2 it cannot fall below 0.64, so that no alarm "
    "comes": f"{_RAW_NOW} clipped to [lower, upper]; with 0.5 and 2 it cannot fall below 0.64, so "
    "that no alarm comes",
    "of the applied weights clipped to [0, upper]; above 1 where weights are near 1e-8 (34.24 was "
    "seen), from the 1e-8 in the formula": "computed from the applied weights clipped to [0, "
    "upper]; the 1e-8 in the formula takes it above 1 where weights are near 1e-8 (verl's own code "
    "gave 34.24)",
    "Mean over rows of the mean weight of each. It does not match rollout_is_mean, which verl's "
    "document says for sequence weights: rows against tokens.": (
        "Mean over rows of a row's mean weight. docs/algo/rollout_corr.md says that it matches "
        "rollout_is_mean for sequence weights; it does not, since that is a mean over tokens."
    ),
    "Standard deviation over rows of the mean weight of each, unbiased.": (
        "Standard deviation over rows of a row's mean weight, unbiased."
    ),
    f"{_RAW}{_COMMENT}": f"{_RAW_NOW}{_COMMENT}",
    f"{_RAW}{_COMMENT}{_ROWS}": f"{_RAW_NOW}{_COMMENT}{_ROWS}",
    _APPLIED: _APPLIED_NOW,
    f"{_APPLIED}{_ROWS}": f"{_APPLIED_NOW}{_ROWS}",
    _RAW: _RAW_NOW,
    "of the applied weights, which never exceed the bound: always 0 (verl #6806)": (
        "compares the applied weights, which never exceed the bound: always 0 (verl #6806)"
    ),
    "of the applied weights (verl #6806)": "compares the applied weights (verl #6806)",
    "of the raw weights again": "compares the raw weights again",
    "Share of rows whose mean weight is below the lower bound; rows without a token, with 0, "
    "count.": "Share of rows whose mean weight is below the lower bound; a row without a token has "
    "the weight 0 and counts.",
    "Share of tokens whose weight IcePop sets to 0. They stay in the loss mask, and so in the "
    "denominator of the loss.": "Share of tokens whose weight IcePop sets to 0; they stay in the "
    "loss mask, and so in the denominator of the loss.",
    "only where rollout_is_threshold is `lower_upper`": (
        "logged only where rollout_is_threshold is `lower_upper`"
    ),
    "What the applied weights are divided by. No other key sees the division; rejected tokens take "
    "part in it.": "Number that the applied weights are divided by. Rejected tokens take part in "
    "it, and all other keys are computed before the division.",
    "sequence weights: over all rows, those without a token as 0; where rollout_is_batch_normalize "
    "is on": "sequence weights: over all rows, those without a token as 0; logged where "
    "rollout_is_batch_normalize is on",
    "sequence weights: over rows with a token; where rollout_is_batch_normalize is on": (
        "sequence weights: over rows with a token; logged where rollout_is_batch_normalize is on"
    ),
    "Share of all rows with a token below the veto; the log-ratio is not clamped here.": (
        "Share of all rows that have a token below the veto; the log-ratio is not clamped for it."
    ),
    "ideal 0; verl's guide of that time: above 0.1 is an alarm": (
        f"ideal 0; {_GUIDE} above 0.1 is an alarm (2025)"
    ),
    "0 where the veto is off; gone from 0.7.1 on, with the veto": (
        "0 where the veto is off; not logged from 0.7.1 on, which has no veto"
    ),
    # Rejection.
    f"`rollout_is_mean` {_RS}": f"Mean over tokens of the ratio {_AT}.",
    f"`rollout_is_max` {_RS}": f"Largest ratio {_AT}.",
    f"`rollout_is_min` {_RS}": f"Smallest ratio {_AT}.",
    f"`rollout_is_ratio_fraction_high` {_RS}": (
        f"Share of ratios {_AT} above the upper bound of rejection."
    ),
    f"`rollout_is_ratio_fraction_low` {_RS}": (
        f"Share of ratios {_AT} below the lower bound of rejection."
    ),
    f"`rollout_is_std` {_RS}": (
        f"Standard deviation over tokens of the ratio {_AT}, clipped to the bounds of rejection; "
        "biased."
    ),
    f"`rollout_is_eff_sample_size` {_RS}": (
        f"Effective sample size, as a fraction of tokens, of the ratio {_AT}, clipped to the "
        "bounds of rejection."
    ),
    f"`rollout_is_seq_mean` {_RS}": f"Mean over rows of a row's mean ratio {_AT}.",
    f"`rollout_is_seq_std` {_RS}": (
        f"Standard deviation over rows of a row's mean ratio {_AT}, unbiased."
    ),
    f"`rollout_is_seq_max` {_RS}": f"Largest mean ratio of a row {_AT}.",
    f"`rollout_is_seq_min` {_RS}": f"Smallest mean ratio of a row {_AT}.",
    f"`rollout_is_seq_max_deviation` {_RS}": (
        f"Largest distance from 1 of a row's mean ratio {_AT}."
    ),
    f"`rollout_is_seq_fraction_high` {_RS}": (
        f"Share of rows whose mean ratio {_AT} is above the upper bound of rejection."
    ),
    f"`rollout_is_seq_fraction_low` {_RS}": (
        f"Share of rows whose mean ratio {_AT} is below the lower bound of rejection."
    ),
    "of the raw ratios; std and ESS of those clipped to [lower, upper]": "",  # the sentence says it
    "Share of tokens outside the bounds, in mask mode. Called rollout_rs_masked_fraction from "
    "0.6.1 on.": "Share of tokens outside the bounds, in mask mode; it is called "
    "rollout_rs_masked_fraction from 0.6.1 on.",
    "ideal 0; verl's guide: below 0.1, above 0.3 is bad": (
        f"ideal 0; {_GUIDE} below 0.1, above 0.3 is bad (2025)"
    ),
    "their weights are 0, they stay in the mask; those of the veto not counted": (
        "their weights are 0 and they stay in the loss mask; tokens of the veto are not counted"
    ),
    "they leave the loss mask; those of the veto not counted": (
        "they leave the loss mask; tokens of the veto are not counted"
    ),
    "Share of rows touched by the bounds, in mask mode. Called rollout_rs_seq_masked_fraction from "
    "0.6.1 on.": "Share of rows touched by the bounds, in mask mode; it is called "
    "rollout_rs_seq_masked_fraction from 0.6.1 on.",
    "token weights: share of all rows with a token outside; else: of rows outside": (
        "token weights: share of all rows that have a token outside; else: share of rows outside"
    ),
    "those of the veto not counted": "rows of the veto are not counted",
    "by the one level of rollout_rs; those of the veto not counted": (
        "counts the one level of rollout_rs, without the veto"
    ),
    "by all options of rollout_rs together": "counts all options of rollout_rs together",
    "Share of tokens that rejection takes out of the loss mask. Whether the loss still divides by "
    "them depends on the path in verl: see denominator_kept.": (
        "Share of tokens that rejection takes out of the loss mask. Whether the loss still divides "
        "by them depends on the trainer's path through verl: see denominator_kept."
    ),
    "Share of all rows of which rejection takes at least one token, so a row may lose one token or "
    "all of them.": "Share of all rows of which rejection takes at least one token; a row may lose "
    "one token or all of them.",
    "by all options together; rows without a token count here, and not in those of single "
    "options": "counts all options of rollout_rs together; rows without a token are in the "
    "denominator, which they are not for single options",
    "Mean of the statistic, a row's counted at each of its tokens.": (
        "Mean of the statistic x over tokens; that of a row counts at each of its tokens."
    ),
    "Largest statistic.": "Largest statistic x of a token, or of a row.",
    "Smallest statistic.": "Smallest statistic x of a token, or of a row.",
    "Standard deviation over tokens of the clipped statistic, biased.": (
        "Standard deviation over tokens of the statistic x, clipped to the bounds; biased."
    ),
    f"Share above the upper bound. {_LOW_HIGH}": (
        f"Share of tokens, or of rows, above the upper bound. {_HIGH_NOW}"
    ),
    f"Share below the lower bound. {_LOW_HIGH}": (
        f"Share of tokens, or of rows, below the lower bound. {_LOW_NOW}"
    ),
    "Mean over rows of the row's statistic.": "Mean over rows of a row's statistic z.",
    "Standard deviation over rows, unbiased.": (
        "Standard deviation over rows of a row's statistic z, unbiased."
    ),
    "Largest of any row.": "Largest statistic z of a row.",
    "Smallest of any row.": "Smallest statistic z of a row.",
    "Largest size of any row. Measured from 0, where rollout_is_seq_max_deviation is measured from "
    "1.": "Largest absolute statistic z of a row. It is measured from 0, whereas "
    "rollout_is_seq_max_deviation is measured from 1.",
    f"Share of rows above the upper bound. {_LOW_HIGH}": (
        f"Share of rows above the upper bound. {_HIGH_NOW}"
    ),
    f"Share of rows below the lower bound. {_LOW_HIGH}": (
        f"Share of rows below the lower bound. {_LOW_NOW}"
    ),
    "rows are those that have a token; k1 options only": (
        "rows are those that have a token; k2 and k3 have no lower bound and do not log it"
    ),
    "of the original mask, whatever other options reject": (
        "over the mask before rejection, whatever other options reject"
    ),
    # Debug metrics.
    "Mean difference of probabilities; verl's docstring says log-probs.": (
        "Mean absolute difference of the two policies' probabilities; verl's docstring says "
        "log-probs."
    ),
    "ideal 0; verl's FAQ: below 0.005 normal, above 0.01 a precision problem": (
        "ideal 0; verl, docs/faq/faq.rst: below 0.005 is normal, above 0.01 is a precision problem"
    ),
    "of the mask before rejection; absent in bypass mode": (
        "over the mask before rejection; not logged in bypass mode"
    ),
    "Largest difference of probabilities.": (
        "Largest absolute difference of the two policies' probabilities."
    ),
    "Standard deviation of the difference of probabilities, unbiased.": (
        "Standard deviation of the absolute difference of the two policies' probabilities, "
        "unbiased."
    ),
    "Correlation of probabilities; inflated where most are near 0 or 1.": (
        "Correlation of the two policies' probabilities; it is inflated where most are near 0 or 1."
    ),
    # Losses.
    "Share of tokens that the clip of the loss acts on. What that is depends on the loss; in "
    "bypass mode the mismatch is inside the ratio.": (
        "Share of tokens that the clip of the loss acts on, which depends on the loss; in bypass "
        "mode the mismatch is inside the ratio."
    ),
    KEYS[
        "pg_clipfrac"
    ].healthy: "ideal 0 at the first mini-batch, where r is 1 if old and current are the "
    "same; for bounds see clip_fraction",
    f"{_LOSS}; {_SHRINKS}": f"{_LOSS_NOW}: {_SHRINKS_NOW}",
    f"{_LOSS}; of gspo of sequences; {_SHRINKS}": (
        f"{_LOSS_NOW}: {_SHRINKS_NOW}; gspo takes the sequence's d"
    ),
    "Share of tokens that the dual clip acts on, of negative advantage.": (
        "Share of tokens that the dual clip acts on, which is meant for negative advantages."
    ),
    "ideal 0; no source for a bound": "ideal 0; no source gives a bound",
    "KL of the old and the current policy by k1; in bypass mode old is the rollout's, and the "
    "mismatch is inside. 0 at the first mini-batch of a decoupled update.": (
        "KL of the old and the current policy by k1. In bypass mode old is the rollout policy, so "
        "that the mismatch is inside; at the first mini-batch of a decoupled update it is 0."
    ),
    "E[|d|], a mean of sizes": "E[|d|], a mean of absolute values",
    "ideal 0; no source for a bound: see staleness_k3": (
        "ideal 0; no source gives a bound: see staleness_k3"
    ),
    "The policy loss without entropy and KL terms. Of verl it stands in the result as `loss`.": (
        "The policy loss without entropy and KL terms; rcdiag's result has it as `loss`."
    ),
    "no bound: its size says nothing, its gradient does": (
        "there is no bound: its size says nothing, its gradient does"
    ),
    "The PPO ratio, not the mismatch: slime #1907 confuses it with tis.": (
        "Mean PPO ratio, which is not the mismatch; slime #1907 confuses it with tis."
    ),
    "logged with weights alone; of gspo of sequences": (
        "logged only where weights are on; gspo takes the sequence's ratio"
    ),
    "Mean ratio of trainer and sampler before the bounds: the mismatch, not the weight.": (
        "Mean ratio of trainer and sampler before the bounds, which is the mismatch and not the "
        "weight."
    ),
    "only with --use-tis; bounds --tis-clip-low 0 and --tis-clip 2": (
        "logged only with --use-tis; the bounds are --tis-clip-low (0) and --tis-clip (2)"
    ),
    "only with --use-tis; icepop_function logs under the same name": (
        "logged only with --use-tis; icepop_function logs under the same name"
    ),
    "only with --use-tis": "logged only with --use-tis",
    KEYS["tis_abs"].healthy: (
        "ideal 0; arXiv 2512.23075 calls it the surrogate error rate and sets thresholds from 0.03 "
        "to 0.1"
    ),
    "Misnamed: a sum over sequences of their share of tokens that OPSM drops, no mean.": (
        "Sum over sequences of the share of their tokens that OPSM drops; despite its name it is "
        "no mean."
    ),
    "only with --use-opsm; drops A < 0 in sequences whose mean of old - current is above "
    "--opsm-delta 1e-4": "logged only with --use-opsm, which drops the tokens of negative "
    "advantage in sequences whose mean of old - current log-probs is above --opsm-delta (1e-4)",
    "Mean distance of the trainer's log-probs from the sampler's; current in place of old in "
    "bypass mode. Rejection takes the tokens that mismatch most out of it.": (
        "Mean distance of the trainer's log-probs from the sampler's; in bypass mode current takes "
        "the place of old. Rejection takes the tokens that mismatch most out of it."
    ),
    f"whenever the sampler's log-probs are there; {_SHRINKS}": (
        f"logged wherever the sampler's log-probs are recorded, reduced as the loss is: "
        f"{_SHRINKS_NOW}"
    ),
    # slime's helper.
    "Mean weight before the bounds: the ratio at tis_level, its log clamped to +-20.": (
        "Mean weight before the bounds, which is the ratio at tis_level with its log clamped to "
        "+-20."
    ),
    "Mean weight after the bounds; with tis_mode: mask as before them.": (
        "Mean weight after the bounds; with tis_mode: mask it is the same as before them."
    ),
    "only with tis_mode: truncate; the README calls it mis_truncate_fraction": (
        "logged only with tis_mode: truncate; the README calls it mis_truncate_fraction"
    ),
    "only with tis_mode: clip": "logged only with tis_mode: clip",
    "only with tis_mode: mask": "logged only with tis_mode: mask",
    "Share of weights below the lower bound; their tokens leave the mask.": (
        "Share of weights below the lower bound; their tokens leave the loss mask."
    ),
    "Share of weights above the upper bound; their tokens leave the mask.": (
        "Share of weights above the upper bound; their tokens leave the loss mask."
    ),
    "only with use_rs": "logged only with use_rs",
    "only with use_rs and a veto; the README calls it mis_catastrophic_token_fraction": (
        "logged only with use_rs and a veto; the README calls it mis_catastrophic_token_fraction"
    ),
    "only with use_rs and a veto; the README calls it mis_catastrophic_seq_fraction": (
        "logged only with use_rs and a veto; the README calls it mis_catastrophic_seq_fraction"
    ),
    "Share of tokens below the veto; their log-ratio is not clamped.": (
        "Share of tokens below the veto; the log-ratio is not clamped for it."
    ),
    "Misnamed: the mean weight after the bounds. No rejection is in it.": (
        "Mean weight after the bounds; despite its name no rejection is in it."
    ),
    "What the weights are divided by; rejected tokens take part in it.": (
        "Number that the weights are divided by; rejected tokens take part in it."
    ),
    "only with tis_batch_normalize; of one micro-batch on one rank, the README says the batch; "
    "logged as a mean over rows, so that rows without a token lower the logged number": (
        "logged only with tis_batch_normalize; it is that of one micro-batch on one rank, though "
        "the README says the batch, and is logged as a mean over rows, so that rows without a "
        "token lower the logged number"
    ),
    "Mean over sequences of each one's smallest final weight: no minimum of the batch.": (
        "Mean over sequences of a sequence's smallest final weight; it is no minimum of the batch."
    ),
    "Mean over sequences of each one's largest final weight: no maximum of the batch.": (
        "Mean over sequences of a sequence's largest final weight; it is no maximum of the batch."
    ),
    # Settings.
    "null turns everything off, metrics too": "null turns everything off, metrics included",
    "Lower bound of the weights, for mask mode and for statistics; null: 1/upper.": (
        "Lower bound of the weights, for mask mode and for statistics; null means 1/upper."
    ),
    "A sequence with a token ratio below it is out.": (
        "Bound of the veto: a sequence that has a token with a smaller ratio is taken out."
    ),
    "What decides which tokens or sequences leave the loss mask; null for nothing.": (
        "Statistic by which tokens or sequences leave the loss mask; null rejects nothing."
    ),
    "token, sequence or geometric: by the ratio at that level": (
        "token, sequence or geometric: the ratio at that level"
    ),
    f"{_K_BOUNDS}each; a lower bound above the upper one rejects everything": (
        f"{_K_BOUNDS_NOW}each; a lower bound above the upper one rejects everything"
    ),
    f"{_K_BOUNDS}each; a lower bound above the upper one is refused": (
        f"{_K_BOUNDS_NOW}each; a lower bound above the upper one is refused"
    ),
    "a number, the upper bound; verl's documents say that null takes rollout_is_threshold, the "
    "code stops": "a number, the upper bound; docs/algo/rollout_corr.md says that null takes "
    "rollout_is_threshold, the code stops",
    "Lower bound of rejection; null: 1/upper.": "Lower bound of rejection; null means 1/upper.",
    "A sequence with a token ratio below it leaves the loss mask whole; null: off. Gone from 0.7.1 "
    "on.": "Bound of the veto: a sequence that has a token with a smaller ratio leaves the loss "
    "mask; null turns the veto off. verl 0.7.1 and later have no veto.",
    "verl's documents: 1e-6 to 1e-4": f"{_GUIDE} 1e-6 to 1e-4",
    "with one mini-batch and one epoch the actor takes its own log-probs and it does nothing, "
    "unless actor.use_rollout_log_probs is on": "has no effect with one mini-batch and one epoch, "
    "where the actor takes its own log-probs, unless actor.use_rollout_log_probs is on",
    "REINFORCE in place of the clipped PPO loss, in bypass mode. Called loss_type from 0.7.0 on.": (
        "Takes REINFORCE in place of the clipped PPO loss in bypass mode; it is called loss_type "
        "from 0.7.0 on."
    ),
    "Divides the weights by their mean over the batch; rejected tokens take part.": (
        "Divides the weights by their mean over the batch, in which rejected tokens take part."
    ),
    "Turns the helper on; without it nothing happens, rejection and veto included.": (
        "Turns the MIS helper on; without it nothing happens, not even rejection and veto."
    ),
    "Rejection by ratios, and the veto; needs use_tis.": (
        "Turns rejection by ratios and the veto on; it needs use_tis."
    ),
    "Level of the weights: token, sequence or geometric. geometric stops with tis_batch_normalize, "
    "though the comments of slime's YAML offer both.": (
        "Level of the weights: token, sequence or geometric. slime stops where geometric meets "
        "tis_batch_normalize, though the comments of its YAML file offer both."
    ),
    "Level of the ratio that use_rs holds against its bounds.": (
        "Level of the ratio that rejection compares with its bounds: token, sequence or geometric."
    ),
    "What happens to weights outside the bounds: truncate, clip or mask. The README has no mask; "
    "the YAML comment says that it zeroes weights, the code takes the tokens out of the loss mask "
    "and leaves the weights.": "What happens to weights outside the bounds: truncate, clip or "
    "mask. The README does not know mask; the comment in the YAML file says that it zeroes "
    "weights, while the code takes the tokens out of the loss mask and leaves the weights.",
    "Lower bound of the weights; null: 1/upper. In truncate mode it only serves as the default of "
    "rs_lower_bound.": "Lower bound of the weights; null means 1/upper. In truncate mode it only "
    "serves as the default of rs_lower_bound.",
    "Lower bound of rejection; null: that of TIS.": (
        "Lower bound of rejection; null takes that of the weights."
    ),
    "Upper bound of rejection; null: that of TIS.": (
        "Upper bound of rejection; null takes that of the weights."
    ),
    "A sequence with a token ratio below it leaves the loss mask whole; needs use_rs and use_tis, "
    "the README says neither.": "Bound of the veto: a sequence that has a token with a smaller "
    "ratio leaves the loss mask. It needs use_rs and use_tis, which the README does not say.",
    "Divides the weights by their mean over one micro-batch on one rank; the README says over the "
    "batch.": "Divides the weights by their mean over one micro-batch on one rank, though the "
    "README says over the batch.",
    # Generations.
    "0.9.0 released 2026-08-14, 0.9.1 on 2026-09-01": "2026-08-14 (0.9.0) and 2026-09-01 (0.9.1)",
    "IcePop; weight statistics of the applied weights, seq_fraction_high always 0 (#6806)": (
        "IcePop; weight statistics of the applied weights, seq_fraction_high always 0 (verl #6806)"
    ),
    "as verl-0.8.0, seq_fraction_* of the raw ratio; a lower bound above the upper is refused": (
        "as verl-0.8.0, but seq_fraction_* of the raw ratio; a lower bound above the upper one is "
        "refused"
    ),
}
