"""Tables sampled from small policies, for which the correct recommendation is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rcdiag.results import Diagnosis
from rcdiag.results.sweep import Recommendation, SweepRow
from rcdiag.statistics.pair import PolicyPair, pair_of
from rcdiag.table.survey import by_frequency
from rcdiag.table.trajectories import Ragged, Trajectories
from rcdiag.usecases.sweep.candidates import CANDIDATES
from rcdiag.usecases.sweep.estimates import sweep_rows
from rcdiag.usecases.sweep.estimator_families import Bounds
from rcdiag.usecases.sweep.plan import SweepPlan
from rcdiag.usecases.sweep.recommend import SweepEvidence, recommend
from rcdiag.usecases.sweep.sketched_gradients import Baseline, Buckets
from rcdiag.usecases.sweep.sums import SweepState
from tests.builders import mismatch
from tests.usecases.sweep.builders import added_up


def table(
    ids: np.ndarray,
    behavior: np.ndarray,
    target: np.ndarray,
    reward: np.ndarray | None = None,
    group: np.ndarray | None = None,
    advantage: np.ndarray | None = None,
) -> PolicyPair:
    """Write rows of equal length from arrays [sequences, tokens]."""
    rows, width = ids.shape
    trajectories = Trajectories(
        first_row=0,
        response_ids=Ragged(ids.ravel().astype(np.int32), np.arange(rows + 1) * width),
        mask=np.ones(rows * width, bool),
        log_probs={"rollout": behavior.ravel(), "old": target.ravel()},
        group=None if group is None else group.astype(np.uint64),
        reward=reward,
        advantage=advantage,
    )
    return pair_of(trajectories, "rollout", "old")


def two_choices(
    seed: int, sequences: int, sampled: float, expected: float, recorded: float | None = None
) -> PolicyPair:
    """Sample two binary tokens, rewarded if they agree; P(yes) per policy is given.

    What the second token should be depends on the first: weighted by token alone its gradient
    points to what paid under the behavior policy, and that is the other way where the policies lie
    on either side of 1/2.
    """
    random = np.random.default_rng(seed)
    yes = random.random((sequences, 2)) < sampled
    recorded = sampled if recorded is None else recorded
    behavior, target = (np.log(np.where(yes, p, 1 - p)) for p in (recorded, expected))
    reward = (yes[:, 0] == yes[:, 1]).astype(np.float64)
    return table(np.array([0, 2]) + yes, behavior, target, reward)


def noisy(
    seed: int, sequences: int, spread: float, *, drawn_from_target: bool = False
) -> PolicyPair:
    """Sample long sequences over eight tokens; target logits are the behavior's plus noise."""
    random = np.random.default_rng(seed)
    width, vocabulary = 40, 8
    logits = random.normal(0.0, 1.0, (sequences, width, vocabulary))
    shifted = logits + random.normal(0.0, spread, logits.shape)
    logs = [x - np.log(np.exp(x).sum(axis=-1, keepdims=True)) for x in (logits, shifted)]
    distribution = np.exp(logs[1] if drawn_from_target else logs[0]).cumsum(axis=-1)
    distribution[..., -1] = 1.0
    ids = (random.random((sequences, width, 1)) > distribution).sum(axis=-1)
    behavior, target = (np.take_along_axis(x, ids[..., None], -1)[..., 0] for x in logs)
    return table(ids, behavior, target, (ids == 3).mean(axis=1))


def state_of_candidates(pairs: Sequence[PolicyPair], baseline: Baseline | None) -> SweepState:
    """Return the merged state of some batches, with candidates only."""
    grids: dict[str, list[Bounds]] = {}
    for item in CANDIDATES.values():
        grids.setdefault(item.family, []).append(item.bounds)
    recorded = any(pair.tokens.advantage is not None for pair in pairs)
    buckets = Buckets(by_frequency(np.concatenate([pair.tokens.token_id for pair in pairs])))
    plan = SweepPlan(grids, CANDIDATES, recorded=recorded, baseline=baseline, buckets=buckets)
    return added_up(pairs, plan)


def baseline_of(pairs: Sequence[PolicyPair]) -> Baseline | None:
    rewards = [pair.tokens.reward for pair in pairs if pair.tokens.reward is not None]
    return Baseline.of(None, np.concatenate(rewards)) if rewards else None


def rows_of_all(state: SweepState) -> dict[str, list[SweepRow]]:
    return {family: sweep_rows(state, family) for family in state.plan.grids}


def row_of(state: SweepState, candidate: str) -> SweepRow:
    family, at = state.plan.place(candidate)
    return sweep_rows(state, family)[at]


def advice_of(
    state: SweepState, bad_tokens: int = 0, diagnosis: Diagnosis | None = None
) -> Recommendation:
    assert state.suite is not None
    values = mismatch(state.suite)
    return recommend(SweepEvidence(state, rows_of_all(state), values, bad_tokens, diagnosis))


def advice(
    *pairs: PolicyPair, bad_tokens: int = 0, diagnosis: Diagnosis | None = None
) -> Recommendation:
    return advice_of(state_of_candidates(pairs, baseline_of(pairs)), bad_tokens, diagnosis)
