"""Advantages of the tokens of an update: recorded, or computed from rewards and prompt groups."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError, mapping_setting, setting
from rcdiag.losses import ADVANTAGES
from rcdiag.table.column_names import meanings_of
from rcdiag.table.token_batch import TokenBatch
from rcdiag.table.trajectories import Trajectories, segment_sum

Array = NDArray[np.float64]
COLUMN = "column"


def advantage_source(source: str | None, columns: Collection[str]) -> str:
    """Return the source of advantages: `source`, else the column if there is one, else GRPO."""
    recorded = "advantage" in columns or "advantages" in columns
    if source == COLUMN and not recorded:
        raise RcdiagError(
            f"{setting('advantage', COLUMN)}: the table has neither `advantage` nor `advantages`",
            hint=f"{setting('advantage', 'grpo')} computes them from `reward` and `group_id`",
        )
    if source is not None:
        return source if source == COLUMN else ADVANTAGES.find(source, "advantage").name
    if recorded:
        return COLUMN
    if "reward" in columns:
        return "grpo"
    likely = next((name for name in columns if "reward" in meanings_of(name)), None)
    raise RcdiagError(
        "the table has neither advantages nor rewards: there is no loss to replay",
        hint=f"if `{likely}` is the reward: "
        + mapping_setting("columns", {"reward": likely}, "--column")
        if likely
        else "record `reward` (and `group_id`), or `advantage`",
    )


def formula_of(source: str) -> str:
    """Return the formula for advantages that must be computed: GRPO if the source is the column."""
    return "grpo" if source == COLUMN else source


def recorded_advantages(tokens: TokenBatch) -> Array:
    """Return the recorded advantage of each token, [tokens]."""
    recorded = tokens.advantages
    if recorded is None:
        assert tokens.advantage is not None
        recorded = np.repeat(tokens.advantage, tokens.lengths)
    missing = int((~np.isfinite(recorded)).sum())
    if missing:
        raise RcdiagError(
            f"{missing:,} unmasked tokens have no finite advantage",
            hint=f"fill the column, or compute it: {setting('advantage', 'grpo')}",
        )
    return recorded


def advantages_from_rewards(
    source: str, parts: Sequence[Trajectories], rows: Sequence[NDArray[np.bool_]]
) -> Array:
    """Return the advantage of each sampled token by the formula `source`, [tokens].

    `rows` flags the rows of the update in each part. Rewards of rows without a sampled token count
    in the baseline of their prompt group: trainers reward a response before they mask it, for
    example one that was cut at the length limit.
    """
    rewards, groups, counts = [], [], []
    for part, chosen in zip(parts, rows, strict=True):
        unknown = np.full(len(part), np.nan)
        rewards.append((unknown if part.reward is None else part.reward)[chosen])
        groups.append(part.groups[chosen])
        counts.append(part.sampled_lengths[chosen])
    reward, group, lengths = (
        np.concatenate(rewards),
        np.concatenate(groups),
        np.concatenate(counts),
    )
    counted = (lengths > 0) | np.isfinite(reward)
    by_row = computed_advantages(source, reward[counted], group[counted], lengths[counted])
    return np.repeat(by_row, lengths[counted])


def computed_advantages(
    source: str, reward: Array, group: NDArray[Any], lengths: NDArray[np.int64]
) -> Array:
    """Return the advantage of each row by the formula `source`, [rows]."""
    missing = int((~np.isfinite(reward)).sum())
    if missing:
        raise RcdiagError(
            f"{missing:,} of {len(reward):,} rows have no finite reward to compute "
            f"{source} advantages from",
            hint="fill the column `reward`, or record `advantage` and take "
            f"{setting('advantage', COLUMN)}",
        )
    _, sizes = np.unique(group, return_counts=True)
    if ADVANTAGES[source].by_group and (sizes < 2).all():
        raise RcdiagError(
            f"every prompt group has one sequence, so that {source} has no baseline",
            hint="if prompts were sampled several times, record their ids as `group_id`; else take "
            f"{setting('advantage', 'reinforce++')}",
        )
    return ADVANTAGES[source](reward, group, lengths)


def without_rejected(tokens: TokenBatch, kept: NDArray[np.bool_], source: str) -> Array:
    """Return advantages with baselines of the kept sequences alone (verl #6362), [tokens]."""
    rows = segment_sum(kept.astype(np.int64), tokens.lengths) > 0
    advantages = np.zeros(len(tokens.lengths))
    if rows.any():
        part = (tokens.rewards[rows], tokens.cluster[rows], tokens.lengths[rows])
        advantages[rows] = ADVANTAGES[source](*part)
    return np.repeat(advantages, tokens.lengths)
