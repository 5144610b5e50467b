"""Forty tables with their verdict and first cause, the same in every command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from rcdiag.diagnosis.case import Case
from tests.diagnosis.tables import (
    banned,
    bfloat16,
    capped,
    divided,
    drifted,
    first_tokens_differ,
    made,
    noisy,
    plain,
    presence_penalty,
    repetition_penalty,
    rerouted,
    shifted,
    swapped,
    taken_twice,
    tempered,
    top_p,
    with_tool_turns,
    with_values,
    without_shard,
    write,
)

ROWS = 64
EVERY = np.arange(ROWS)
STEPS = EVERY // 16


def small(*laws: Any, **options: Any) -> Case:
    return made(*laws, **{"rows": ROWS, "length": 30, **options})


def stored(change: Callable[[np.ndarray], np.ndarray], policy: str = "rollout") -> Case:
    return with_values(small(), policy, change)


def with_nan(values: np.ndarray) -> np.ndarray:
    values[::50] = np.nan
    return values


def with_zeros(values: np.ndarray) -> np.ndarray:
    values[::7] = 0.0
    return values


def both(change: Callable[[np.ndarray], np.ndarray]) -> Case:
    return with_values(stored(change), "old", change)


def stated(case: Case, **policies: dict[str, Any]) -> Case:
    """Add facts about the policies to the file's metadata."""
    return replace(case, metadata={"policies": policies})


@dataclass(frozen=True)
class Diagnosed:
    """A table with its expected verdict and first cause."""

    verdict: str
    slug: str
    case: Callable[[], Case]


