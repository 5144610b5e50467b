"""The replay of a batch by a real model: gradients of all presets, steps, and what came of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rcdiag.learning.learner import Fresh, Sampler, Training
from rcdiag.results import AfterStep, GradientReport, MetricValue, SplitReport
from rcdiag.usecases.replay.after_step import Stepped, after_step, k3_kl, mean_reward
from rcdiag.usecases.replay.batch import ReplayBatch, computed_advantages
from rcdiag.usecases.replay.gradients import PresetGradients, gradient_report, gradients
from rcdiag.usecases.replay.preset import PresetLoss, Update
from rcdiag.usecases.replay.updates import ModelReplay, train

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ModelRun:
    """What the model adds to every preset."""

    batch: ReplayBatch  # with computed old and current log-probs
    presets: dict[str, PresetLoss]
    gradients: dict[str, GradientReport | None]
    after: dict[str, AfterStep | None]
    splits: dict[str, SplitReport]
    backwards: int  # for all presets and the reference together


def run_on_model(replay: ModelReplay, sampler: Sampler | None) -> ModelRun:
    """Compute old and current log-probs, then gradients and steps of every preset from there."""
    before = replay.learner.log_probs(replay.parts, entropy=True)
    batch = replay.batch.with_log_probs(old=before.log_probs, current=before.log_probs)
    replay = replace(replay, batch=batch)
    presets = {name: replay.loss(name) for name in replay.names}
    found = gradients(replay, presets, _fresh(sampler, replay.update, replay.training))
    seed = replay.training.seed
    reports = {name: gradient_report(found, name, seed) for name in replay.names}
    steps = _Steps(replay, sampler, before.entropy)
    after = steps.all_after(presets, found)
    splits = steps.all_splits(presets) if replay.training.split else {}
    return ModelRun(batch, presets, reports, after, splits, found.backwards)


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
class _Steps:
    """Steps of presets from the same start; the same coefficients make the same step."""

    replay: ModelReplay
    sampler: Sampler | None
    entropy: Array | None  # of the policy before the step, [tokens] nats

    def all_after(
        self, presets: Mapping[str, PresetLoss], gradients: PresetGradients
    ) -> dict[str, AfterStep | None]:
        """The policy after the step of each preset; None where it takes none."""
        learner = self.replay.learner
        start = learner.snapshot()
        reward = self._reward()
        known: dict[bytes, AfterStep | None] = {}
        after = {}
        for name, loss in presets.items():
            key = self._key(name, loss)
            if key not in known:
                known[key] = self._after(name, loss, gradients, reward)
                learner.load_snapshot(start)
            after[name] = known[key]
        return after

    def _key(self, name: str, loss: PresetLoss) -> bytes:
        """Presets whose first step is the same part ways when there are several steps."""
        several = self.replay.training.epochs * self.replay.training.minibatches > 1
        return loss.coefficients.tobytes() + (name.encode() if several else b"")

    def _after(
        self, name: str, loss: PresetLoss, gradients: PresetGradients, reward: MetricValue | None
    ) -> AfterStep | None:
        if loss.result.undefined or name not in gradients.whole:
            return None
        replay = self.replay
        taken = train(replay, name, first=gradients.whole[name])
        new = replay.learner.log_probs(replay.parts, entropy=True)
        stepped = Stepped(
            log_probs=new.log_probs,
            entropy_before=self.entropy,
            entropy_after=new.entropy,
            step_norm=taken.step_norm,
            reward_before=reward,
            reward_after=self._reward(),
        )
        return after_step(
            replay.batch, stepped, replay.update.clip_range, replay.training.learning_rate
        )

    def _reward(self) -> MetricValue | None:
        """Mean reward of fresh samples of the policy as it is now."""
        training = self.replay.training
        if self.sampler is None or not training.evaluate:
            return None
        samples = self.sampler(training.evaluate, training.seed + 1)
        return mean_reward(samples.reward, samples.group)

    def all_splits(self, presets: Mapping[str, PresetLoss]) -> dict[str, SplitReport]:
        """The batch as one step and as several, under each preset: which mode stays put."""
        assert self.replay.training.split is not None
        return {
            name: self._split(name, self.replay.training.split)
            for name, loss in presets.items()
            if not loss.result.undefined
        }

    def _split(self, name: str, count: int) -> SplitReport:
        replay, learner = self.replay, self.replay.learner
        start = learner.snapshot()
        ends: list[Array] = []
        for minibatches in (1, count):
            training = replace(replay.training, minibatches=minibatches, epochs=1)
            train(replace(replay, training=training), name)
            ends.append(learner.log_probs(replay.parts).log_probs)
            learner.load_snapshot(start)
        return SplitReport(
            minibatches=count,
            kl_between=k3_kl(replay.batch, ends[0], ends[1]),
            kl_whole=k3_kl(replay.batch, replay.batch.old, ends[0]),
            kl_split=k3_kl(replay.batch, replay.batch.old, ends[1]),
        )
