"""Figures of `rcdiag score`."""

from __future__ import annotations

from collections.abc import Callable

from rcdiag.pages.score.profiles import by_step, profile
from rcdiag.pages.score.sequences import paths, worst_sequences
from rcdiag.pages.score.tokens import log_prob_density, log_ratio_histogram, weights
from rcdiag.pages.style import FigureSpec
from rcdiag.results import ScoreResult


def _has_profile(name: str) -> Callable[[ScoreResult], bool]:
    return lambda result: name in result.profiles


PROFILE_READING = (
    "Above the size of the log-ratio in each bin, below its mean, both with 95% intervals by "
    "cluster. "
)

FIGURES_OF_SCORE: dict[str, FigureSpec] = {
    "log-ratio": FigureSpec(
        "Log-ratio of tokens",
        "Mass near 0 is agreement; a fat tail on one side means that tokens are likelier under "
        "one policy than under the other. Both axes are logarithmic.",
        log_ratio_histogram,
    ),
    "log-probs": FigureSpec(
        "Log-prob of the same tokens under both policies",
        "On the diagonal the policies agree; the darker a cell, the more tokens (logarithmic). "
        "Rings are the tokens with the largest |log-ratio|.",
        log_prob_density,
    ),
    "probability": FigureSpec(
        "Mismatch by probability",
        "Rounding errors grow towards rare tokens. A mean that bends one way when binned by one "
        "policy and the other way when binned by the other is selection; believe the geometric "
        "mean.",
        profile("mean_probability", "behavior_probability", "target_probability"),
        _has_profile("mean_probability"),
    ),
    "position": FigureSpec(
        "Mismatch by position",
        PROFILE_READING + "Noise is flat; growth points at attention, position encoding or cache.",
        profile("position"),
        _has_profile("position"),
    ),
    "length": FigureSpec(
        "Mismatch by length of the sequence",
        PROFILE_READING + "Per token it should not depend on the length.",
        profile("length"),
        _has_profile("length"),
    ),
    "entropy": FigureSpec(
        "Mismatch by entropy",
        PROFILE_READING + "Noise shows where the model hesitates; elsewhere it is another cause.",
        profile("entropy"),
        _has_profile("entropy"),
    ),
    "turn": FigureSpec(
        "Mismatch by turn",
        PROFILE_READING + "Later turns come after text that the policy did not write.",
        profile("turn"),
        _has_profile("turn"),
    ),
    "reward": FigureSpec(
        "Mismatch by reward",
        PROFILE_READING + "A difference between signs biases the gradient.",
        profile("reward", line="none"),
        _has_profile("reward"),
    ),
    "paths": FigureSpec(
        "Cumulative log-ratio of sequences",
        "A random walk around 0 that widens with the square root of the length is noise; a common "
        "drift is a systematic difference. Where a path ends is its sequence's log weight.",
        paths,
        lambda result: bool(result.figures.get("paths")),
    ),
    "worst-sequences": FigureSpec(
        "Sequences with the largest |sum of log-ratios|",
        "A cell is a token: blue is likelier under the target, orange under the behavior policy. "
        "Single dark cells are outliers, a whole coloured strip is an offset, a change along the "
        "strip an event. Long sequences are cut at 400 tokens.",
        worst_sequences,
        lambda result: bool(result.worst_sequences),
    ),
    "weights": FigureSpec(
        "Ratios, and the bounds of the presets",
        "Dashed lines are bounds at which a preset truncates, zeroes or rejects at that level. "
        "Bounds in the bulk decide over many tokens, bounds beyond the tails over none.",
        weights,
        lambda result: bool(result.corrections),
    ),
    "steps": FigureSpec(
        "Mismatch by training step",
        "The band is the 95% cluster-bootstrap interval. A rise with the steps is drift or "
        "growing precision trouble, a jump is an event to look up in the log.",
        by_step,
        lambda result: bool(result.steps),
    ),
}
