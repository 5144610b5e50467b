"""Upgrades result documents of earlier formats to the current names.

To add a field, give it a default and `Doc(added=True)`. To rename one, raise `FORMAT_VERSION` and
add a table here. A place is a path into the document, with `*` for every item of a list or
dictionary. Format 3 renamed values (verdicts, the answers of a sweep) and changed the meaning of
`expected`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rcdiag.results.base import FORMAT_VERSION

Names = Mapping[str, str]  # old -> new
Places = Mapping[str, Names]

_PRESET: Places = {
    "": {"weights": "weight_histogram"},
    "/denominator": {
        "which": "basis",
        "unit": "counted",
        "used": "divisor",
        "kept": "kept_count",
        "all": "full_count",
    },
    "/gradient": {
        "norm": "grad_norm",
        "bias": "squared_bias",
        "variance": "relative_variance",
        "top_share": "top_norm_share",
    },
    "/health": {"missing": "not_judged"},
    "/health/rules/*": {"said": "message"},
}
# Kind of result -> place -> names that changed from format 1 to format 2.
FROM_1: Mapping[str, Places] = {
    "score": {
        "": {"policies": "scoring"},
        "corrections/*": {"honest": "actual"},
        "steps/*/corrections/*": {"honest": "actual"},
        "figures": {"log_ratio": "log_ratio_histogram"},
        "figures/paths/*": {"tokens": "token_counts"},
        "worst_sequences/*": {"length": "num_tokens"},
    },
    "compare": {
        "": {"nearest": "nearest_policies"},
        "policies/*": {"about": "setup", "nearest": "may_be_nearest", "provenance": "scoring"},
        "triangulation": {
            "sampler": "sampler_policy",
            "engine": "engine_policy",
            "trainer": "trainer_policy",
            "verdict": "agreement",
        },
        "joined": {
            "rows": "table_rows",
            "joined": "common_samples",
            "missing": "missing_rows",
            "named": "left_out",
        },
    },
    "sweep": {
        "": {"num_groups": "num_groups_with_two"},
        "families/*": {"level": "scope"},
        "families/*/rows/*": {
            "ess_token": "ess_token_applied",
            "ess_seq": "ess_seq_applied",
            "variance": "weight_variance",
            "bias": "weight_distance",
        },
        "recommendation": {"configurations": "choice_yaml"},
        "recommendation/candidates/*": {"indistinguishable": "within_error_of_best"},
        "forecast/points/*": {"length": "response_length"},
        "forecast/held_out/*": {"sequences": "num_sequences", "length": "mean_length"},
    },
    "replay": {
        "": {"loss": "policy_loss"},
        "model": {"model": "checkpoint"},
        **{f"presets/*{place}": names for place, names in _PRESET.items()},
        **{f"steps/*/presets/*{place}": names for place, names in _PRESET.items()},
    },
}
RENAMED: Mapping[int, Mapping[str, Places]] = {
    1: FROM_1,
    2: {},
}  # format -> what the next one renamed

# Verdicts of formats 1 and 2 -> their current names.
VERDICTS = {
    "fine": "healthy",
    "correct": "correctable",
    "fix": "broken",
    "cannot-tell": "inconclusive",
}
# Answers of a sweep of formats 1 and 2 -> their current names.
ANSWERS = {
    "correct": "take",
    "do-not-correct": "no-correction",
    "cannot-judge": "cannot-distinguish",
}


def upgraded(document: Any, kind: str) -> Any:
    """Return a plain document of this or an earlier format in this format, as a copy."""
    for version in range(document["format_version"], FORMAT_VERSION):
        for place, names in RENAMED[version].get(kind, {}).items():
            document = renamed(document, place.split("/") if place else [], names)
    if document["format_version"] < 3:
        document = _without_expected(_with_present_words(document))
    return {**document, "format_version": FORMAT_VERSION}


def _without_expected(part: Any) -> Any:
    """Return a part without `expected`, which formats 1 and 2 computed from the mismatch."""
    if isinstance(part, dict):
        number = {"value", "level", "expected"} <= set(part)
        return {
            key: _without_expected(value)
            for key, value in part.items()
            if not (number and key == "expected")
        }
    return [_without_expected(each) for each in part] if isinstance(part, list) else part


def _with_present_words(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document of format 1 or 2 with the current names of verdicts and answers."""
    diagnosis, advice = document.get("diagnosis"), document.get("recommendation")
    if isinstance(diagnosis, dict):
        causes = diagnosis.get("causes")
        if isinstance(causes, list):
            causes = [_with_value(cause, "verdict", VERDICTS) for cause in causes]
            diagnosis = {**diagnosis, "causes": causes}
        document = {**document, "diagnosis": _with_value(diagnosis, "verdict", VERDICTS)}
    if isinstance(advice, dict):
        document = {**document, "recommendation": _with_value(advice, "answer", ANSWERS)}
    return document


def _with_value(part: Any, key: str, names: Names) -> Any:
    """Return a part with the current name as a key's value; anything unexpected stays."""
    if not isinstance(part, dict) or not isinstance(part.get(key), str):
        return part
    return {**part, key: names.get(part[key], part[key])}


def renamed(part: Any, place: list[str], names: Names) -> Any:
    """Rename the keys of the mapping at a path of a document; `*` in the path is every key or item.

    Anything unexpected stays as it is.
    """
    if not place:
        if not isinstance(part, dict):
            return part
        return {names.get(key, key): value for key, value in part.items()}
    first, *rest = place
    if isinstance(part, list):
        return [renamed(item, rest, names) for item in part] if first == "*" else part
    if not isinstance(part, dict):
        return part
    return {
        key: renamed(value, rest, names) if first in ("*", key) else value
        for key, value in part.items()
    }
