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
# Definitions with bounds that some ratios of the two policies exceed.
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
    """Both policies and a reward of every sequence, with exact expectations."""

    policies: Exact
    reward: np.ndarray  # [81], used as the advantage

    @cached_property
    def law(self) -> np.ndarray:
        """Return the sampler's probabilities, [81]."""
        return self.policies.sequence_distributions[0]

    @cached_property
    def scores(self) -> np.ndarray:
        """Return d log pi(token) / d logits of the trainer, [81, LENGTH, WIDTH]."""
        result = np.zeros((len(SEQUENCES), LENGTH, WIDTH))
        for row, sequence in enumerate(SEQUENCES):
            for t, token in enumerate(sequence):
                at = PREFIXES.index(sequence[:t]) * VOCABULARY
                result[row, t, at : at + VOCABULARY] = -self.policies.target[sequence[:t]]
                result[row, t, at + token] += 1.0
        return result

    @cached_property
    def log_ratios(self) -> np.ndarray:
        """Return target minus behavior log-probs, [81, LENGTH]."""
        both = (self.policies.behavior, self.policies.target)
        behavior, target = (np.log([token_probs(p, s) for s in SEQUENCES]) for p in both)
        return target - behavior

    @cached_property
    def batch(self) -> ReplayBatch:
        """Return a batch with every sequence once."""
        both = (self.policies.behavior, self.policies.target)
        behavior, target = (np.log([token_probs(p, s) for s in SEQUENCES]).tolist() for p in both)
        return batch_of(behavior, target, np.repeat(self.reward[:, None], LENGTH, axis=1).tolist())

    def of_coefficients(self, coefficients: np.ndarray) -> np.ndarray:
        """Return the gradient of single sequences for token coefficients, [81, WIDTH]."""
        by_token = coefficients.reshape(len(SEQUENCES), LENGTH) * len(SEQUENCES)
        return np.einsum("st,stw->sw", by_token, self.scores)

    def of_weights(self, weights: np.ndarray) -> np.ndarray:
        """Return the gradients by definition, -A w score averaged over tokens, [81, WIDTH]."""
        return np.einsum("st,stw->sw", -self.reward[:, None] * weights / LENGTH, self.scores)

    def of_preset(self, plan: Plan, name: str) -> np.ndarray:
        """Return the gradients by definition, the token mean of -A w score, [81, WIDTH]."""
        loss = loss_of_preset(name, self.batch, update_of(plan=plan, denominator="all"))
        return self.of_coefficients(loss.coefficients)

    @cached_property
    def reference(self) -> np.ndarray:
        return self.of_coefficients(seq_is_coefficients(self.batch))

    def expected(self, gradients: np.ndarray) -> np.ndarray:
        return self.law @ gradients

    def noise(self, gradients: np.ndarray) -> float:
        """Return the trace of the covariance of one sequence's gradient."""
        mean = self.expected(gradients)
        return float(self.law @ np.square(gradients).sum(axis=1) - mean @ mean)

    @cached_property
    def on_policy(self) -> np.ndarray:
        """Return -dJ / d logits / LENGTH, [WIDTH], for the trainer's mean reward J."""
        law = self.policies.sequence_distributions[1]
        whole = self.scores.sum(axis=1)
        return -np.einsum("s,s,sw->w", law, self.reward, whole) / LENGTH


@cache
def enumerated() -> Enumerated:
    """Policies whose ratios partly exceed the bounds of `CONFIGS`."""
    behavior = rational_policy(3)
    reward = np.random.default_rng(11).normal(0.3, 1.0, len(SEQUENCES))
    return Enumerated(Exact(behavior, near(behavior, 0.3, seed=4)), reward)


@cache
def estimators() -> dict[str, np.ndarray]:
    """Gradients [81, WIDTH] of the definitions above and of every preset of verl 0.9."""
    case, defined, presets = enumerated(), plan_of(**CONFIGS), plan_of()
    result = {name: case.of_preset(defined, name) for name in defined.corrections}
    return result | {
        name: case.of_preset(presets, name) for name in (*presets.corrections, "naive")
    }


NAMES = [*CONFIGS, *plan_of().corrections, "naive"]
