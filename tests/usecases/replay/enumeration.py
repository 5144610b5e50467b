"""Gradients of estimators on all 81 sequences of a tabular policy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from rcdiag.trainers.plan import Plan
from rcdiag.usecases.replay.gradients import seq_is_coefficients
from rcdiag.usecases.replay.preset import loss_of_preset
from rcdiag.usecases.replay.update_batch import ReplayBatch
from tests.statistics.enumerated import (
    LENGTH,
    PREFIXES,
    SEQUENCES,
    VOCABULARY,
    Exact,
    near,
    rational_policy,
    token_probs,
)
from tests.usecases.replay.builders import batch_of, plan_of, update_of

WIDTH = len(PREFIXES) * VOCABULARY  # parameters: the logits after every prefix
# By their definitions; bounds within which the two policies' ratios go in and out.
CONFIGS = {
    "none": {"rollout_is": None},
    "token_is": {"rollout_is": "token", "rollout_is_threshold": 1.3},
    "seq_is": {"rollout_is": "sequence", "rollout_is_threshold": 1e9},
    "seq_tis": {"rollout_is": "sequence", "rollout_is_threshold": 1.3},
    "seq_mis": {
        "rollout_is": "sequence",
        "rollout_is_threshold": 1e9,
        "rollout_rs": "seq_sum_k1",
        "rollout_rs_threshold": "0.5_2.0",
    },
    "geo_rs": {
        "rollout_is": None,
        "rollout_rs": "seq_mean_k1",
        "rollout_rs_threshold": "0.8_1.25",
    },
}


@dataclass(frozen=True)
class Enumerated:
    """Both policies, a reward of every sequence, and what follows; nothing is sampled."""

    policies: Exact
    reward: np.ndarray  # [81], taken for the advantage

    @cached_property
    def law(self) -> np.ndarray:
        """[81] of the sampler."""
        return self.policies.sequence_distributions[0]

    @cached_property
    def scores(self) -> np.ndarray:
        """[81, LENGTH, WIDTH] d log pi(token) / d logits, of the trainer's policy."""
        result = np.zeros((len(SEQUENCES), LENGTH, WIDTH))
        for row, sequence in enumerate(SEQUENCES):
            for t, token in enumerate(sequence):
                at = PREFIXES.index(sequence[:t]) * VOCABULARY
                result[row, t, at : at + VOCABULARY] = -self.policies.target[sequence[:t]]
                result[row, t, at + token] += 1.0
        return result

    @cached_property
    def log_ratios(self) -> np.ndarray:
        """[81, LENGTH] target over behavior."""
        both = (self.policies.behavior, self.policies.target)
        behavior, target = (np.log([token_probs(p, s) for s in SEQUENCES]) for p in both)
        return target - behavior

    @cached_property
    def batch(self) -> ReplayBatch:
        """Every sequence once."""
        both = (self.policies.behavior, self.policies.target)
        behavior, target = (np.log([token_probs(p, s) for s in SEQUENCES]).tolist() for p in both)
        return batch_of(behavior, target, np.repeat(self.reward[:, None], LENGTH, axis=1).tolist())

    def of_coefficients(self, coefficients: np.ndarray) -> np.ndarray:
        """[81, WIDTH] what one sequence adds to a batch of one, of coefficients per token."""
        by_token = coefficients.reshape(len(SEQUENCES), LENGTH) * len(SEQUENCES)
        return np.einsum("st,stw->sw", by_token, self.scores)

    def of_weights(self, weights: np.ndarray) -> np.ndarray:
        """[81, WIDTH] the same by definition: - A w score, mean over tokens."""
        return np.einsum("st,stw->sw", -self.reward[:, None] * weights / LENGTH, self.scores)

    def of_preset(self, plan: Plan, name: str) -> np.ndarray:
        """[81, WIDTH] the same by rcdiag; all tokens are counted, so rows stay independent."""
        loss = loss_of_preset(name, self.batch, update_of(plan=plan, denominator="all"))
        return self.of_coefficients(loss.coefficients)

    @cached_property
    def reference(self) -> np.ndarray:
        return self.of_coefficients(seq_is_coefficients(self.batch))

    def expected(self, gradients: np.ndarray) -> np.ndarray:
        return self.law @ gradients

    def noise(self, gradients: np.ndarray) -> float:
        """Trace of the covariance of one sequence's gradient."""
        mean = self.expected(gradients)
        return float(self.law @ np.square(gradients).sum(axis=1) - mean @ mean)

    @cached_property
    def on_policy(self) -> np.ndarray:
        """[WIDTH] - d J / d logits / LENGTH, J the mean reward under the trainer's policy."""
        law = self.policies.sequence_distributions[1]
        whole = self.scores.sum(axis=1)
        return -np.einsum("s,s,sw->w", law, self.reward, whole) / LENGTH


@cache
def enumerated() -> Enumerated:
    """A mismatch that the bounds of `CONFIGS` bite on."""
    behavior = rational_policy(3)
    reward = np.random.default_rng(11).normal(0.3, 1.0, len(SEQUENCES))
    return Enumerated(Exact(behavior, near(behavior, 0.3, seed=4)), reward)


@cache
def estimators() -> dict[str, np.ndarray]:
    """[81, WIDTH] gradients of the definitions above and of every preset of verl 0.9."""
    case, defined, presets = enumerated(), plan_of(**CONFIGS), plan_of()
    result = {name: case.of_preset(defined, name) for name in defined.corrections}
    return result | {
        name: case.of_preset(presets, name) for name in (*presets.corrections, "naive")
    }


NAMES = [*CONFIGS, *plan_of().corrections, "naive"]
