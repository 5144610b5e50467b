"""Metrics of a table recomputed from their definitions with only pyarrow and numpy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

COLUMNS = ("rollout_log_probs", "old_log_probs")
# Beyond these bounds two float64 computations may differ in nine digits.
LARGEST = 50.0
# Rounding may lift log-probs slightly above 0; rcdiag accepts no larger ones.
POSITIVE, FARTHEST = 1e-3, -1e12


def difference(path: Path, document: dict[str, Any]) -> str | None:
    """Describe the first difference of a score document from the table's metrics, or None."""
    if not document["target"]:
        return None  # one policy alone: no row has log-probs of the other
    names = pq.read_schema(path).names
    if any(name not in names for name in (*COLUMNS, "response_ids")):
        return None  # read under other names: the file's own names were damaged
    columns = [name for name in (*COLUMNS, "response_ids", "response_mask") if name in names]
    rows = pq.read_table(path, columns=columns).to_pylist()
    ratios: list[np.ndarray] = []
    sequences = tokens = left_out = 0
    for row in rows:
        if row[COLUMNS[0]] is None or row[COLUMNS[1]] is None:
            continue
        mask = np.array(row.get("response_mask") or [1] * len(row["response_ids"]), bool)
        kept = [
            [value for value, keep in zip(row[name], mask, strict=True) if keep] for name in COLUMNS
        ]
        behavior, target = (np.array(values, np.float64) for values in kept)
        if not len(behavior):
            continue
        sequences, tokens = sequences + 1, tokens + len(behavior)
        both = np.concatenate([behavior, target])
        if not ((both >= FARTHEST) & (both <= POSITIVE)).all():
            left_out += 1
        else:
            ratios.append(target - behavior)
    if (document["num_sequences"], document["num_tokens"]) != (sequences, tokens):
        return f"{sequences} sequences and {tokens} tokens"
    value = document["mismatch"]["k3_kl"]["value"]
    if 2 * left_out > sequences or not ratios:
        return None if value is None else f"k3_kl {value}, too few rows"
    log_ratio = np.concatenate(ratios)
    if np.abs(log_ratio).max() > LARGEST:
        return None
    expected = {
        "k1_kl": float(-log_ratio.mean()),
        "k2_kl": float((log_ratio**2).mean() / 2),
        "k3_kl": float((np.expm1(log_ratio) - log_ratio).mean()),
    }
    for name, own in expected.items():
        theirs = document["mismatch"][name]["value"]
        if theirs is None or not math.isclose(own, float(theirs), rel_tol=1e-7, abs_tol=1e-9):
            return f"{name}: {theirs}, by numpy {own}"
    return None
