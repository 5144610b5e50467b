"""The size of the log-ratios depends on the place within blocks of positions."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Array, Counts, PairTokens
from rcdiag.diagnosis.causes.cause import CLEAR, Suspicion, fact, shipped
from rcdiag.diagnosis.features import ENGINE_NOISE, Features
from rcdiag.diagnosis.features.log_ratios import BINS
from rcdiag.diagnosis.thresholds import EQUAL, FEWEST_ROWS, LARGER, TINY
from rcdiag.diagnosis.validity import INVALID

# Tokens of a block in kernels: pages of a key-value cache have 16, chunks of recurrent layers 64 to
# 256 (gated delta net: chunk_size 64 in flash-linear-attention; Mamba-2: 256 in its configuration).
SIZES = (16, 32, 64, 128, 256, 512)
BY_CHANCE = 1e-7  # probability of a false alarm in a table


class BlockEffect(Struct, frozen=True):
    """How the size of log-ratios depends on the place within blocks of `size` positions."""

    size: int
    factor: float  # mean |log_ratio| at the largest place / at the smallest
    largest_at: int  # place within the block
    p_value: float


def block_effect(
    tokens: PairTokens, place: Counts, cluster: NDArray[np.integer]
) -> BlockEffect | None:
    """Return the block size on which |log_ratio| depends most; None if no size is significant.

    `place` [tokens] is the position in prompt and response, `cluster` [rows] numbers prompt groups.
    First the means of log |log_ratio| by row, by log-prob and by position in the response are
    subtracted, so that neither short noisy rows among long quiet ones nor prompts of one length,
    whose blocks are at the same positions, show an effect. The residual is projected on one sine
    wave per block. Without an effect of blocks the sums of prompt groups have mean 0; Hotelling's
    T² of them gives the p-value, here times the number of sizes.
    """
    size = np.log(np.maximum(np.abs(tokens.log_ratio), EQUAL))
    edges = np.quantile(tokens.sampler, np.linspace(0, 1, BINS + 1)[1:-1])
    for part in (tokens.owner, np.searchsorted(edges, tokens.sampler), tokens.position):
        size = size - (np.bincount(part, size) / np.maximum(np.bincount(part), 1))[part]
    effects = [
        found
        for block in SIZES
        if (found := _of_size(tokens, size, place, cluster, block)) is not None
    ]
    # Halves and quarters of the true size are significant as well, with a smaller factor.
    surely = [effect for effect in effects if effect.p_value <= BY_CHANCE]
    return max(surely, key=lambda effect: effect.factor, default=None)


def _of_size(
    tokens: PairTokens, size: Array, place: Counts, cluster: NDArray[np.integer], block: int
) -> BlockEffect | None:
    """Test one block size on the rows that have at least two blocks."""
    from scipy.special import fdtrc

    long = (tokens.per_row >= 2 * block)[tokens.owner]
    local = (size - _moving_mean(size, tokens.per_row, block))[long]
    _, group = np.unique(cluster[tokens.owner[long]], return_inverse=True)
    groups = int(group.max(initial=-1)) + 1
    if groups < FEWEST_ROWS:
        return None
    wave = np.exp(2j * np.pi * place[long] / block)
    sums = np.stack([np.bincount(group, local * part, groups) for part in (wave.real, wave.imag)])
    total, covariance = sums.sum(axis=1), np.cov(sums) * groups
    if np.linalg.matrix_rank(covariance) < 2:
        return None
    statistic = float(total @ np.linalg.solve(covariance, total))
    p_value = float(fdtrc(2, groups - 2, statistic * (groups - 2) / (2 * (groups - 1))))
    amplitude = 2.0 * complex(*total) / len(local)
    largest_at = round(float(np.angle(amplitude)) / (2 * np.pi) * block) % block
    factor = float(np.exp(2.0 * abs(amplitude)))
    return BlockEffect(block, factor, largest_at, p_value * len(SIZES))


def _moving_mean(values: Array, per_row: Counts, width: int) -> Array:
    """Return the mean of the `width` tokens around each token of its row, [tokens].

    At the ends of a row it is that of the nearest full window. Subtracting it removes a trend over
    the row, which a wave of that width would otherwise pick up.
    """
    sums = np.concatenate([[0.0], np.cumsum(values)])
    end = np.cumsum(per_row)
    start = end - per_row
    owner = np.repeat(np.arange(len(per_row)), per_row)
    last = np.maximum(end[owner] - width, start[owner])
    first = np.clip(np.arange(len(values)) - width // 2, start[owner], last)
    stop = np.minimum(first + width, end[owner])
    means: Array = (sums[stop] - sums[first]) / (stop - first)
    return means


def _block_boundaries(features: Features) -> Suspicion | None:
    """Look for log-ratios whose size depends on the place in blocks of prompt and response."""
    case, log_ratios = features.case, features.log_ratios
    prompt = case.facts.prompt_length
    if prompt is None or log_ratios.rms < ENGINE_NOISE or features.validity.answer == INVALID:
        return None
    tokens = case.tokens
    effect = block_effect(tokens, prompt[tokens.owner] + tokens.position, case.cluster)
    if effect is None or effect.factor < LARGER:
        return None
    return Suspicion(
        confidence=CLEAR,
        message=f"|log-ratios| depend on the place in blocks of {effect.size} positions of prompt "
        f"and response: they are {effect.factor:.2g} times larger at place {effect.largest_at} "
        "than half a block away. One side computes in blocks, as a chunked prefill of recurrent "
        "layers or a paged cache does, and the other does not.",
        evidence=[
            fact(
                "|log-ratio| by the place in a block",
                "depends on blocks",
                block=effect.size,
                factor=effect.factor,
                p_value=max(effect.p_value, TINY),
            ),
            features.validity.evidence,
        ],
    )


BLOCK_BOUNDARIES = shipped("block-boundaries", "difference", _block_boundaries)
