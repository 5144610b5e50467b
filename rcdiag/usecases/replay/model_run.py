"""All presets on a real model: gradients, steps from the same weights, the policies after them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.learning.learner import Fresh, Sampler
from rcdiag.results import (
    AfterStep,
    Factor,
    MetricValue,
    PairedDifference,
    PresetReplay,
    ReplayStep,
    SplitReport,
)
from rcdiag.usecases.replay.factors import factors
from rcdiag.usecases.replay.gradients import PresetGradients, gradient_report, gradients
from rcdiag.usecases.replay.paired import (
    FLOAT32,
    PresetNumbers,
    WithoutGroups,
    of_gradient,
    of_k3,
    of_loss,
    paired_differences,
)
from rcdiag.usecases.replay.preset import PresetLoss
from rcdiag.usecases.replay.preset_result import preset_replay
from rcdiag.usecases.replay.real_updates import (
    ModelReplay,
    after_step,
    k3_kl,
    mean_reward,
    train,
)
from rcdiag.usecases.replay.token_advantages import computed_advantages, formula_of
from rcdiag.usecases.replay.update_batch import ReplayBatch

Array = NDArray[np.float64]
Losses = Mapping[str, PresetLoss]
Paired = dict[str, dict[str, PairedDifference]]


def replay_presets(
    replay: ModelReplay, ratios: dict[str, Factor], sampler: Sampler | None
) -> tuple[dict[str, PresetReplay], Paired, int]:
    """Replay every preset, each from the model's present weights.

    Returns the presets, the differences of all pairs of them, and the number of backward passes.
    """
    losses = {name: replay.loss(name) for name in replay.update.names}
    sketched = gradients(replay, losses, _fresh(replay, sampler))
    reports = {name: gradient_report(sketched, name, replay.training.seed) for name in losses}
    after = _all_after(replay, losses, sketched, sampler)
    splits = _splits(replay, losses)
    presets = {
        name: preset_replay(
            name,
            loss,
            ratios,
            replay.update,
            gradient=reports[name],
            after_step=after[name][0],
            split=splits.get(name),
        )
        for name, loss in losses.items()
    }
    numbers = {
        name: PresetNumbers(of_loss(loss), of_gradient(sketched, name), after[name][1])
        for name, loss in losses.items()
    }
    return presets, paired_differences(numbers, FLOAT32), sketched.backwards


def _fresh(replay: ModelReplay, sampler: Sampler | None) -> tuple[Fresh, Array] | None:
    """Return fresh samples of the policy and the advantage of each token; None if not needed."""
    if replay.training.reference != "fresh":
        return None
    assert sampler is not None
    samples = sampler(None, replay.training.seed)
    lengths = np.concatenate([part.sampled_lengths for part in samples.parts])
    formula = formula_of(replay.update.advantage)
    advantages = computed_advantages(formula, samples.reward, samples.group, lengths)
    return samples, np.repeat(advantages, lengths)


def _all_after(
    replay: ModelReplay, losses: Losses, sketched: PresetGradients, sampler: Sampler | None
) -> dict[str, tuple[AfterStep | None, WithoutGroups | None]]:
    """Return numbers of the policy after each preset's step, and KL(rollout || new) by jackknife.

    The latter leaves out each prompt group in turn. Both are None if the preset has no step.
    Presets with equal coefficients share a single step; with several steps they may differ from the
    second one on.
    """
    learner, training = replay.learner, replay.training
    several = training.epochs * training.minibatches > 1
    start, reward = learner.snapshot(), _reward(replay, sampler)
    by_pull: dict[bytes, tuple[AfterStep | None, WithoutGroups | None]] = {}
    after: dict[str, tuple[AfterStep | None, WithoutGroups | None]] = {}
    for name, loss in losses.items():
        pull = loss.coefficients.tobytes() + (name.encode() if several else b"")
        if pull not in by_pull:
            if loss.result.undefined or name not in sketched.whole:
                by_pull[pull] = (None, None)
            else:
                step_norm = train(replay, name, first=sketched.whole[name])
                compared, new = _compared(replay, step_norm, reward, sampler)
                by_pull[pull] = (compared, of_k3(replay.batch, new))
                learner.load_snapshot(start)
        after[name] = by_pull[pull]
    return after


def _compared(
    replay: ModelReplay,
    step_norm: float,
    reward: MetricValue | None = None,
    sampler: Sampler | None = None,
) -> tuple[AfterStep, Array]:
    """Compare the model after its steps with the old policy of the batch.

    `step_norm` is the norm of all steps. Also returns the model's log-probs [tokens], nats.
    """
    scores = replay.learner.log_probs(replay.batch.parts, entropy=True)
    compared = after_step(
        replay.batch,
        scores.log_probs,
        clip_range=replay.update.clip_range,
        learning_rate=replay.training.lr,
        step_norm=step_norm,
        entropy=scores.entropy,
        rewards=(reward, _reward(replay, sampler)),
    )
    return compared, scores.log_probs


def _reward(replay: ModelReplay, sampler: Sampler | None) -> MetricValue | None:
    """Return the mean reward of fresh samples of the present policy; None if not evaluated."""
    training = replay.training
    if sampler is None or not training.evaluate:
        return None
    samples = sampler(training.evaluate, training.seed + 1)
    return mean_reward(samples.reward, samples.group)


def _splits(replay: ModelReplay, losses: Losses) -> dict[str, SplitReport]:
    """Compare one step on the whole batch with one on each of `training.split` mini-batches."""
    learner, batch, count = replay.learner, replay.batch, replay.training.split
    if not count:
        return {}
    start = learner.snapshot()
    splits = {}
    for name in [name for name, loss in losses.items() if not loss.result.undefined]:
        ends: list[Array] = []
        for minibatches in (1, count):
            training = replace(replay.training, minibatches=minibatches, epochs=1)
            train(replace(replay, training=training), name)
            ends.append(learner.log_probs(batch.parts).log_probs)
            learner.load_snapshot(start)
        splits[name] = SplitReport(
            minibatches=count,
            kl_between=k3_kl(batch, ends[0], ends[1]),
            kl_whole=k3_kl(batch, batch.old, ends[0]),
            kl_split=k3_kl(batch, batch.old, ends[1]),
        )
    return splits


def over_steps(
    first: ModelReplay, batches: Iterable[ReplayBatch], say: Callable[[str], None]
) -> list[ReplayStep]:
    """Replay several training steps; each preset trains its own copy of the weights.

    `first` holds the model, the update and the training; its batch is not used. Each copy computes
    its own old log-probs, while the recorded rollouts stay the same. At the end the learner has the
    weights of the first preset's copy.
    """
    learner, names = first.learner, first.update.names
    learner.restore()
    copies = dict.fromkeys(names, learner.snapshot())
    steps = []
    for batch in batches:
        say(f"step {batch.step}: {len(copies)} copies")
        presets = {}
        for name in names:
            learner.load_snapshot(copies[name])
            # Each copy is its own old policy.
            replay = replace(first, batch=batch).scored()
            loss = replay.loss(name)
            after, _ = _compared(replay, train(replay, name))
            ratios = factors(replay.batch)
            presets[name] = preset_replay(name, loss, ratios, replay.update, after_step=after)
            copies[name] = learner.snapshot()
        steps.append(
            ReplayStep(
                step=batch.step,
                presets=presets,
                num_sequences=len(batch.lengths),
                num_tokens=batch.num_tokens,
            )
        )
    learner.load_snapshot(copies[names[0]])
    return steps