TABLES: dict[str, Diagnosed] = {
    name: Diagnosed(*values)
    for name, values in {
        "healthy": ("healthy", "engine-noise", small),
        "drift": ("correctable", "weights-differ", lambda: small(plain, drifted(0.1))),
        "temperature": (
            "broken",
            "temperature-raw-recorded",
            lambda: small(tempered(0.6), recorded=plain, temperature=np.full(ROWS, 0.6)),
        ),
        "top-p": ("broken", "truncated-law", lambda: small(top_p(0.8), noisy(0.01))),
        "prompts": ("broken", "context-differs", lambda: small(plain, first_tokens_differ(1.0))),
        "shift": ("broken", "shift-by-one", lambda: shifted(small(), "old", EVERY >= 0)),
        "some NaN": ("broken", "nan-log-probs", lambda: stored(with_nan)),
        "all NaN": ("broken", "nan-log-probs", lambda: stored(lambda v: v * np.nan)),
        "both NaN": ("broken", "nan-log-probs", lambda: both(lambda v: v * np.nan)),
        "infinite": (
            "broken",
            "nan-log-probs",
            lambda: stored(lambda v: np.full_like(v, -np.inf)),
        ),
        "positive": ("broken", "sign-flipped", lambda: stored(np.negative)),
        "constant": ("broken", "sentinel", lambda: stored(lambda v: np.full_like(v, -1.0))),
        "copy": (
            "inconclusive",
            "columns-identical",
            lambda: small().with_log_probs("old", small().log_probs["rollout"]),
        ),
        "steps": ("healthy", "engine-noise", lambda: small(step=STEPS)),
        "loud noise": ("correctable", "engine-noise", lambda: small(noise=0.05)),
        "louder noise": ("correctable", "forwards-differ", lambda: small(noise=0.15)),
        "experts": ("correctable", "forwards-differ", lambda: small(plain, rerouted(1.0, 0.05))),
        "short rows": ("healthy", "engine-noise", lambda: small(length=8)),
        "long rows": ("healthy", "engine-noise", lambda: small(length=120, noise=0.003)),
        "few rows": ("inconclusive", "engine-noise", lambda: small(rows=2, length=20)),
        "large drift": ("correctable", "weights-differ", lambda: small(plain, drifted(0.4))),
        "no temperature": (
            "broken",
            "trainer-without-temperature",
            lambda: small(tempered(0.7), plain, temperature=np.full(ROWS, 0.7)),
        ),
        "divided": ("broken", "log-probs-divided", lambda: small(tempered(0.7), divided(0.7))),
        "presence": ("broken", "penalty", lambda: small(presence_penalty(1.0), noisy(0.01))),
        "repetition": ("broken", "penalty", lambda: small(repetition_penalty(1.3), noisy(0.01))),
        "banned": ("broken", "logit-bias", lambda: small(banned([5, 9, 17, 33]), noisy(0.01))),
        "capped": (
            "broken",
            "trainer-without-temperature",
            lambda: small(plain, capped(3.0)),
        ),
        "shard": ("broken", "vocab-shard-wrong", lambda: small(plain, without_shard(0, 60))),
        "some shifted": (
            "broken",
            "shift-some-rows",
            lambda: shifted(small(), "old", EVERY % 3 == 0),
        ),
        "after a tool": (
            "broken",
            "shift-after-tool",
            lambda: shifted(with_tool_turns(small(length=60), 0.0), "old", EVERY >= 0, after=28),
        ),
        "swapped": ("broken", "rows-swapped", lambda: swapped(small(), "old", ROWS // 2)),
        "twice": ("broken", "duplicated-rows", lambda: taken_twice(small(), 16)),
        "zeros": ("broken", "zero-placeholder", lambda: stored(with_zeros)),
        "floor": ("broken", "floor-clip", lambda: stored(lambda v: np.maximum(v, -2.0))),
        "bfloat16": ("healthy", "stored-bfloat16", lambda: stored(bfloat16)),
        "two decimals": ("healthy", "stored-rounded", lambda: stored(lambda v: np.round(v, 2))),
        "base 2": ("broken", "log-base", lambda: stored(lambda v: v / np.log(2.0))),
        "probabilities": ("broken", "probabilities-stored", lambda: both(np.exp)),
        "running sums": ("broken", "cumulative-stored", lambda: summed(small(), "old")),
        "fp8": (
            "correctable",
            "fp8-weights",
            lambda: stated(
                small(plain, noisy(0.08)),
                rollout={"backend": "vllm", "engine_options": {"quantization": "fp8"}},
                old={"backend": "hf"},
            ),
        ),
        "last step": (
            "inconclusive",  # 48 rows of it do not tell whether weights are valid
            "weights-never-synced",
            lambda: small(plain, late(drifted(0.3), 48), step=STEPS),
        ),
        "no signs": ("broken", "sign-flipped", lambda: both(np.negative)),
        "nothing but zeros": ("broken", "zero-placeholder", lambda: both(np.zeros_like)),
        "sums on both sides": (
            "broken",
            "cumulative-stored",
            lambda: summed(summed(small(), "old"), "rollout"),
        ),
    }.items()
}


def summed(case: Case, policy: str) -> Case:
    """Store cumulative sums of each row."""
    values = case.log_probs[policy].copy()
    for start, length in zip(case.start, case.lengths, strict=True):
        values[start : start + length] = np.cumsum(values[start : start + length])
    return case.with_log_probs(policy, values)


def late(law: Any, first_row: int) -> Any:
    """Use a distribution in the rows from one on, and engine noise in earlier rows."""
    before = noisy(0.01)

    def mixed(logits: np.ndarray, state: Any) -> np.ndarray:
        made = before(logits, state)
        made[first_row:] = law(logits, state)[first_row:]
        return made

    return mixed


def written(name: str, folder: Path, *, prompts: bool = False) -> Path:
    """Write one of the tables with advantages, and with prompts for scoring."""
    case = TABLES[name].case()
    columns: dict[str, Any] = {
        "advantage": np.random.default_rng(0).standard_normal(len(case.lengths))
    }
    if prompts:
        random = np.random.default_rng(1)
        prompts = random.integers(2, 200, (len(case.lengths), 10)).tolist()
        columns["prompt_ids"] = pa.array(prompts, pa.list_(pa.int32()))
    return write(case, folder / f"{name.replace(' ', '-')}.parquet", **columns)
