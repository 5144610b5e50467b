"""Result documents of earlier formats get the names of the present format here.

To rename a field: raise `FORMAT_VERSION` and add a table here. A place is a path into the document,
with `*` for every item of a list or dictionary. Format 3 renamed values: verdicts, and the
answers of a sweep.
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

# Verdicts of formats 1 and 2 -> their present words.
VERDICTS = {
    "fine": "healthy",
    "correct": "correctable",
    "fix": "broken",
    "cannot-tell": "inconclusive",
}
# Answers of a sweep of formats 1 and 2 -> their present words.
ANSWERS = {
    "correct": "take",
    "do-not-correct": "no-correction",
    "cannot-judge": "cannot-distinguish",
}


def upgraded(document: Any, kind: str) -> Any:
    """Bring a plain document of this or an earlier format to this one; the given one stays."""
    for version in range(document["format_version"], FORMAT_VERSION):
        for place, names in RENAMED[version].get(kind, {}).items():
            document = renamed(document, place.split("/") if place else [], names)
    if document["format_version"] < 3 and isinstance(document.get("diagnosis"), dict):
        document = {**document, "diagnosis": _with_present_verdicts(document["diagnosis"])}
    if document["format_version"] < 3 and isinstance(document.get("recommendation"), dict):
        advice = document["recommendation"]
        answer = advice.get("answer")
        if isinstance(answer, str):
            present = {**advice, "answer": ANSWERS.get(answer, answer)}
            document = {**document, "recommendation": present}
    return {**document, "format_version": FORMAT_VERSION}


def _with_present_verdicts(diagnosis: dict[str, Any]) -> dict[str, Any]:
    """Return a diagnosis whose verdict, and that of each cause, is a present word."""
    causes = diagnosis.get("causes")
    if isinstance(causes, list):
        diagnosis = {**diagnosis, "causes": [_with_present_verdict(cause) for cause in causes]}
    present: dict[str, Any] = _with_present_verdict(diagnosis)
    return present


def _with_present_verdict(part: Any) -> Any:
    if not isinstance(part, dict) or part.get("verdict") not in VERDICTS:
        return part
    return {**part, "verdict": VERDICTS[part["verdict"]]}


def renamed(part: Any, place: list[str], names: Names) -> Any:
    """Rename keys at a place of a part; whatever is not as expected stays as it is."""
    if not place:
        return _with_names(part, names)
    first, *rest = place
    if isinstance(part, list):
        return [renamed(item, rest, names) for item in part] if first == "*" else part
    if not isinstance(part, dict):
        return part
    return {
        key: renamed(value, rest, names) if first in ("*", key) else value
        for key, value in part.items()
    }


def _with_names(part: Any, names: Names) -> Any:
    if not isinstance(part, dict):
        return part
    return {names.get(key, key): value for key, value in part.items()}
