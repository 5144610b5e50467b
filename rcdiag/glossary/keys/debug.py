"""Keys of verl's debug metrics: rcdiag has them as metrics. Source: reference/verl.md 5."""

from __future__ import annotations

from rcdiag.glossary.generations import VERL
from rcdiag.glossary.keys.base import Key

_WHERE = "of the mask before rejection; absent in bypass mode"
_PROBS = "|exp(old log-prob) - exp(rollout log-prob)|"


def _key(what: str, formula: str, metric: str, healthy: str = "ideal 0") -> Key:
    return Key(what=what, formula=formula, of={VERL: _WHERE}, healthy=healthy, see=(metric,))


DEBUG: dict[str, Key] = {
    "rollout_probs_diff_mean": _key(
        "Mean difference of probabilities; verl's docstring says log-probs.",
        f"E[{_PROBS}] over tokens",
        "prob_diff_mean",
        "ideal 0; verl's FAQ: below 0.005 normal, above 0.01 a precision problem",
    ),
    "rollout_probs_diff_max": _key(
        "Largest difference of probabilities.", f"max {_PROBS} over tokens", "prob_diff_max"
    ),
    "rollout_probs_diff_std": _key(
        "Standard deviation of the difference of probabilities, unbiased.",
        f"std (n - 1) of {_PROBS} over tokens",
        "prob_diff_std",
    ),
    "rollout_actor_probs_pearson_corr": _key(
        "Correlation of probabilities; inflated where most are near 0 or 1.",
        "Pearson correlation of exp(old log-prob) and exp(rollout log-prob) over tokens",
        "prob_pearson",
        "ideal 1",
    ),
}
