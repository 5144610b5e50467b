"""Tokens for which two policies of a mixture-of-experts model chose different experts.

A token's experts are chosen when it is read, and that computation yields the next token's log-prob.
A token therefore counts as *rerouted* if the experts of any layer differ between the policies at
the token before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.statistics.clusters import ClusterSums, cluster_sums
from rcdiag.statistics.ratios import Array
from rcdiag.table.trajectories import Ragged, Trajectories, segment_sum

Flags = NDArray[np.bool_]

# Tokens from which the number of experts per layer is inferred, and the fewest that suffice.
MOST_COUNTED, LEAST_COUNTED = 1_000, 20


def experts_per_layer(lists: Ragged) -> int | None:
    """Infer how many experts a layer chooses from the lists of tokens, layer by layer.

    It is the largest chunk size at which no chunk of any list contains an expert twice: a router
    chooses distinct experts, and two layers sooner or later choose the same one. Layers without a
    router have 0 everywhere. None if too few tokens have a list.

    >>> lists = np.array([[0, 1, 1, 0], [2, 3, 0, 2]] * 20)
    >>> experts_per_layer(Ragged(lists.ravel(), np.arange(41) * 4))
    2
    """
    width = int(lists.lengths.max(initial=0))
    full = np.flatnonzero(lists.lengths == width)[:MOST_COUNTED]
    if not width or len(full) < LEAST_COUNTED:
        return None
    lines = lists.values[lists.offsets[full][:, None] + np.arange(width)]
    for size in range(width, 0, -1):
        if width % size:
            continue
        parts = np.sort(lines.reshape(len(full), -1, size), axis=2)
        twice = (np.diff(parts, axis=2) == 0).any(2) & parts.any(2)
        if not twice.any():
            return size
    return None


def rerouted_layers(one: Ragged, other: Ragged, top_k: int) -> tuple[Flags, Flags]:
    """Compare two policies' experts by token, ignoring their order within a layer.

    Returns where both are recorded, [tokens], and which layers differ, [tokens, layers]. If lists
    have different lengths, for different layers, they count as not recorded.
    """
    width = int(one.lengths.max(initial=0))
    known = (one.lengths == width) & (other.lengths == width) & (width > 0)
    at = np.flatnonzero(known)
    differ = np.zeros((len(known), width // top_k), np.bool_)
    sorted_lists = [
        np.sort(
            lists.values[lists.offsets[at][:, None] + np.arange(width)].reshape(len(at), -1, top_k),
            axis=2,
        )
        for lists in (one, other)
    ]
    differ[at] = (sorted_lists[0] != sorted_lists[1]).any(2)
    return known, differ


class RoutingSums(Struct, frozen=True):
    """Sums by cluster over sampled tokens; squares are those of log-ratios, nats^2.

    `routed` [clusters, 4 + layers] covers tokens at which both policies' experts are known: number
    of tokens, of rerouted tokens, squares of all, squares of the rerouted, and tokens rerouted in
    each layer; None if a policy's experts are not recorded. `replayed` has [clusters, 4] for each
    policy that used the behavior policy's experts: number of tokens, squares of the target's
    log-ratio, squares of its own, and response tokens that it read without recorded experts.
    """

    routed: ClusterSums | None
    replayed: dict[str, ClusterSums]


def routing_sums(
    rows: Trajectories, behavior: str, target: str, top_k: int | None, replays: Sequence[str]
) -> RoutingSums:
    """Sum the routing of some rows by cluster; without `top_k`, experts are not compared."""
    one, other = rows.log_probs[behavior], rows.log_probs[target]
    numbers = rows.mask & np.isfinite(one) & np.isfinite(other)
    log_ratio = np.where(numbers, other - one, 0.0)
    replayed = {}
    filled = rows.response_ids.lengths > 0
    for name in replays:
        unknown = rows.token_lists[f"{behavior}_routed_experts"].lengths == 0
        unknown[rows.response_ids.offsets[1:][filled] - 1] = False  # the last token is never read
        known = numbers & np.isfinite(rows.log_probs[name])
        own = np.where(known, rows.log_probs[name] - one, 0.0)
        squares = np.where(known, log_ratio, 0.0) ** 2
        replayed[name] = _by_cluster(rows, [known, squares, own**2, unknown])
    if top_k is None:
        return RoutingSums(None, replayed)
    experts = {name: rows.token_lists[f"{name}_routed_experts"] for name in (behavior, target)}
    recorded, differ = rerouted_layers(experts[behavior], experts[target], top_k)
    # The token before the first response token belongs to the prompt, whose experts are unknown.
    first = rows.response_ids.offsets[:-1][filled]
    known = numbers & _of_token_before(recorded, first)
    differ = _of_token_before(differ, first) & known[:, None]
    changed = differ.any(1)
    squares = np.where(known, log_ratio, 0.0) ** 2
    columns = [known, changed, squares, np.where(changed, squares, 0.0), *differ.T]
    return RoutingSums(_by_cluster(rows, columns), replayed)


def _of_token_before(values: Flags, first: NDArray[np.int64]) -> Flags:
    """Shift flags by one: each token gets those of the token before it, False at row starts."""
    moved = np.roll(values, 1, axis=0)
    moved[first] = False
    return moved


def _by_cluster(rows: Trajectories, columns: Sequence[Array | Flags]) -> ClusterSums:
    """Sum numbers [tokens] by cluster: [clusters, columns]."""
    lengths = rows.response_ids.lengths
    sums = [segment_sum(column.astype(np.float64), lengths) for column in columns]
    return cluster_sums(rows.groups, np.stack(sums, axis=1))
