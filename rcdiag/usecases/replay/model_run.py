"""The replay of a batch by a real model: gradients of all presets, steps, and what came of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.learning.learner import Fresh, Learner, Parts, Sampler, Training
from rcdiag.results import AfterStep, GradientReport, MetricValue, SplitReport
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.replay.after_step import Stepped, after_step, k3_kl, mean_reward
from rcdiag.usecases.replay.batch import ReplayBatch, computed_advantages
from rcdiag.usecases.replay.gradients import Found, gradients, report
from rcdiag.usecases.replay.preset import NAIVE, Evaluated, Update, evaluated
from rcdiag.usecases.replay.updates import train

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Modelled:
    """What the model adds to every preset."""

    batch: ReplayBatch  # with computed old and current log-probs
    presets: dict[str, Evaluated]
    gradients: dict[str, GradientReport | None]
    after: dict[str, AfterStep | None]
    splits: dict[str, SplitReport]
    backwards: int  # for all presets and the reference together


def modelled(
    learner: Learner,
    plan: Plan,
    parts: Parts,
    batch: ReplayBatch,
    update: Update,
    training: Training,
    sampler: Sampler | None,
) -> Modelled:
    """Old and current log-probs are computed, not assumed; every preset starts from there."""
    before = learner.log_probs(parts, entropy=True)
    batch = batch.with_log_probs(old=before.log_probs, current=before.log_probs)
    names = (*plan.corrections, NAIVE)
    presets = {name: evaluated(plan, name, batch, update) for name in names}
    found = gradients(learner, parts, batch, presets, training, _fresh(sampler, update, training))
    reports = {name: report(found, name, training.seed) for name in names}
    run = _Run(learner, plan, parts, update, training, sampler, before.entropy)
    after = run.all_after(presets, batch, found)
    splits = run.all_splits(presets, batch) if training.split else {}
    return Modelled(batch, presets, reports, after, splits, found.backwards)


def _fresh(
    sampler: Sampler | None, update: Update, training: Training
) -> tuple[Fresh, Array] | None:
    """Samples of the policy itself with the advantage of each token."""
    if training.reference != "fresh":
        return None
    assert sampler is not None
    samples = sampler(None, training.seed)
    lengths = np.concatenate([part.sampled_lengths for part in samples.parts])
    source = "grpo" if update.advantage == "column" else update.advantage
    advantages = computed_advantages(source, samples.reward, samples.group, lengths)
    return samples, np.repeat(advantages, lengths)


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Steps of presets from the same start; the same coefficients make the same step."""

    learner: Learner
    plan: Plan
    parts: Parts
    update: Update
    training: Training
    sampler: Sampler | None
    entropy: Array | None

    def all_after(
        self, presets: Mapping[str, Evaluated], batch: ReplayBatch, found: Found
    ) -> dict[str, AfterStep | None]:
        start = self.learner.snapshot()
        reward = self._reward()
        known: dict[bytes, AfterStep | None] = {}
        result = {}
        for name, done in presets.items():
            key = self._key(name, done)
            if key not in known:
                known[key] = self._after(name, done, batch, found, reward)
                self.learner.load_snapshot(start)
            result[name] = known[key]
        return result

    def _key(self, name: str, done: Evaluated) -> bytes:
        """Presets whose first step is the same part ways when there are several."""
        several = self.training.epochs * self.training.minibatches > 1
        return done.coefficients.tobytes() + (name.encode() if several else b"")

    def _after(
        self,
        name: str,
        done: Evaluated,
        batch: ReplayBatch,
        found: Found,
        reward: MetricValue | None,
    ) -> AfterStep | None:
        if done.result.undefined or name not in found.whole:
            return None
        taken = train(
            self.learner,
            self.plan,
            name,
            self.parts,
            batch,
            self.update,
            self.training,
            first=found.whole[name],
        )
        new = self.learner.log_probs(self.parts, entropy=True)
        stepped = Stepped(
            log_probs=new.log_probs,
            entropy_before=self.entropy,
            entropy_after=new.entropy,
            step_norm=taken.step_norm,
            reward_before=reward,
            reward_after=self._reward(),
        )
        return after_step(batch, stepped, self.update.clip_range, self.training.learning_rate)

    def _reward(self) -> MetricValue | None:
        """Of fresh samples of the policy as it is now."""
        if self.sampler is None or not self.training.evaluate:
            return None
        samples = self.sampler(self.training.evaluate, self.training.seed + 1)
        return mean_reward(samples.reward, samples.group)

    def all_splits(
        self, presets: Mapping[str, Evaluated], batch: ReplayBatch
    ) -> dict[str, SplitReport]:
        """The same batch as one step and as several: which mode stays put."""
        assert self.training.split is not None
        return {
            name: self._split(name, batch, self.training.split)
            for name, done in presets.items()
            if not done.result.undefined
        }

    def _split(self, name: str, batch: ReplayBatch, count: int) -> SplitReport:
        start = self.learner.snapshot()
        ends: list[Array] = []
        steps: list[Any] = []
        for minibatches in (1, count):
            training = replace(self.training, minibatches=minibatches, epochs=1)
            steps.append(
                train(self.learner, self.plan, name, self.parts, batch, self.update, training)
            )
            ends.append(self.learner.log_probs(self.parts).log_probs)
            self.learner.load_snapshot(start)
        return SplitReport(
            minibatches=count,
            kl_between=k3_kl(batch, ends[0], ends[1]),
            kl_whole=k3_kl(batch, batch.old, ends[0]),
            kl_split=k3_kl(batch, batch.old, ends[1]),
        )
