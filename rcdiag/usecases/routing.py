"""Compares the routing of a mixture of experts, in a pass over a table's columns of experts."""

from __future__ import annotations

from collections.abc import Iterator

from rcdiag.results.routing import ExpertChanges, ReplayedExperts, Routing
from rcdiag.statistics.clusters import ClusterSums
from rcdiag.statistics.merging import merge
from rcdiag.statistics.moments import mean
from rcdiag.statistics.routing import RoutingSums, experts_per_layer, routing_sums
from rcdiag.table.arrow import lengths_of
from rcdiag.table.stream import columns_needed, decode
from rcdiag.table.table import Table
from rcdiag.table.trajectories import Trajectories

TOKENS_AT_ONCE = 20_000  # some 200 MB where a token has 400 experts


def routing_of(dump: Table, behavior: str, target: str) -> Routing | None:
    """Compare the experts of two policies, and the mismatch that replayed experts leave.

    None if the table has neither the experts of both policies nor a policy that was scored with
    those of the behavior policy.
    """
    lists = [f"{name}_routed_experts" for name in (behavior, target)]
    compared = all(name in dump.columns for name in lists)
    replays = []  # policies that were scored with the behavior policy's experts
    about = dump.metadata.get("policies", {})
    for name in dump.policies if lists[0] in dump.columns else ():
        options = about.get(name, {}).get("options") or {}
        if name not in (behavior, target) and options.get("experts") == behavior:
            replays.append(name)
    if not compared and not replays:
        return None
    parts: list[RoutingSums] = []
    top_k: int | None = None
    read = lists if compared else lists[:1]
    for rows in _pieces(dump, [behavior, target, *replays], read):
        if compared and top_k is None:
            top_k = experts_per_layer(rows.token_lists[lists[0]])
        parts.append(routing_sums(rows, behavior, target, top_k, replays))
    if not parts:
        return None
    sums = merge(parts)
    changes = None
    if sums.routed is not None and top_k is not None:
        changes = _changes(sums.routed, top_k)
    if changes is None and not replays:
        return None
    replayed = {}
    for name, of_policy in sums.replayed.items():
        tokens, own, with_experts, unknown = of_policy.sums.T
        replayed[name] = ReplayedExperts(
            unrecorded=int(unknown.sum()),
            k2_own_experts=mean(0.5 * own, tokens, floor=0.0),
            k2_replayed=mean(0.5 * with_experts, tokens, floor=0.0),
            removed=mean(own - with_experts, own),
        )
    return Routing(rerouting=changes, replays=replayed)


def _pieces(dump: Table, policies: list[str], lists: list[str]) -> Iterator[Trajectories]:
    """Yield the rows in pieces of few tokens, each of which may have hundreds of experts."""
    names = columns_needed(dump.schema.names, policies)
    for batch in dump.batches([*names, *lists]):
        batch = batch.with_log_probs(policies)
        rows = batch.table.num_rows
        tokens = int(lengths_of(batch.table["response_ids"]).sum())
        step = max(rows * TOKENS_AT_ONCE // max(tokens, 1), 1)
        for start in range(0, rows, step):
            yield decode(batch.slice(start, min(start + step, rows)), policies)


def _changes(routed: ClusterSums, top_k: int) -> ExpertChanges | None:
    """Turn sums by cluster into numbers; None if no token has the experts of both policies."""
    tokens, changed, squares, of_changed, *layers = routed.sums.T
    if not tokens.any():
        return None
    return ExpertChanges(
        routed_tokens=int(tokens.sum()),
        experts_chosen=top_k,
        rerouted=mean(changed, tokens, floor=0.0),
        rerouted_by_layer=[mean(layer, tokens, floor=0.0) for layer in layers],
        k2_same_experts=mean(0.5 * (squares - of_changed), tokens - changed, floor=0.0),
        k2_rerouted=mean(0.5 * of_changed, changed, floor=0.0),
        rerouted_share_of_squares=mean(of_changed, squares, floor=0.0),
    )
