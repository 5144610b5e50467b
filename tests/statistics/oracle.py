"""Independent computation of every metric: padded matrices, masks, scipy, arviz-stats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log

import numpy as np
from arviz_stats.base import array_stats
from scipy.special import logsumexp
from scipy.stats import entropy, pearsonr, spearmanr

from tests.statistics.strategies import Batch

Value = float | None
# Sides that are constant up to rounding have no meaningful correlation.
LEAST_SPREAD = 1e-4


def padded(rows: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Return values [batch, longest], NaN where there is no token, and the mask."""
    width = max(len(row) for row in rows)
    values = np.full((len(rows), width), np.nan)
    for index, row in enumerate(rows):
        values[index, : len(row)] = row
    return values, ~np.isnan(values)


def by_definition(batch: Batch, cluster: Sequence[int] | None = None) -> dict[str, Value]:
    """Compute all metrics: None if undefined; metrics dominated by rounding are left out."""
    (mu, mask), (pi, _) = padded(batch[0]), padded(batch[1])
    some = mask.any(axis=1)
    groups = (np.arange(len(mu)) if cluster is None else np.array(cluster))[some]
    mu, pi, mask = mu[some], pi[some], mask[some]
    delta = (pi - mu)[mask]
    sums = np.nansum(pi - mu, axis=1)
    result = {
        **_of_ratios(delta, "token"),
        **_of_ratios(sums, "seq"),
        **_of_log_ratios(delta),
        **_of_probabilities(np.exp(mu[mask]), np.exp(pi[mask])),
        "prob_pearson": _pearson(-np.expm1(mu[mask]), -np.expm1(pi[mask])),
        **_of_perplexities(mu, pi),
        **_validity(mu, pi, groups),
        "khat_token": pareto_k_hat(delta),
        "khat_seq": pareto_k_hat(sums),
    }
    return {name: value for name, value in result.items() if value is None or not np.isnan(value)}


def _of_ratios(delta: np.ndarray, level: str) -> dict[str, Value]:
    rho = np.exp(delta)
    weights = np.exp(delta - logsumexp(delta))
    end = "" if level == "token" else "_seq"
    kish = float(1.0 / np.sum(weights**2) / len(weights))
    return {
        f"k1_kl{end}": np.mean(-delta),
        f"k2_kl{end}": np.mean(delta**2 / 2),
        f"k3_kl{end}": np.mean(rho - 1 - delta),
        f"k1_kl_reverse{end}": np.mean(rho * delta),
        f"k2_kl_reverse{end}": np.mean(rho * delta**2 / 2),
        f"k3_kl_reverse{end}": np.mean(rho * delta - rho + 1),
        f"tv_{level}": np.mean(np.clip(1 - rho, 0, None)),
        f"hellinger2_{level}": 1 - np.mean(np.sqrt(rho)),
        f"ess_{level}": kish,
        f"perplexity_ess_{level}": np.exp(entropy(weights)) / len(weights),
        f"chi2_{level}": np.mean(rho**2) - 1,
        f"chi2_{level}_self_normalised": 1 / kish - 1,
    }


def _of_log_ratios(delta: np.ndarray) -> dict[str, Value]:
    size = np.abs(delta)
    squares = np.sort(delta**2)[::-1]
    top = max(round(len(delta) / 1000), 1)
    quantiles = {f"log_ratio_abs_p{100 * q:g}": np.quantile(size, q) for q in (0.5, 0.9, 0.99)}
    outside = {
        f"ratio_outside_{bound:g}": np.mean(size > log(bound)) for bound in (1.1, 1.5, 2, 5, 10)
    }
    return {
        "log_ratio_abs_mean": np.mean(size),
        "log_ratio_abs_std": np.std(size),
        "log_ratio_std": np.std(delta),
        **quantiles,
        "log_ratio_abs_p99.9": np.quantile(size, 0.999),
        "log_ratio_abs_max": np.max(size),
        "exp_abs_log_ratio_mean": np.mean(np.exp(size)),
        "ratio_deviation_mean": np.mean(np.abs(np.exp(delta) - 1)),
        **outside,
        "top_share": squares[:top].sum() / squares.sum() if squares.sum() else None,
    }


def _of_probabilities(p: np.ndarray, q: np.ndarray) -> dict[str, Value]:
    gap = np.abs(p - q)
    middling = (p > 0.05) & (p < 0.95) & (q > 0.05) & (q < 0.95)
    return {
        "prob_diff_mean": np.mean(gap),
        "prob_diff_std": np.std(gap, ddof=1) if len(gap) > 1 else None,
        "prob_diff_max": np.max(gap),
        "prob_spearman": _spearman(p[middling], q[middling]),
    }


