"""The check of a mixture of experts: how much of the mismatch comes from different routing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rcdiag.diagnosis.checks.check import CheckInput, Observation, check
from rcdiag.formats import percent, percentage, with_interval
from rcdiag.results.routing import EXAMPLE, ExpertChanges

if TYPE_CHECKING:
    from rcdiag.results import ScoreResult


NOTHING_TO_DO = "nothing has to be done about the routing"


@check(
    severity="note",
    stages=("score",),
    asks="Did both policies of a mixture of experts take the same experts?",
    says="The experts of both policies are recorded, or a policy was scored with the sampler's "
    "experts: the finding says how many tokens took other experts, and how much of the "
    "mismatch disappears when they take the same.",
    fix="replay the sampler's experts in the trainer (rcdiag explain moe-routing), or compute "
    "the router in float32 on both sides",
    example=EXAMPLE,
    see=("moe-routing", "rerouted", "removed"),
    source="rollout routing replay (R3), arXiv 2510.11370",
)
def experts_differ(given: CheckInput) -> Iterator[Observation]:
    result: ScoreResult = given.result
    if result.routing is None:
        return
    changes = result.routing.rerouting
    if changes is not None and not changes.rerouted.value:
        yield Observation(
            message=f"{result.behavior} and {result.target} took the same experts at all "
            f"{changes.routed_tokens:,} tokens where both are known: none of the mismatch is "
            "routing",
            fix=NOTHING_TO_DO,
        )
        return
    said = [] if changes is None else [_changed(result, changes)]
    for name, replay in result.routing.replays.items():
        if replay.removed.value is None:
            continue  # the log-ratios are all 0: there is nothing to remove
        said.append(
            f"the experts of {result.behavior} in {name} remove {with_interval(replay.removed)} of "
            f"the squared log-ratios: k2 falls from {replay.k2_own_experts.value:.3g} to "
            f"{replay.k2_replayed.value:.3g} nats per token"
        )
        if replay.unrecorded:
            said.append(
                f"{replay.unrecorded:,} tokens without recorded experts were routed by {name}"
            )
    if not said:
        return
    healthy = result.diagnosis is not None and result.diagnosis.verdict == "healthy"
    yield Observation(
        message="; ".join(said),
        evidence={
            "rerouted": None if changes is None else changes.rerouted.value,
            "removed": {name: one.removed.value for name, one in result.routing.replays.items()},
        },
        fix=NOTHING_TO_DO if healthy else None,
    )


def _changed(result: ScoreResult, changes: ExpertChanges) -> str:
    """Say at how many tokens experts differ, and how much of the mismatch these tokens hold."""
    shares = [layer.value or 0.0 for layer in changes.rerouted_by_layer]
    return (
        f"{percent(changes.rerouted)} of the tokens took other experts in {result.target} than in "
        f"{result.behavior} ({percentage(min(shares))} to {percentage(max(shares))} in each of "
        f"{len(shares)} layers), and hold {with_interval(changes.rerouted_share_of_squares)} of "
        "the squared log-ratios"
    )


ROUTING_CHECKS = (experts_differ,)
