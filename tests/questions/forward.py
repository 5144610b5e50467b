"""A trainer's forward pass with two fused kernels, one of them wrong, that scores tokens.

The model is made up: a token's logits are those of the token before it, a rotary term of its
position, and a bias. The fused rotary kernel turns by another angle. Called as the program of a
`command` policy: forward.py [--no-rope-fusion] [--no-bias-fusion] INPUT OUTPUT
"""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

Logits = NDArray[np.float64]
VOCABULARY, WIDTH = 64, 16
DRAW = np.random.default_rng(1801)
BEFORE = DRAW.normal(0.0, 1.0, (VOCABULARY, WIDTH))
HEAD = DRAW.normal(0.0, 0.5, (WIDTH, VOCABULARY))
BIAS = DRAW.normal(0.0, 0.5, VOCABULARY)


def logits(before: NDArray[np.int64], position: NDArray[np.int64], angle: float) -> Logits:
    """Return the logits of the tokens that follow `before` at a position, [tokens, vocabulary]."""
    left, right = np.split(BEFORE[before], 2, axis=1)
    turn = angle * position[:, None] / (1 + np.arange(WIDTH // 2))
    sine, cosine = np.sin(turn), np.cos(turn)
    turned = np.concatenate([left * cosine - right * sine, left * sine + right * cosine], axis=1)
    scores: Logits = turned @ HEAD + BIAS
    return scores


def log_probs(prompt: list[int], response: list[int], *, fused_rope: bool) -> NDArray[np.float64]:
    """Return the log-prob of each response token, given the token before it and its position."""
    ids = np.array([*prompt, *response])
    places = np.arange(len(prompt), len(ids))
    made = logits(ids[places - 1], places, 0.15 if fused_rope else 0.1)
    made -= np.logaddexp.reduce(made, axis=1, keepdims=True)
    return made[np.arange(len(places)), ids[places]]


def main() -> None:
    """Score the rows of the input; the fused bias adds the same numbers as the plain one."""
    *options, source, target = sys.argv[1:]
    rows = pq.read_table(source).to_pylist()
    scores = [
        log_probs(
            row["prompt_ids"], row["response_ids"], fused_rope="--no-rope-fusion" not in options
        )
        for row in rows
    ]
    pq.write_table(pa.table({"row": [row["row"] for row in rows], "log_probs": scores}), target)


if __name__ == "__main__":
    main()
