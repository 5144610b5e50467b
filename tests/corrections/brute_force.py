"""Reference implementation of verl 0.7.0 and 0.9 in loops over tokens: mask and weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, log
from statistics import fmean
from typing import Any

from tests.corrections.builders import Padded

Config = dict[str, Any]
Row = list[float]  # log-ratios of a sequence's unmasked tokens


@dataclass
class Corrected:
    """One sequence after the correction."""

    ratios: Row
    kept: list[bool]
    weights: Row  # of all tokens, rejected ones included
    reward: float
    group: int


def rows_of(batch: Padded) -> list[tuple[int, Row]]:
    """Yield number and log-ratios of every row that has a token."""
    result = []
    for row in range(len(batch)):
        values = [
            float(batch.old[row, at] - batch.rollout[row, at])
            for at in range(batch.mask.shape[1])
            if batch.mask[row, at]
        ]
        result += [(row, values)] if values else []
    return result


def clamp(value: float) -> float:
    return min(max(value, -20.0), 20.0)


def k_of(which: str, value: float) -> float:
    value = clamp(value)
    return {"k1": -value, "k2": value * value / 2.0, "k3": exp(value) - 1.0 - value}[which]


def statistic(option: str, row: Row) -> Row:
    """Return the statistic of every token; a sequence's value is repeated at its tokens."""
    if option in ("token", "sequence", "geometric"):
        levels = {"token": row, "sequence": [sum(row)], "geometric": [fmean(row)]}
        values = [exp(clamp(value)) for value in levels[option]]
    else:
        level, _, which = option.rpartition("_")
        values = [k_of(which, value) for value in row]
        reduce = {"token": list, "seq_sum": sum, "seq_mean": fmean, "seq_max": max}[level]
        reduced: Any = reduce(values)  # type: ignore[operator]
        values = reduced if level == "token" else [reduced]
    return values if len(values) == len(row) else values * len(row)


def criteria(config: Config) -> list[tuple[str, float, float]]:
    """Yield statistic, lower and upper bound of each option."""
    names, bounds = config["rollout_rs"], config["rollout_rs_threshold"]
    if names is None:
        return []
    if "rollout_rs_threshold_lower" in config:
        lower = config["rollout_rs_threshold_lower"]
        return [(names, 1.0 / bounds if lower is None else lower, bounds)]
    options, texts = names.split(","), bounds.split(",")
    texts = texts * len(options) if len(texts) == 1 else texts
    result = []
    for option, text in zip(options, texts, strict=True):
        ends = [float(item) for item in text.split("_")]
        if option.endswith("k1"):
            result.append(
                (option, log(ends[0] if len(ends) == 2 else 1.0 / ends[0]), log(ends[-1]))
            )
        else:
            result.append((option, -inf, ends[0]))
    return result


def kept_tokens(config: Config, row: Row) -> list[bool]:
    kept = [True] * len(row)
    for option, lower, upper in criteria(config):
        values = statistic(option, row)
        kept = [
            before and lower <= value <= upper for before, value in zip(kept, values, strict=True)
        ]
    veto = config.get("rollout_token_veto_threshold")
    if veto is not None and min(row) < log(veto):
        kept = [False] * len(row)
    return kept


def weights_of(config: Config, row: Row) -> Row:
    """Return the weights before batch normalisation; 1 without weights."""
    level, threshold = config["rollout_is"], config["rollout_is_threshold"]
    if level is None or threshold is None:
        return [1.0] * len(row)
    raw = statistic(level, row)
    if isinstance(threshold, str) and "_" in threshold:
        lower, upper = map(float, threshold.split("_"))
        return [value if lower <= value <= upper else 0.0 for value in raw]
    return [min(value, float(threshold)) for value in raw]


def corrected(config: Config, batch: Padded) -> list[Corrected]:
    result = []
    for number, row in rows_of(batch):
        kept, weights = kept_tokens(config, row), weights_of(config, row)
        assert batch.reward is not None
        assert batch.group is not None
        reward, group = float(batch.reward[number]), int(batch.group[number])
        ratios = [exp(value) if value < 700.0 else inf for value in row]
        result.append(Corrected(ratios, kept, weights, reward, group))
    return result
