"""A table that was sampled from its behavior policy, and has a target policy with noisy logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.builders import write_table

FEW = ("--thresholds", 4)
ROWS, VOCABULARY = 80, 8


def sampled_table(path: Path, spread: float = 0.15) -> Path:
    """Write two responses per prompt; the target's logits are the behavior's plus noise."""
    random = np.random.default_rng(0)
    ids, behavior, target = [], [], []
    for length in random.integers(2, 24, ROWS):
        logits = random.normal(0.0, 1.0, (length, VOCABULARY))
        shifted = logits + random.normal(0.0, spread, logits.shape)
        logs = [
            item - np.log(np.exp(item).sum(axis=1, keepdims=True)) for item in (logits, shifted)
        ]
        drawn = [random.choice(VOCABULARY, p=np.exp(item)) for item in logs[0]]
        ids.append(drawn)
        behavior.append(logs[0][range(length), drawn].tolist())
        target.append(logs[1][range(length), drawn].tolist())
    return write_table(
        path,
        response_ids=ids,
        rollout_log_probs=behavior,
        old_log_probs=target,
        group_id=[row // 2 for row in range(ROWS)],
        reward=[float(np.mean(np.array(item) == 3)) for item in ids],
    )
