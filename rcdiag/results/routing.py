"""How often two policies of a mixture of experts choose different experts; part of a score."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from rcdiag.results.base import MetricValue
from rcdiag.results.doc import Doc
from rcdiag.results.parts import Part

EXAMPLE = "rcdiag score moe.parquet --model CKPT --policy r3=hf:float32,experts=rollout"


class ExpertChanges(Part, frozen=True, kw_only=True):
    """Expert changes say how often two policies choose different experts, and the effect."""

    routed_tokens: Annotated[
        int,
        Doc(
            "Number of sampled tokens for which the experts of both policies are known: the "
            "experts at the previous token, whose logits predict it. The first token of a response "
            "is not counted.",
            unit="tokens",
        ),
    ]
    experts_chosen: Annotated[
        int, Doc("Number of experts that process a token in a layer (top-k).", unit="experts")
    ]
    rerouted: Annotated[
        MetricValue,
        Doc(
            "Share of the tokens for which the policies chose different experts in one layer or "
            "more, at the previous token.",
            unit="share",
            healthy="ideal 0; it grows with the number of layers; not judged",
            example=EXAMPLE,
            see=("moe-routing", "rerouted_by_layer"),
        ),
    ]
    rerouted_by_layer: Annotated[
        list[MetricValue],
        Doc(
            "Share of the tokens for which the policies chose different experts, for each layer of "
            "the column, the first one first; 0 in layers without a router.",
            unit="share",
            healthy="ideal 0; deeper layers have more, as their input differs by what earlier ones "
            "changed",
            see=("rerouted",),
        ),
    ]
    k2_same_experts: Annotated[
        MetricValue,
        Doc(
            "Half the mean squared log-ratio of tokens for which the policies chose the same "
            "experts in all layers.",
            unit="nats per token",
            formula="mean of log_ratio^2 / 2",
            see=("k2_rerouted", "k2_kl"),
        ),
    ]
    k2_rerouted: Annotated[
        MetricValue,
        Doc(
            "Half the mean squared log-ratio of tokens for which the policies chose different "
            "experts in a layer or more.",
            unit="nats per token",
            formula="mean of log_ratio^2 / 2",
            see=("k2_same_experts", "k2_kl"),
        ),
    ]
    rerouted_share_of_squares: Annotated[
        MetricValue,
        Doc(
            "Share of the summed squared log-ratios that is on rerouted tokens. The effect of "
            "different experts on later tokens, which attend to such a token, is not included: "
            "that takes a replay.",
            unit="share",
            see=("rerouted", "removed"),
        ),
    ]


class ReplayedExperts(Part, frozen=True, kw_only=True):
    """The mismatch of a policy that was scored with the behavior policy's experts."""

    unrecorded: Annotated[
        int,
        Doc(
            "Number of response tokens processed by the model's own experts, as none are recorded "
            "for them; the last token of each response, which no log-prob depends on, is not "
            "counted.",
            unit="tokens",
            healthy="ideal 0: own experts leave some of the routing differences in",
        ),
    ]
    k2_own_experts: Annotated[
        MetricValue,
        Doc(
            "Half the mean squared log-ratio between the target and the behavior policy, over the "
            "tokens that the replay has too.",
            unit="nats per token",
            formula="mean of log_ratio^2 / 2",
            see=("k2_replayed",),
        ),
    ]
    k2_replayed: Annotated[
        MetricValue,
        Doc(
            "Half the mean squared log-ratio between the replay and the behavior policy.",
            unit="nats per token",
            formula="mean of log_ratio^2 / 2",
            see=("k2_own_experts", "removed"),
        ),
    ]
    removed: Annotated[
        MetricValue,
        Doc(
            "Share of the summed squared log-ratios that disappears with the behavior policy's "
            "experts: how much of the mismatch is routing. Below 0 where they add to it. The "
            "replay should be scored like the target policy, in precision and weights.",
            unit="share",
            formula="1 - k2_replayed / k2_own_experts",
            healthy="1 where all of the mismatch is routing, 0 where none is",
            example=EXAMPLE,
            see=("moe-routing", "k2_replayed"),
        ),
    ]


class Routing(Part, frozen=True, kw_only=True):
    """Routing says how much of a mismatch comes from a different choice of experts."""

    rerouting: Annotated[
        ExpertChanges | None,
        Doc(
            "How often the two policies chose different experts; null where the experts of one of "
            "them are not recorded.",
            see=("rerouted",),
        ),
    ] = None
    replays: Annotated[
        dict[str, ReplayedExperts],
        Doc("Mismatch left with the behavior policy's experts, by the policy scored with them."),
    ] = field(default_factory=dict)
