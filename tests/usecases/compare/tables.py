"""Tables of several policies with scoring metadata, and reference numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from rcdiag.diagnosis.guides import judged_metric
from rcdiag.results import MetricValue
from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.moments import Moments, moments_of
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.suite import Suite, SuiteState
from rcdiag.table.token_batch import sampled_tokens
from rcdiag.table.trajectories import Ragged, Trajectories
from tests.builders import Lists, arrow_table, flat, ids_like
from tests.statistics.profile_loops import interval_of_quotient


def about(
    name: str, backend: str, dtype: str = "float32", *, model: str = "m", **options: Any
) -> dict[str, Any]:
    """Return the metadata that scoring stores for a policy."""
    return {"name": name, "backend": backend, "dtype": dtype, "model": model, "options": options}


def write_policies(
    path: Path,
    policies: Mapping[str, Lists],
    scored: Sequence[dict[str, Any]] = (),
    *,
    rows_per_group: int | None = None,
    **columns: object,
) -> Path:
    """Write a table of policies; the `scored` ones have file metadata."""
    lists = {f"{name}_log_probs": values for name, values in policies.items()}
    columns.setdefault("response_ids", ids_like(next(iter(policies.values()))))
    table = arrow_table(**columns, **lists)
    if scored:
        noted = {"format_version": 1, "policies": {item["name"]: item for item in scored}}
        table = table.replace_schema_metadata({"rcdiag": json.dumps(noted)})
    pq.write_table(table, path, row_group_size=rows_per_group)
    return path


def ragged(lengths: Sequence[int] | np.ndarray, values: np.ndarray) -> list[list[float]]:
    """Split flat values into rows of these lengths."""
    return [item.tolist() for item in np.split(values, np.cumsum(lengths)[:-1])]


def shifted(base: Lists, noise: float, seed: int) -> list[list[float]]:
    """Add independent normal noise to log-probs, capped at 0."""
    random = np.random.default_rng(seed)
    return [np.minimum(row + noise * random.normal(size=len(row)), 0.0).tolist() for row in base]


def base_log_probs(rows: int, seed: int = 0, mean_length: int = 12) -> list[list[float]]:
    """Draw log-probs far enough below 0 that small noise is not capped."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 2 * mean_length, rows)
    return ragged(lengths, -1.0 - random.exponential(2.0, lengths.sum()))


def rows_of(
    policies: Mapping[str, Lists],
    mask: Lists | None = None,
    group: Sequence[int] | None = None,
    first_row: int = 0,
) -> Trajectories:
    some = next(iter(policies.values()))
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in some])]).astype(np.int64)
    return Trajectories(
        first_row=first_row,
        response_ids=Ragged(np.arange(offsets[-1], dtype=np.int32), offsets),
        mask=np.ones(offsets[-1], dtype=bool) if mask is None else flat(mask).astype(bool),
        log_probs={name: flat(values) for name, values in policies.items()},
        group=None if group is None else np.array(group, dtype=np.uint64),
    )


def known(value: MetricValue) -> float:
    """Return the value of a metric, which must not be None."""
    assert value.value is not None
    return value.value


def moments(policies: Mapping[str, Lists], **rows: Any) -> Moments:
    return moments_of(sampled_tokens(rows_of(policies, **rows), list(policies)))


def distances(policies: Mapping[str, Lists], **rows: Any) -> dict[tuple[str, str], MetricValue]:
    """The k2 of every ordered pair, as the metric k2_kl has it."""
    batch = sampled_tokens(rows_of(policies, **rows), list(policies))
    return {
        pair: judged_metric(METRICS["k2_kl"], Suite(SuiteState.of(PolicyPair(batch, *pair))))
        for pair in permutations(policies, 2)
    }


def robust(
    numerators: np.ndarray, denominators: np.ndarray, cluster: np.ndarray
) -> tuple[float, float, float]:
    """Compute value and 95% interval of a quotient of sums, by plain loops over clusters."""
    of_clusters = [
        (float(numerators[cluster == name].sum()), float(denominators[cluster == name].sum()))
        for name in np.unique(cluster)
    ]
    return numerators.sum() / denominators.sum(), *interval_of_quotient(of_clusters)
