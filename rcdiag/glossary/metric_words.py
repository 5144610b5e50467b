"""What the registry of metrics leaves unsaid: formulas, what a sign means, names elsewhere.

To add a metric nothing is needed here, unless its `about` holds no formula.
"""

from __future__ import annotations

from rcdiag.statistics.metrics import METRICS

_DIFF = "-mean log_ratio of the sequence"
_PROBS = "|p_target - p_behavior|"

FORMULAS: dict[str, str] = {
    "log_ratio_abs_std": "sqrt(E[log_ratio^2] - E[|log_ratio|]^2)",
    "log_ratio_std": "sqrt(E[log_ratio^2] - E[log_ratio]^2)",
    **{
        name: f"quantile {float(name.rpartition('_p')[2]) / 100:g} of |log_ratio| over tokens"
        for name in METRICS
        if name.startswith("log_ratio_abs_p")
    },
    "log_ratio_abs_max": "max |log_ratio| over tokens",
    "prob_diff_std": f"sqrt(sum({_PROBS} - its mean)^2 / (N - 1))",
    "prob_diff_max": f"max {_PROBS} over tokens",
    "prob_pearson": "Cov(p_behavior, p_target) / (sd(p_behavior) sd(p_target))",
    "prob_spearman": "Pearson correlation of the ranks of p_behavior and p_target",
    "ppl_ratio": "E[exp(-mean log_ratio)] over sequences",
    "log_ppl_diff_mean": f"mean over sequences of {_DIFF}",
    "log_ppl_diff_abs_mean": "mean over sequences of |mean log_ratio|",
    "log_ppl_diff_max": f"max over sequences of {_DIFF}",
    "log_ppl_diff_min": f"min over sequences of {_DIFF}",
    "khat_token": "shape of the generalised Pareto law fitted to the largest ratios of tokens",
    "khat_seq": "shape of the generalised Pareto law fitted to the largest products of ratios",
    **{
        name: f"E[1(|log_ratio| > ln {name.rpartition('_')[2]})] over tokens"
        for name in METRICS
        if name.startswith("ratio_outside_")
    },
    "top_share": "sum of log_ratio^2 over the largest 0.1% / sum over all tokens",
    "kappa_se": "jackknife standard error of kappa over clusters",
}

_HIGHER = "positive where the target gives these tokens less than the behavior policy does"
DIRECTIONS: dict[str, str] = {
    "k1_kl": f"KL(behavior || target); {_HIGHER}",
    "k1_kl_seq": f"KL(behavior || target); {_HIGHER}",
    **{name: "KL(behavior || target)" for name in ("k3_kl", "k3_kl_seq")},
    **{name: "KL(target || behavior)" for name in METRICS if "_kl_reverse" in name},
    **{name: "chi2(target || behavior)" for name in METRICS if name.startswith("chi2_")},
    **{
        name: "target less behavior: positive where the target's perplexity is the higher one"
        for name in METRICS
        if name.startswith("log_ppl_diff_m")
    },
    "ppl_ratio": "target over behavior: above 1 where the target's perplexity is the higher one",
    "kappa": "changes its sign with the log-probs of both policies exchanged",
}

# Functions of |log_ratio|, of log_ratio^2, or of both probabilities alike.
SYMMETRIC: frozenset[str] = frozenset(
    name
    for name in METRICS
    if name.startswith(("log_ratio_", "prob_", "ratio_outside_", "k2_kl")) and "reverse" not in name
) | {"exp_abs_log_ratio_mean", "top_share", "variance_ratio", "log_ppl_diff_abs_mean"}

# Metric -> the key of trainers that comes nearest to it, without prefix.
LOGGED_AS: dict[str, str] = {
    "k1_kl": "kl",
    "k3_kl": "k3_kl",
    "chi2_token": "chi2_token",
    "chi2_seq": "chi2_seq",
    "behavior_ppl": "rollout_ppl",
    "target_ppl": "training_ppl",
    "ppl_ratio": "ppl_ratio",
    "log_ppl_diff_mean": "log_ppl_diff",
    "log_ppl_diff_abs_mean": "log_ppl_abs_diff",
    "log_ppl_diff_max": "log_ppl_diff_max",
    "log_ppl_diff_min": "log_ppl_diff_min",
    "ratio_mean": "rollout_is_mean",
    "ess_token": "rollout_is_eff_sample_size",
}

ELSEWHERE: dict[str, dict[str, str]] = {
    "prob_diff_mean": {"verl": "training/rollout_probs_diff_mean: the same, never in bypass mode"},
    "prob_diff_std": {"verl": "training/rollout_probs_diff_std: the same"},
    "prob_diff_max": {"verl": "training/rollout_probs_diff_max: the same"},
    "prob_pearson": {"verl": "training/rollout_actor_probs_pearson_corr: the same"},
    "exp_abs_log_ratio_mean": {"NeMo RL": "token_mult_prob_error: the same"},
    "k3_kl": {"NeMo RL": "gen_kl_error: the same", "prime-rl": "mismatch_kl: the same"},
}
