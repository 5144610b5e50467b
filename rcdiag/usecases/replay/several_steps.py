"""Several training steps: every preset goes on with a copy of its own, from the same start."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from rcdiag.learning.learner import Parts
from rcdiag.results import PresetReplay, ReplayStep
from rcdiag.usecases.replay.after_step import Stepped, after_step
from rcdiag.usecases.replay.batch import ReplayBatch
from rcdiag.usecases.replay.factors import factors
from rcdiag.usecases.replay.preset import preset_replay
from rcdiag.usecases.replay.updates import ModelReplay, train


def over_steps(
    first: ModelReplay,
    batches: Iterable[tuple[Parts, ReplayBatch]],
    say: Callable[[str], None],
) -> list[ReplayStep]:
    """Replay several training steps; every preset goes on with a copy of its own.

    `first` holds the model, the plan and the training; its batch is not read. Old log-probs of
    each copy are its own, the recorded rollouts stay what they are. The learner is left where the
    first preset has ended.
    """
    learner = first.learner
    learner.restore()
    copies = dict.fromkeys(first.names, learner.snapshot())
    steps = []
    for parts, batch in batches:
        say(f"step {batch.step}: {len(copies)} copies")
        replay = replace(first, parts=parts, batch=batch)
        presets = {}
        for name in first.names:
            learner.load_snapshot(copies[name])
            presets[name] = _one_update(replay, name)
            copies[name] = learner.snapshot()
        steps.append(
            ReplayStep(
                step=batch.step,
                presets=presets,
                num_sequences=len(batch.lengths),
                num_tokens=batch.num_tokens,
            )
        )
    learner.load_snapshot(copies[first.names[0]])
    return steps


def _one_update(replay: ModelReplay, name: str) -> PresetReplay:
    """One update of one copy, from its own old policy."""
    learner, training = replay.learner, replay.training
    before = learner.log_probs(replay.parts, entropy=True)
    batch = replay.batch.with_log_probs(old=before.log_probs, current=before.log_probs)
    replay = replace(replay, batch=batch)
    loss = replay.loss(name)
    taken = train(replay, name)
    new = learner.log_probs(replay.parts, entropy=True)
    stepped = Stepped(
        log_probs=new.log_probs,
        entropy_before=before.entropy,
        entropy_after=new.entropy,
        step_norm=taken.step_norm,
    )
    after = after_step(batch, stepped, replay.update.clip_range, training.learning_rate)
    return preset_replay(replay.plan, name, loss, factors(batch, training.seed), after_step=after)