def _pearson(p_miss: np.ndarray, q_miss: np.ndarray) -> Value:
    if np.ptp(p_miss) == 0 or np.ptp(q_miss) == 0:
        return None
    if min(np.std(miss) / np.max(miss) for miss in (p_miss, q_miss)) < LEAST_SPREAD:
        return np.nan
    return pearsonr(p_miss, q_miss).statistic


def _spearman(p: np.ndarray, q: np.ndarray) -> Value:
    constant = len(p) < 2 or np.ptp(p) == 0 or np.ptp(q) == 0
    return None if constant else spearmanr(p, q).statistic


def _of_perplexities(mu: np.ndarray, pi: np.ndarray) -> dict[str, Value]:
    difference = np.nanmean(mu, axis=1) - np.nanmean(pi, axis=1)
    return {
        "behavior_ppl": np.mean(np.exp(-np.nanmean(mu, axis=1))),
        "target_ppl": np.mean(np.exp(-np.nanmean(pi, axis=1))),
        "ppl_ratio": np.mean(np.exp(difference)),
        "log_ppl_diff_mean": np.mean(difference),
        "log_ppl_diff_abs_mean": np.mean(np.abs(difference)),
        "log_ppl_diff_max": np.max(difference),
        "log_ppl_diff_min": np.min(difference),
    }


def _validity(mu: np.ndarray, pi: np.ndarray, groups: np.ndarray) -> dict[str, Value]:
    def token_ratio(rows: np.ndarray) -> float:
        return float(np.nanmean(np.exp(pi - mu)[rows]))

    def seq_ratio(rows: np.ndarray) -> float:
        return float(np.mean(np.exp(np.nansum(pi - mu, axis=1))[rows]))

    def kappa(rows: np.ndarray) -> Value:
        delta = (pi - mu)[rows]
        if not np.nansum(delta**2):
            return np.nan if np.any(delta[~np.isnan(delta)]) else None
        return float(-2 * np.nanmean(delta) / np.nanmean(delta**2))

    everything = np.ones(len(mu), dtype=bool)
    result: dict[str, Value] = {
        "ratio_mean": token_ratio(everything),
        "ratio_mean_seq": seq_ratio(everything),
        "kappa": kappa(everything),
        "variance_ratio": _variance_ratio(pi - mu),
    }
    with np.errstate(invalid="ignore", divide="ignore"):
        for name, formula in (("ratio_mean_z", token_ratio), ("ratio_mean_seq_z", seq_ratio)):
            error = jackknife(formula, groups, 1e-6)
            result[name] = None if error is None else (formula(everything) - 1) / error
        squares = (pi - mu) ** 2
        left = min(np.nansum(squares[groups != group]) for group in np.unique(groups))
        if left > LEAST_SPREAD * np.nansum(squares):
            result["kappa_se"] = jackknife(kappa, groups, 1e-6)
        else:
            result["kappa_se"] = np.nan if left else None
    return result


def _variance_ratio(delta: np.ndarray) -> Value:
    mean = np.nanmean(delta)
    of_tokens = np.nansum((delta - mean) ** 2)
    if not of_tokens > LEAST_SPREAD**2 * np.nansum(delta**2):
        return np.nan
    return float(np.sum(np.nansum(delta - mean, axis=1) ** 2) / of_tokens)


def jackknife(formula: Callable[[np.ndarray], float], groups: np.ndarray, least: float) -> Value:
    """Return the jackknife standard error over groups of rows; NaN below `least`, relative."""
    names = np.unique(groups)
    if len(names) < 2:
        return None
    values = np.array([formula(groups != name) for name in names])
    error = float(np.sqrt((len(names) - 1) * np.mean((values - values.mean()) ** 2)))
    return error if error > least * np.max(np.abs(values)) else np.nan


def pareto_k_hat(log_ratio: np.ndarray) -> Value:
    """Return arviz-stats' k-hat (psislw takes negated log weights); NaN if the tail is tied."""
    size = int(min(len(log_ratio) / 5, 3 * np.sqrt(len(log_ratio))))
    if size < 5:
        return None
    tail = np.sort(log_ratio)[-size - 1 :]
    if tail[1] - tail[0] < 1e-6:
        return np.nan
    return float(array_stats.psislw(-log_ratio)[1])
