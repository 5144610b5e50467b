"""The log of a verl run, computed in plain loops from the sample table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import exp, sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from tests.corrections.brute_force import clamp, kept_tokens, weights_of

ROLLOUTS = Path(__file__).parent.parent.parent / "sample_data" / "rollouts.parquet"
TOKEN_IS = {"rollout_is": "token", "rollout_is_threshold": 2.0, "rollout_rs": None}
TOKEN_IS |= {"rollout_rs_threshold": None}
SEQ_IS_RS = {"rollout_is": "sequence", "rollout_is_threshold": 2.0, "rollout_rs": "seq_sum_k1"}
SEQ_IS_RS |= {"rollout_rs_threshold": "0.5_2.0"}

Row = tuple[list[float], list[float]]  # rollout and old log-probs of the sampled tokens
Numbers = dict[str, float]
PREFIX = "rollout_corr/"


def rows_of_table(path: Path = ROLLOUTS, steps: Sequence[int] = (0, 1)) -> dict[int, list[Row]]:
    """Return the sampled tokens of every row, by training step."""
    names = ["step", "rollout_log_probs", "old_log_probs", "response_mask"]
    have = pq.read_schema(path).names
    table = pq.read_table(path, columns=[name for name in names if name in have])
    rows: dict[int, list[Row]] = {step: [] for step in steps}
    for one in table.to_pylist():
        if one["step"] in rows:
            mask = one.get("response_mask") or [1] * len(one["old_log_probs"])
            rollout, old = (
                [value for value, keep in zip(one[name], mask, strict=True) if keep]
                for name in ("rollout_log_probs", "old_log_probs")
            )
            rows[one["step"]].append((rollout, old))
    return rows


def differences(row: Row) -> list[float]:
    return [old - rollout for rollout, old in zip(*row, strict=True)]


def policies(rows: Sequence[Row]) -> Numbers:
    """Compute verl's off-policy metrics (0.9.1, compute_offpolicy_metrics) in float64."""
    every = [value for row in rows for value in differences(row)]
    means = [fmean(differences(row)) for row in rows]
    return {
        "kl": -fmean(every),
        "k3_kl": fmean(exp(value) - value - 1.0 for value in every),
        "training_ppl": fmean(exp(-fmean(old)) for _, old in rows),
        "rollout_ppl": fmean(exp(-fmean(rollout)) for rollout, _ in rows),
        "log_ppl_diff": -fmean(means),
        "log_ppl_abs_diff": fmean(abs(value) for value in means),
        "ppl_ratio": fmean(exp(-value) for value in means),
        "chi2_token": fmean(exp(clamp(value)) ** 2 for value in every) - 1.0,
        "chi2_seq": fmean(exp(2 * clamp(sum(differences(row)))) for row in rows) - 1.0,
    }


def weights(rows: Sequence[Row], config: Mapping[str, Any], *, raw: bool = False) -> Numbers:
    """Compute some weight metrics of verl 0.9; `raw` weights are those of versions up to 0.7.1."""
    bounds = {**config, "rollout_is_threshold": 1e9} if raw else dict(config)
    by_row = [weights_of(bounds, differences(row)) for row in rows]
    every = [value for row in by_row for value in row]
    means = [fmean(row) for row in by_row]
    mean = fmean(means)
    return {
        "rollout_is_mean": fmean(every),
        "rollout_is_seq_mean": mean,
        "rollout_is_seq_std": sqrt(sum((m - mean) ** 2 for m in means) / (len(means) - 1)),
        "rollout_is_seq_max": max(means),
        "rollout_is_seq_min": min(means),
    }


def rejected(rows: Sequence[Row], config: Mapping[str, Any]) -> Numbers:
    kept = [kept_tokens(dict(config), differences(row)) for row in rows]
    every = [value for row in kept for value in row]
    return {
        "rollout_rs_masked_fraction": 1.0 - fmean(every),
        "rollout_rs_seq_masked_fraction": fmean(not all(row) for row in kept),
    }


def token_is(rows: Sequence[Row]) -> Numbers:
    """Return the log of `decoupled_token_is`."""
    return {**weights(rows, TOKEN_IS), **policies(rows)}


def seq_is_rs(rows: Sequence[Row]) -> Numbers:
    """Return the log of `decoupled_seq_is_rs`."""
    return {**weights(rows, SEQ_IS_RS), **rejected(rows, SEQ_IS_RS), **policies(rows)}


def after_rejection(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that `decoupled_seq_is_rs` keeps; it rejects whole sequences only."""
    return [row for row in rows if all(kept_tokens(SEQ_IS_RS, differences(row)))]


def micro_batches(numbers: Callable[[Sequence[Row]], Numbers], size: int) -> Callable[..., Numbers]:
    """Return means over micro-batches of `size` consecutive rows."""

    def means(rows: Sequence[Row]) -> Numbers:
        parts = [numbers(rows[at : at + size]) for at in range(0, len(rows), size)]
        return {key: fmean(part[key] for part in parts) for key in parts[0]}

    return means


def in_float32(rows: Sequence[Row]) -> Numbers:
    """Compute verl's off-policy metrics in float32, as its tensors do."""
    flat = np.concatenate([np.subtract(old, rollout, dtype=np.float32) for rollout, old in rows])
    ratios = np.exp(flat)
    return {
        "kl": float(-flat.mean(dtype=np.float32)),
        "k3_kl": float((ratios - flat - np.float32(1.0)).mean(dtype=np.float32)),
        "chi2_token": float(np.square(ratios).mean(dtype=np.float32) - np.float32(1.0)),
    }


def write_log(path: Path, steps: Mapping[int, Numbers], prefix: str = PREFIX) -> Path:
    """Write a file of verl's file logger: one line per step, with a key unknown to rcdiag."""
    lines = [
        {"step": step, "data": {**{prefix + key: v for key, v in row.items()}, "actor/lr": 1e-6}}
        for step, row in steps.items()
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
