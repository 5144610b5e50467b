"""Statistics of single tokens by which trainers reject, mask or zero, each defined once.

A rejection names a place and one of these: `token_k1`, `seq_mean_k3`, `segment_prob_change`. A
trainer with another statistic adds it: `STATISTICS.add(Statistic(...))`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from rcdiag.corrections.arithmetic import Array, Tokens, exp, log
from rcdiag.registry import Registry

# Where a rejection applies a statistic: to tokens, or to an aggregate over segment or sequence.
PLACES = ("token", "segment", "seq_sum", "seq_mean", "seq_max", "seq_min")


class Statistic(Struct, frozen=True, kw_only=True):
    """A number of each sampled token that a trainer compares with bounds."""

    name: str
    formula: str  # in log_ratio = target - behavior log-prob, ratio, and the two probabilities
    unit: str = "nats"
    of: Callable[[Tokens], Array]  # [tokens]
    needs_advantages: bool = False
    needs_whole_batch: bool = False  # it compares a token with all others of the batch
    # Tokens that it rejects count as masked afterwards, also in the trainer's denominators.
    before_everything: bool = False
    # The level of the ratio to which it is equal for finite log-probs: `geometric`.
    ratio_of: str = ""
    source: str = ""


def _prob_change(tokens: Tokens) -> Array:
    """Return target - behavior probability of each sampled token."""
    return exp(tokens.target) - exp(tokens.behavior)


def _if_known(values: Array) -> Array:
    """Replace NaN by -inf, which exceeds no upper bound: trainers compare with `> bound`."""
    return np.fmax(values, values.dtype.type(-np.inf))


def _binary_kl(tokens: Tokens) -> Array:
    """Return KL(behavior || target) of the binary event "this token or another", nats."""
    kind = tokens.behavior.dtype.type
    p, q = (
        np.clip(exp(values), kind(1e-6), kind(1.0) - kind(1e-6))
        for values in (tokens.behavior, tokens.target)
    )
    one = kind(1.0)
    return p * log(p / q) + (one - p) * log((one - p) / (one - q))


STATISTICS: Registry[Statistic] = Registry(
    "statistic",
    (
        Statistic(name="k1", formula="-log_ratio", of=lambda tokens: -tokens.clamped),
        Statistic(
            name="k2",
            formula="log_ratio^2 / 2",
            of=lambda tokens: 0.5 * np.square(tokens.clamped),
        ),
        Statistic(name="k3", formula="ratio - 1 - log_ratio", of=lambda tokens: tokens.k3),
        Statistic(
            name="k3_reverse",
            formula="1 / ratio - 1 + log_ratio",
            of=lambda tokens: np.expm1(-tokens.clamped) + tokens.clamped,
        ),
        Statistic(
            name="ratio",
            formula="exp(log_ratio)",
            unit="ratio",
            of=lambda tokens: tokens.ratio,
        ),
        Statistic(name="log_ratio", formula="log_ratio", of=lambda tokens: tokens.log_ratio),
        Statistic(
            name="distance",
            formula="|ratio - 1|",
            unit="ratio",
            of=lambda tokens: np.abs(tokens.ratio - tokens.ratio.dtype.type(1.0)),
        ),
        Statistic(
            name="error_factor",
            formula="exp(|log_ratio|)",
            unit="ratio",
            of=lambda tokens: exp(np.abs(tokens.clamped)),
        ),
        Statistic(
            name="prob_change",
            formula="target - behavior probability",
            unit="probability",
            of=_prob_change,
        ),
        Statistic(
            name="tv",
            formula="|target - behavior probability|",
            unit="probability",
            of=lambda tokens: np.abs(_prob_change(tokens)),
        ),
        Statistic(
            name="binary_kl",
            formula="p log(p / q) + (1 - p) log((1 - p) / (1 - q)), p the behavior's probability "
            "of the token and q the target's, both kept within [1e-6, 1 - 1e-6]",
            of=_binary_kl,
        ),
        # The next three apply to one sign of the advantage; elsewhere they exceed no upper bound.
        Statistic(
            name="rise",
            formula="target - behavior probability where the advantage is above 0",
            unit="probability",
            of=lambda tokens: _if_known(
                np.where(tokens.advantage > 0, _prob_change(tokens), -np.inf)
            ),
            needs_advantages=True,
        ),
        Statistic(
            name="fall",
            formula="behavior - target probability where the advantage is not above 0",
            unit="probability",
            of=lambda tokens: _if_known(
                np.where(tokens.advantage > 0, -np.inf, -_prob_change(tokens))
            ),
            needs_advantages=True,
        ),
        Statistic(
            name="negative_lag",
            formula="-log_ratio where the advantage is below 0",
            of=lambda tokens: np.where(tokens.advantage < 0, -tokens.unclamped, -np.inf),
            needs_advantages=True,
        ),
    ),
)


def statistic(tokens: Tokens, name: str) -> Array:
    """Return a token statistic by its name, [tokens]."""
    if name == "segment":
        return tokens.guard.exp(tokens.segment_mean(tokens.log_ratio))
    if name.startswith("segment_"):
        return tokens.segment_mean(statistic(tokens, name.removeprefix("segment_")))
    return STATISTICS[name].of(tokens)


def place_and_statistic(name: str) -> tuple[str, str]:
    """Split a statistic's name: `seq_mean_k3` into `seq_mean` and `k3`; a level means its ratio."""
    for place in PLACES:
        if name.startswith(f"{place}_"):
            return place, name.removeprefix(f"{place}_")
    return name, "ratio"
