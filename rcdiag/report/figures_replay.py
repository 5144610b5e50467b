"""Figures of `rcdiag replay`."""

from __future__ import annotations

from rcdiag.report.draw_replay import (
    after_step,
    coefficients,
    distinct,
    factors,
    gradients,
    layers,
    over_steps,
    sequence_shares,
    weighted,
    weights,
)
from rcdiag.report.style import FigureSpec
from rcdiag.results import ReplayResult


def _has_gradient(result: ReplayResult) -> bool:
    return any(each.gradient is not None for each in result.presets.values())


def _by_presets(result: ReplayResult) -> tuple[float, float]:
    return (11.0, 1.4 + 0.26 * len(result.presets))


def _grid(count: int) -> tuple[float, float]:
    """Room for so many panels, three in a row."""
    return (5.4, 4.4) if count == 1 else (11.0, 3.4 * (-(-count // 3)))


def _panels(result: ReplayResult) -> tuple[float, float]:
    return _grid(min(len(distinct(result)), 6))


FIGURES_OF_REPLAY: dict[str, FigureSpec] = {
    "factors": FigureSpec(
        "The two factors of the ratio",
        "Sampler to trainer is mismatch, trainer to current policy is staleness; bypass takes "
        "their product. Dashed lines are the clip range of PPO.",
        factors,
    ),
    "shares": FigureSpec(
        "Who gets the gradient",
        "Sequences by their share of the summed |d loss / d log-prob|, one line per distinct "
        "preset, black without correction. A line that starts high is an update by few sequences.",
        sequence_shares,
        lambda result: any(each.shares for each in result.presets.values()),
    ),
    "weights": FigureSpec(
        "Weights in the loss",
        "Kept tokens by their importance weight, both axes logarithmic; weights of 0 stand at the "
        "left edge. A wall on the right is truncation. Presets with the same weights are shown "
        "once.",
        weights,
        lambda result: bool(weighted(result)),
        size=lambda result: _grid(len(weighted(result))),
    ),
    "coefficients": FigureSpec(
        "Pull on single tokens",
        "A dot is a token: how unlikely it is, and how hard the loss pulls at it; blue where the "
        "advantage is above 0, orange below. Presets with the same pull are shown once.",
        coefficients,
        lambda result: bool(distinct(result)),
        size=_panels,
    ),
    "gradients": FigureSpec(
        "Gradient against the reference",
        "Left the direction: dots with 95% intervals are unbiased, bars are of the whole "
        "gradients, which noise that both share makes larger; right the size. Blue decoupled, "
        "orange bypass, black without correction.",
        gradients,
        _has_gradient,
        size=_by_presets,
    ),
    "after-step": FigureSpec(
        "After the step",
        "How far the step moves the policy from where it was, and how far it then is from the "
        "sampler, nats per token with 95% intervals.",
        after_step,
        lambda result: any(each.after_step for each in result.presets.values()),
        size=_by_presets,
    ),
    "layers": FigureSpec(
        "Gradient norm by layer",
        "Colours are logarithmic. A layer that stands out in one preset alone is where its "
        "weights act.",
        layers,
        _has_gradient,
        size=_by_presets,
    ),
    "steps": FigureSpec(
        "Over several steps",
        "Every preset goes its own way from the same start: distance from the sampler of each "
        "step's batch.",
        over_steps,
        lambda result: len(result.steps) > 1,
    ),
}
