"""Several training steps: every preset goes on with a copy of its own, from the same start."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rcdiag.learning.learner import Learner, Parts, Training
from rcdiag.results import PresetReplay, ReplayStep
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.replay.after_step import Stepped, after_step
from rcdiag.usecases.replay.batch import ReplayBatch
from rcdiag.usecases.replay.factors import factors
from rcdiag.usecases.replay.preset import NAIVE, Update, evaluated, preset_replay
from rcdiag.usecases.replay.updates import train


def over_steps(
    learner: Learner,
    plan: Plan,
    update: Update,
    training: Training,
    batches: Iterable[tuple[Parts, ReplayBatch]],
    say: Callable[[str], None],
) -> list[ReplayStep]:
    """Old log-probs of each copy are its own; the recorded rollouts stay what they are.

    The learner is left where the first preset has ended.
    """
    names = (*plan.corrections, NAIVE)
    learner.restore()
    copies = dict.fromkeys(names, learner.snapshot())
    found = []
    for parts, batch in batches:
        say(f"step {batch.step}: {len(names)} copies")
        presets = {}
        for name in names:
            learner.load_snapshot(copies[name])
            presets[name] = _one(learner, plan, name, parts, batch, update, training)
            copies[name] = learner.snapshot()
        found.append(
            ReplayStep(
                step=batch.step,
                presets=presets,
                num_sequences=len(batch.lengths),
                num_tokens=batch.num_tokens,
            )
        )
    learner.load_snapshot(copies[names[0]])
    return found


def _one(
    learner: Learner,
    plan: Plan,
    name: str,
    parts: Parts,
    batch: ReplayBatch,
    update: Update,
    training: Training,
) -> PresetReplay:
    """One update of one copy."""
    before = learner.log_probs(parts, entropy=True)
    batch = batch.with_log_probs(old=before.log_probs, current=before.log_probs)
    done = evaluated(plan, name, batch, update)
    taken = train(learner, plan, name, parts, batch, update, training)
    new = learner.log_probs(parts, entropy=True)
    stepped = Stepped(
        log_probs=new.log_probs,
        entropy_before=before.entropy,
        entropy_after=new.entropy,
        step_norm=taken.step_norm,
    )
    after = after_step(batch, stepped, update.clip_range, training.learning_rate)
    found = factors(batch, training.seed)
    return preset_replay(plan, name, done, found, after_step=after)
