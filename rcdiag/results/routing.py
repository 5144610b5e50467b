"""How experts differ between two policies of a mixture of experts, part of a score."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from rcdiag.results.base import MetricValue
from rcdiag.results.doc import Doc
from rcdiag.results.parts import Part

EXAMPLE = "rcdiag score moe.parquet --model CKPT --policy r3=hf:float32,experts=rollout"


class ExpertChanges(Part, frozen=True, kw_only=True):
    """Expert changes say at how many tokens two policies took other experts, and what they do."""

    routed_tokens: Annotated[
        int,
        Doc(
            "Number of sampled tokens at which the experts of both policies are known: those that "
            "read the token before. The first token of a response is none of them.",
            unit="tokens",
        ),
    ]
    experts_chosen: Annotated[
        int, Doc("Number of experts that a token takes in a layer (top-k).", unit="experts")
    ]
    rerouted: Annotated[
        MetricValue,
        Doc(
            "Share of the tokens at which the policies took different experts, in one layer or "
            "more: those that read the token before.",
            unit="share",
            healthy="ideal 0; it grows with the number of layers; not judged",
            example=EXAMPLE,
            see=("moe-routing", "rerouted_by_layer"),
        ),
    ]
    rerouted_by_layer: Annotated[
        list[MetricValue],
        Doc(
            "Share of the tokens at which the policies took different experts, for each layer of "
            "the column, the first one first; 0 in layers without a router.",
            unit="share",
            healthy="ideal 0; deeper layers have more, as they read what earlier ones changed",
            see=("rerouted",),
        ),
    ]
    k2_same_experts: Annotated[
        MetricValue,
        Doc(
            "Half the mean squared log-ratio of tokens at which the policies took the same experts "
            "in all layers.",
            unit="nats per token",
            formula="mean of log_ratio^2 / 2",
            see=("k2_rerouted", "k2_kl"),
        ),
    ]
    k2_rerouted: Annotated[
        MetricValue,
        Doc(
            "Half the mean squared log-ratio of tokens at which the policies took different "
            "experts in a layer or more.",
            unit="nats per token",
            formula="mean of log_ratio^2 / 2",
            see=("k2_same_experts", "k2_kl"),
        ),
    ]
    rerouted_share_of_squares: Annotated[
        MetricValue,
        Doc(
            "Share of the summed squared log-ratios that rerouted tokens hold. What other experts "
            "do to later tokens, which attend to such a token, is not in it: that takes a replay.",
            unit="share",
            see=("rerouted", "removed"),
        ),
    ]


class ReplayedExperts(Part, frozen=True, kw_only=True):
    """Replayed experts are those of a policy that was scored with the behavior policy's."""

    unrecorded: Annotated[
        int,
        Doc(
            "Number of response tokens that took the model's own experts, as none are recorded for "
            "them; the last token of each response, which no log-prob depends on, is not counted.",
            unit="tokens",
            healthy="ideal 0: own experts leave a part of the routing in",
        ),
    ]
    k2_own_experts: Annotated[
        MetricValue,
        Doc(
            "Half the mean squared log-ratio of the target policy to the behavior policy, over "
            "the tokens that the replay has too.",
            unit="nats per token",
            formula="mean of log_ratio^2 / 2",
            see=("k2_replayed",),
        ),
    ]
    k2_replayed: Annotated[
        MetricValue,
        Doc(
            "Half the mean squared log-ratio of the replay to the behavior policy.",
            unit="nats per token",
            formula="mean of log_ratio^2 / 2",
            see=("k2_own_experts", "removed"),
        ),
    ]
    removed: Annotated[
        MetricValue,
        Doc(
            "Share of the summed squared log-ratios that the behavior policy's experts remove: how "
            "much of the mismatch is routing. Below 0 where they add to it. The replay should be "
            "scored as the target policy was, in precision and weights.",
            unit="share",
            formula="1 - k2_replayed / k2_own_experts",
            healthy="1 where all of the mismatch is routing, 0 where none is",
            example=EXAMPLE,
            see=("moe-routing", "k2_replayed"),
        ),
    ]


class Routing(Part, frozen=True, kw_only=True):
    """Routing says how much of a mismatch comes from other experts of a mixture of experts."""

    rerouting: Annotated[
        ExpertChanges | None,
        Doc(
            "Where the two policies chose other experts; null where the experts of one of them are "
            "not recorded.",
            see=("rerouted",),
        ),
    ] = None
    replays: Annotated[
        dict[str, ReplayedExperts],
        Doc("What is left with the behavior policy's experts, by the policy scored with them."),
    ] = field(default_factory=dict)
