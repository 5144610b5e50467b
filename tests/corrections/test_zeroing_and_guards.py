"""Zeroing, guards, segments and masks reduced by earlier steps, against loops over tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rcdiag.corrections.apply import outcome, token_effects
from rcdiag.corrections.arithmetic import Guard, Tokens
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.corrections.sequences import rows_of
from rcdiag.statistics.pair import PolicyPair
from rcdiag.table.token_batch import TokenBatch

RNG = np.random.default_rng(5)
LENGTHS = np.array([7, 1, 4, 12, 3])
N = int(LENGTHS.sum())
ROLLOUT = -RNG.exponential(1.5, N)
OLD = np.minimum(ROLLOUT + RNG.normal(0, 0.7, N), 0.0)
ADVANTAGE = RNG.choice([-1.0, 0.0, 2.0], N)
# A second turn begins at position 3 of every sequence that reaches it.
TURN = np.concatenate([1 + (np.arange(n) >= 3) for n in LENGTHS])


def pair(rollout: Any = ROLLOUT, old: Any = OLD) -> PolicyPair:
    batch = TokenBatch(
        log_probs={"rollout": rollout, "old": old},
        lengths=LENGTHS,
        cluster=np.arange(len(LENGTHS), dtype=np.uint64),
        row=np.arange(len(LENGTHS)),
        token_id=np.zeros(N, np.int32),
        position=np.concatenate([np.arange(n) for n in LENGTHS]),
        turn=TURN,
        advantages=ADVANTAGE,
    )
    return PolicyPair(batch, "rollout", "old")


def applied(correction: Correction, of: PolicyPair) -> tuple[np.ndarray, np.ndarray, Any]:
    """Return weights and mask per token, and the sums that a pass stores."""
    with np.errstate(all="ignore"):
        rows = rows_of(of).under(correction.guard)
        effects = token_effects(correction, Tokens.of(of), rows)
        return effects.weights, effects.kept, outcome(rows, correction)


def sequences(values: np.ndarray) -> list[np.ndarray]:
    return np.split(values, np.cumsum(LENGTHS)[:-1])


def check(correction: Correction, weights: list, kept: list, of: PolicyPair | None = None) -> None:
    """Check weights and mask of a correction, per token and in sums per sequence."""
    got_weights, got_kept, sums = applied(correction, of or pair())
    np.testing.assert_allclose(got_weights, np.concatenate(weights), rtol=1e-12)
    np.testing.assert_array_equal(got_kept, np.concatenate(kept).astype(bool))
    np.testing.assert_allclose(sums.weights.sum, [w.sum() for w in weights], rtol=1e-12)
    np.testing.assert_allclose(sums.kept, [k.sum() for k in kept])
    np.testing.assert_allclose(
        sums.kept_weights.sum, [(w * k).sum() for w, k in zip(weights, kept, strict=True)]
    )


def everything() -> list[np.ndarray]:
    return [np.ones(n) for n in LENGTHS]


D = sequences(OLD - ROLLOUT)
INFINITE = Weighting("token", np.inf, 0.0, "clip")


def test_weights_of_sequences_that_a_mean_zeroes():
    """The mask is unchanged: seq-mask-tis of NeMo-RL and OpenRLHF."""
    correction = Correction(weighting=INFINITE, zeroing=(Rejection("geometric", 1.4, 0.7),))
    weights = [np.exp(d) * (0.7 <= np.exp(d.mean()) <= 1.4) for d in D]
    assert 0 < sum((w > 0).any() for w in weights) < len(weights)
    check(correction, weights, everything())


def test_a_sequence_weight_with_tokens_that_another_statistic_zeroes():
    correction = Correction(
        weighting=Weighting("sequence", 3.0), zeroing=(Rejection("token_tv", 0.1),)
    )
    p, q = sequences(np.exp(ROLLOUT)), sequences(np.exp(OLD))
    weights = [
        min(np.exp(d.sum()), 3.0) * (np.abs(b - a) <= 0.1) for d, a, b in zip(D, p, q, strict=True)
    ]
    check(correction, weights, everything())


def test_rejection_looks_at_the_sign_of_advantages():
    """DPPO: a probability that rose where the advantage is above 0, or fell where it is not."""
    correction = Correction(
        weighting=INFINITE, rejections=(Rejection("token_rise", 0.1), Rejection("token_fall", 0.05))
    )
    change, signs = sequences(np.exp(OLD) - np.exp(ROLLOUT)), sequences(ADVANTAGE)
    kept = [np.where(a > 0, c <= 0.1, -c <= 0.05) for c, a in zip(change, signs, strict=True)]
    assert 0 < sum(k.sum() for k in kept) < N
    check(correction, [np.exp(d) for d in D], kept)
    assert correction.needs_advantages


def test_segments_are_runs_of_one_turn():
    correction = Correction(
        weighting=Weighting("segment", 1.2), rejections=(Rejection("segment", 1.3, 0.6),)
    )

    def means(d: np.ndarray) -> np.ndarray:
        return np.concatenate([np.full(len(run), run.mean()) for run in (d[:3], d[3:]) if len(run)])

    ratios = [np.exp(means(d)) for d in D]
    kept = [(r >= 0.6) & (r <= 1.3) for r in ratios]
    assert 0 < sum(k.sum() for k in kept) < N
    check(correction, [np.minimum(r, 1.2) for r in ratios], kept)


def test_later_steps_use_the_mask_of_earlier_ones():
    """SkyRL: outlier, then token mask, then weights, then the sequence mask."""
    outlier = Rejection("seq_max_ratio", 4.0)
    tokens = Rejection("token", 1.5, 0.6)
    before = (outlier, tokens)
    correction = Correction(
        weighting=Weighting("sequence", 2.0, over=before),
        rejections=(*before, Rejection("geometric", 1.05, 0.95, over=before)),
    )
    weights, kept = [], []
    for d in D:
        left = (np.exp(d) >= 0.6) & (np.exp(d) <= 1.5) & (np.exp(d.max()) <= 4.0)
        weights.append(np.full(len(d), min(np.exp(d[left].sum()), 2.0)))
        mean = d[left].mean() if left.any() else 0.0
        kept.append(left & (0.95 <= np.exp(mean) <= 1.05))
    assert 0 < sum(k.sum() for k in kept) < N
    check(correction, weights, kept)


FAR = OLD.copy()
FAR[2], FAR[9] = ROLLOUT[2] - 50.0, ROLLOUT[9] - 15.0


@pytest.mark.parametrize(
    ("guard", "of_tokens"),
    [
        (Guard(), lambda d: np.clip(d, -20, 20)),
        (Guard(bound=np.inf), lambda d: d),
        (Guard(bound=10.0), lambda d: np.clip(d, -10, 10)),
    ],
)
def test_a_guard_clamps_before_exp(guard, of_tokens):
    far = [of_tokens(d) for d in sequences(FAR - ROLLOUT)]
    correction = Correction(weighting=INFINITE, guard=guard)
    check(correction, [np.exp(d) for d in far], everything(), pair(old=FAR))


@pytest.mark.parametrize("first", [True, False])
def test_a_guard_may_clamp_tokens_before_they_are_summed(first):
    guard = Guard(bound=10.0, before_sums=first)
    correction = Correction(weighting=Weighting("geometric", np.inf), guard=guard)
    weights = []
    for d in sequences(FAR - ROLLOUT):
        mean = np.clip(d, -10, 10).mean() if first else np.clip(d.mean(), -10, 10)
        weights.append(np.full(len(d), np.exp(mean)))
    # Trainers add 1e-8 to counts before they divide.
    got = applied(correction, pair(old=FAR))[0]
    np.testing.assert_allclose(got, np.concatenate(weights), rtol=1e-7)


@pytest.mark.parametrize(("non_finite", "weight"), [("equal", 1.0), ("zero", 0.0)])
def test_nan_gives_ratio_one_or_weight_zero(non_finite, weight):
    broken = ROLLOUT.copy()
    broken[[1, 8]] = np.nan
    correction = Correction(weighting=INFINITE, guard=Guard(np.inf, non_finite=non_finite))
    d = OLD - broken
    weights = sequences(np.where(np.isnan(d), weight, np.exp(d)))
    check(correction, weights, everything(), pair(rollout=broken))
